"""Read a request for a tool: its words with their weights, its intent (to look or to change), and its action."""

import re
from itertools import pairwise

from athena.core.words import STOP_WORDS, WORD_PATTERN, stem_content_words, stem_word, stem_words
from athena.discovery.entry import ToolEntry, split_name

MAX_REQUEST_CHARS = 2_000  # the rest is not read

POLITE_PREFIX_PATTERN = (
    r"(?:please|hey|hi|ok(?:ay)?|could you|can you|would you|i(?:'d| would) like to|i want to|i need to|let me|,|\s)*"
)
FIRST_WORD_PATTERN = re.compile(r"^" + POLITE_PREFIX_PATTERN + r"(\w+)")
NAME_PATTERN = re.compile(r"\w+(?:\.\w+)*")
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

# An address or a path says what sort of thing the request is about, so a word for the sort replaces it.
ARGUMENT_PATTERNS = (
    (re.compile(r"https?://\S+"), " url "),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"), " person "),
    (re.compile(r"(?<![\w/])[~.]?/[\w.*-]+(?:/[\w.*-]*)+"), " file folder "),
    (re.compile(r"\b[\w-]+\.(?:[a-z]{2,4}|json|yaml|html|docx|xlsx|jpeg|toml|lock)\b(?!\.)"), " file "),
    (re.compile(r"\b[A-Z][A-Z0-9]+-\d+\b|(?<![\w#])#\d+\b"), " issue "),
    (re.compile(r"(?<![\w#&])#[a-zA-Z][\w-]*"), " channel "),
)

# Content to send, store or search for says little about the tool: quoted text, and text after a colon, after "that"
# behind a verb of saying, or after "about".
SAYING_VERB_PATTERN = (
    r"(?:tell|log|note|remember|know|write|say|saying|mention|email|mail|text|message|comment|remark|record|inform"
    r"|notify|store|save|keep|remind|down|mind|reply|answer|respond|post|announce|warn|ping|explain|fact)"
)
THAT_PREPOSITIONS = ("of", "to", "from", "in", "on", "for", "with", "at")
# neither "of that" nor "that of"
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
CONTENT_WEIGHT = 0.3

# Sorts of actions: verbs in the names of tools, and verbs that people use.
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
    """Return the stems of a request, in their order, with a weight for each."""
    request = request[:MAX_REQUEST_CHARS]
    content = _find_content(request)
    cuts = sorted({0, len(request), *(offset for span in content for offset in span)})
    weights: dict[str, float] = {}
    for start, end in pairwise(cuts):
        weight = CONTENT_WEIGHT if _is_within((start, end), content) else 1.0
        for stem in stem_content_words(_replace_arguments(request[start:end])):
            weights[stem] = max(weights.get(stem, 0.0), weight)
    return weights or dict.fromkeys(stem_words(request), 1.0)


def locate_words(request: str) -> list[tuple[int, int, str, float]]:
    """Return the start, the end, the stem and the weight of each word of a request that is no stop word."""
    request = request[:MAX_REQUEST_CHARS]
    content = _find_content(request)
    return [
        (*word.span(), stem_word(word[0].lower()), CONTENT_WEIGHT if _is_within(word.span(), content) else 1.0)
        for word in WORD_PATTERN.finditer(request)
        if word[0].lower() not in STOP_WORDS
    ]


def _find_content(request: str) -> list[tuple[int, int]]:
    """Return where the content to send, store or search for stands in a request."""
    return [match.span(1) for pattern in CONTENT_PATTERNS for match in pattern.finditer(request)]


def _is_within(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in others)


def _replace_arguments(request: str) -> str:
    """Replace addresses, paths, channels and ids by words for their sort."""
    for pattern, sort in ARGUMENT_PATTERNS:
        request = pattern.sub(sort, request)
    return request


def extract_names(request: str) -> set[str]:
    """Return what may be the name of a tool: the first word, and Python identifiers."""
    request = request[:MAX_REQUEST_CHARS].lower()
    # `find_duplicates`, `memory.recall`
    names = {name for name in NAME_PATTERN.findall(request) if "." in name or "_" in name[1:-1]}
    return {*names, *FIRST_WORD_PATTERN.findall(request)[:1]}


def classify_intent(request: str) -> int:
    """Return 1 if a request asks to look, -1 if it asks to change something, 0 if it is neither."""
    request = request[:MAX_REQUEST_CHARS]
    return 1 if READ_REQUEST_PATTERN.match(request) else -1 if WRITE_REQUEST_PATTERN.match(request) else 0


def classify_actions(request: str) -> set[int]:
    """Return the indexes of the sorts of actions that the first known verb may mean."""
    for word in re.findall(r"[a-z]+", request[:MAX_REQUEST_CHARS].lower())[:6]:
        if actions := {i for i, (_, verbs) in enumerate(ACTION_VERBS) if word in verbs.split()}:
            return actions
    return set()


def classify_entry_actions(entry: ToolEntry) -> set[int]:
    """Return the indexes of the sorts of actions of a tool, by its name and its summary's first word."""
    words = {*split_name(entry.name).lower().split(), *entry.summary.lower().split()[:1]}
    stemmed = words | {word.removesuffix("s") for word in words}
    return {i for i, (verbs, _) in enumerate(ACTION_VERBS) if stemmed & set(verbs.split())}
