"""What a text is about, as a set of words: without numbers, ids, times and endings, so that two wordings compare."""

import re
from functools import lru_cache


def split_words(words: str) -> list[str]:
    """Return the words of a table that is written as text."""
    return words.split()


# A hash, an id, a version, a time or a number tells one occasion from another, never one kind from another.
VOLATILE_TOKEN_PATTERN = re.compile(
    r"""https?://\S+
      | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}\b
      | \b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{6,64}\b
      | \b\d{4}-\d\d-\d\d(?:[T ][\d:.]+Z?)?\b | \b\d{1,2}:\d\d(?::\d\d)?\b
      | (?<![^\W_])[#v]?\d+(?:[.,]\d+)*\s*
        (?:%|[kmgt]i?b\b|m?s\b|seconds?\b|minutes?\b|mins?\b|hours?\b|h\b|days?\b|rows?\b)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
# p99 and k6 are words, worker3 is a worker
WORD_PATTERN = re.compile(r"[^\W\d_]{4,}|[^\W\d_]+\d{1,3}(?![^\W_])|[^\W\d_]{2,}")
# A file or a folder is one word: two files are two things, however much of their paths they share.
FILE_PATH_PATTERN = re.compile(
    r"(?<![\w/.])(?:[\w.-]*\w/)+[\w.-]*\w|(?<![\w/.])[\w-]+\.(?:py|[jt]sx?|go|rs|md|sql|toml|ya?ml|json|css|html|sh|java|c|h)\b"
)
URL_PATTERN = re.compile(r"https?://\S+")
NEGATION_STEM = "not"  # the word that stands for every denial
NEGATION_PATTERN = re.compile(
    r"\b(?:not|no|never|none|without|cannot|skip(?:s|ped|ping)?|forgot(?:ten)?|omit(?:s|ted)?)\b|n['’]t\b",
    re.IGNORECASE,
)
STOP_WORDS = frozenset(
    split_words(
        """a an the of in on at to for from with without by as is are was were be been being am it its this that these
    those and or but if then than so not no i we you he she they our my your his her their me us them do does
    did done has have had will would can could should may might must about into onto over under after before
    while when where which who what how why all any each some more most other such only own same too very just
    now again still yet also up down out off there here ok finished finish completed complete via per got get
    gets let lets go goes went went see percent"""
    )
)
SYNONYMS = {
    "db": "database", "databases": "database", "config": "configuration", "prod": "production", "repo": "repository",
    "pr": "pullrequest", "auth": "authentication", "dep": "dependency", "deps": "dependency", "k8s": "kubernetes",
    "env": "environment", "frozen": "freeze", "froze": "freeze", "ran": "run", "wrote": "write", "written": "write",
    "built": "build", "broke": "break", "broken": "break", "sent": "send", "led": "lead", "made": "make",
    "changed": "chang", "restarted": "restart", "rebuilt": "rebuild",
}  # fmt: skip
SUFFIXES = (
    "ations",
    "ation",
    "ments",
    "ment",
    "ings",
    "ing",
    "als",
    "al",
    "ers",
    "ied",
    "ies",
    "ed",
    "es",
    "er",
    "ly",
    "s",
)


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """Return what forms of a word share; rough, and always the same."""
    word = SYNONYMS.get(word, word)
    for ending in SUFFIXES:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            word = word[: -len(ending)]
            break
    if len(word) == 4 and word[-1] == "s" and word[-2] not in "sui":
        return word[:3]
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] if len(word) > 4 and word[-1] in "ey" else word


def extract_stems(text: str) -> list[str]:
    """Return the stems of a text in their order, without what changes from occasion to occasion."""
    text = URL_PATTERN.sub(" ", text)
    paths = [re.sub(r"\d+", "0", path.lower()) for path in FILE_PATH_PATTERN.findall(text)]
    plain = VOLATILE_TOKEN_PATTERN.sub(" ", FILE_PATH_PATTERN.sub(" ", text))
    found = [stem(word) for word in map(str.lower, WORD_PATTERN.findall(plain)) if word not in STOP_WORDS]
    return [*([NEGATION_STEM] if NEGATION_PATTERN.search(text) else []), *paths, *found]


def select_paths(words: frozenset[str]) -> frozenset[str]:
    """Return the files and folders of a signature."""
    return frozenset(word for word in words if "/" in word or "." in word)


def compute_signature(text: str, longest: int = 40) -> frozenset[str]:
    """Return the words of the beginning of a text, as a set."""
    return frozenset(extract_stems(text[:2_000])[:longest])
