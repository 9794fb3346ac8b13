"""What a request asks for: the words that count, whether to look or to do something, and what sort of thing."""

import re
from itertools import pairwise

from athena.core.words import stem_content_words, stem_words
from athena.discovery.entry import Entry, split_name

MAX_REQUEST_CHARS = 2_000  # characters of a request whose words are looked at

POLITE_PREFIX_PATTERN = (
    r"(?:please|hey|hi|ok(?:ay)?|could you|can you|would you|i(?:'d| would) like to|i want to|i need to|let me|,|\s)*"
)
FIRST_WORD_PATTERN = re.compile(r"^" + POLITE_PREFIX_PATTERN + r"(\w+)")
PYTHON_NAME_PATTERN = re.compile(r"\w+(?:\.\w+)+|\w+_\w+")  # `find_duplicates`, `memory.recall`
READ_REQUEST_PATTERN = re.compile(
    POLITE_PREFIX_PATTERN
    + r"(?:show|list|find|look|search|read|view|see|check|count|what|which|who|whose|where|when|why|how|is|are|was"
    r"|were|do|does|did|am|will|any|have|has)\b|.*\?",
    re.IGNORECASE | re.DOTALL,
)
WRITE_REQUEST_PATTERN = re.compile(
    POLITE_PREFIX_PATTERN
    + r"(?:"
    + "|".join(
        """add make create open start put set write delete remove throw erase drop get\\srid move rename push send post
        email text tell submit file close approve merge commit bump run install apply stop pause play switch turn mark
        save store keep remember give bill log plan ship publish link attach fill press click type choose select decline
        accept answer reply prepare schedule bring call ring shut replace note tick learn clean skip join retry restart
        scale record share upload cancel change update edit correct build copy reset enable disable assign invite book
        order pay refund charge release deploy import insert append convert transfer register raise mute silence lock
        unlock archive tag label notify remind forget undo restore report arrange trigger kick wake fix swap patch
        lower dim boot reboot spin pull roll wipe purge empty scrap bin land propose complete finish confirm reject
        postpone reschedule shift extend dial deliver forward fork clone duplicate star react pin let ask""".split()  # noqa: SIM905  # readable as a text
    )
    + r")\b",
    re.IGNORECASE,
)

# What a tool would be given says what sort of thing it is about, not what is to be done with it.
ARGUMENT_PATTERNS = (
    (re.compile(r"https?://\S+"), " url "),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"), " person "),
    (re.compile(r"(?<![\w/])[~.]?/[\w.*-]+(?:/[\w.*-]*)+"), " file folder "),
    (re.compile(r"\b[\w-]+\.(?:[a-z]{2,4}|json|yaml|html|docx|xlsx|jpeg|toml|lock)\b(?!\.)"), " file "),
    (re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b|(?<![\w#])#\d+\b"), " issue "),
    (re.compile(r"(?<![\w#&])#[a-zA-Z][\w-]*"), " channel "),
)

# What is to be said, noted or looked for tells little about the tool: what is quoted, what follows a colon, "that"
# after a word for saying, or "about".
SAYING_VERB_PATTERN = (
    r"(?:tell|log|note|remember|know|write|say|saying|mention|email|mail|text|message|comment|remark|record|inform"
    r"|notify|store|save|keep|remind|down|mind|reply|answer|respond|post|announce|warn|ping|explain|fact)"
)
THAT_PREPOSITIONS = ("of", "to", "from", "in", "on", "for", "with", "at")
# Not "of that", and not "that of".
THAT_CLAUSE_PATTERN = (
    "".join(rf"(?<!\b{word})" for word in THAT_PREPOSITIONS) + rf"\sthat\s+(?!(?:{'|'.join(THAT_PREPOSITIONS)})\b)"
)
CONTENT_PATTERNS = (
    re.compile(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]"),
    re.compile(r"(?<!\w)'([^']{2,})'(?!\w)"),
    re.compile(r"^.{2,80}?(?:\w:|\s[-–—])\s(.+)", re.DOTALL),
    re.compile(SAYING_VERB_PATTERN + r"\b[^.?!]{0,50}?" + THAT_CLAUSE_PATTERN + r"(.+)", re.DOTALL | re.IGNORECASE),
    re.compile(r".{4}\b(?:about|regarding|concerning|called|named|titled)\b(.+)", re.DOTALL | re.IGNORECASE),
)
CONTENT_WEIGHT = 0.3  # what its words count

# What may be done, as tools name it and as people say it.
ACTION_VERBS = (
    (
        "create add new insert append write put upload make register record save remember log draft open start",
        "add make create open start put set write file raise register log note jot record save store keep remember"
        " remind offer plan book build publish insert append upload submit new introduce enter draft prepare schedule"
        " report arrange compose",
    ),
    (
        "update edit modify set change adjust move rename transition merge convert restore relate link",
        "change update edit correct fix set move rename shift reassign raise bump close mark reschedule push replace"
        " overwrite adjust switch turn dim improve assign merge join link connect convert tick finish complete lower"
        " swap patch reschedule postpone extend unify land",
    ),
    (
        "delete remove forget cancel purge erase stop end drop",
        "delete remove drop erase throw rid forget cancel off kill clear discard end stop wipe shut destroy"
        " scrap bin empty quit halt",
    ),
    (
        "send post reply comment respond call share message note",
        "send tell email mail text post reply answer respond comment notify inform write let ring phone message share"
        " ping drop ask announce forward warn",
    ),
    (
        "run execute invoke start restart install build launch play retry activate turn",
        "run execute call invoke launch start trigger bring play boot restart bounce install begin switch turn rerun"
        " kick fire spin reboot retry",
    ),
)


def weigh_stems(request: str) -> dict[str, float]:
    """Return the stems of a request, in their order, and what each counts."""
    request = request[:MAX_REQUEST_CHARS]
    content = [match.span(1) for pattern in CONTENT_PATTERNS for match in pattern.finditer(request)]
    cuts = sorted({0, len(request), *(place for span in content for place in span)})
    found: dict[str, float] = {}
    for start, end in pairwise(cuts):
        counts = CONTENT_WEIGHT if any(first <= start and end <= last for first, last in content) else 1.0
        for stem in stem_content_words(_replace_arguments(request[start:end])):
            found[stem] = max(found.get(stem, 0.0), counts)
    return found or dict.fromkeys(stem_words(request), 1.0)


def _replace_arguments(request: str) -> str:
    """Put in the place of what a tool would be given the sort of thing it is."""
    for pattern, sort in ARGUMENT_PATTERNS:
        request = pattern.sub(sort, request)
    return request


def extract_names(request: str) -> set[str]:
    """Return what may be the name of a tool: the first word, and what is written as Python does."""
    request = request[:MAX_REQUEST_CHARS].lower()
    return {*PYTHON_NAME_PATTERN.findall(request), *FIRST_WORD_PATTERN.findall(request)[:1]}


def classify_intent(request: str) -> int:
    """Return 1 if a request asks to look, -1 if it asks to do something, 0 if it does not say."""
    request = request[:MAX_REQUEST_CHARS]
    return 1 if READ_REQUEST_PATTERN.match(request) else -1 if WRITE_REQUEST_PATTERN.match(request) else 0


def classify_actions(request: str) -> set[int]:
    """Return what is to be done, by the first words that say so."""
    for word in re.findall(r"[a-z]+", request[:MAX_REQUEST_CHARS].lower())[:6]:
        if found := {place for place, (_, said) in enumerate(ACTION_VERBS) if word in said.split()}:
            return found
    return set()


def classify_entry_actions(entry: Entry) -> set[int]:
    """Return what a tool does, by its name and its summary's first word."""
    words = {*split_name(entry.name).lower().split(), *entry.summary.lower().split()[:1]}
    stemmed = words | {word.removesuffix("s") for word in words}
    return {place for place, (named, _) in enumerate(ACTION_VERBS) if stemmed & set(named.split())}
