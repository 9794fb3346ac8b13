"""What a secret looks like: its position, and the judgement whether a value is one or only stands where one might."""

import re
from functools import cache
from typing import NamedTuple


class SecretMatch(NamedTuple):
    """The position of a secret: `text[start:end]`."""

    kind: str
    start: int
    end: int


@cache
def compile_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern once, when it is needed first; letters and digits are those of ASCII, or with U of Unicode."""
    return re.compile(pattern, flags if flags & re.UNICODE else re.ASCII | flags)


# Values and words that stand where a secret might.
_COMMON_WORDS_TEXT = """
a access account admin and any api apikey are argument array as authentication bearer bool boolean bytes char
const credentials default disabled empty enabled encrypted enter env environment example expired false field
file flag float for form from generated hash hashed hidden if in incorrect input int integer invalid is key
long manager mandatory masked missing must needed never nil no none not nothing null number object of off on
only option optional options or parameter pass passphrase passwd password passwords please policy private
prompt protected provided public pw pwd random read readonly redacted required requires reset rotated salted
secret secrets see set short should something stored str string test text the then this to token tokens true
type undefined unknown unset updated use used user username valid value values varchar vault void was whatever
when where which will with wrong your
"""
COMMON_WORDS = frozenset(_COMMON_WORDS_TEXT.split())
_PLACEHOLDER_PATTERN = r"""(?xs)
    [<\[{()|].* | \$[{(].* | \$(?:[A-Z_][A-Z0-9_]*|[a-z_]+) | %(?:[sdr]|\w+%|\(.*) | .{0,40}(?:\*{3}|\.{3}|…|•).*
  | (?i: .{0,4}x{4,}.*
       | (?:your|insert|replace|change|enter|example|sample|dummy|fake|placeholder|redacted|todo)
         (?: [-_\ .]?(?:me|here|this|it) | [-_\ .].* )? )
  | [a-z][a-z0-9+.-]{1,20}://.* | arn:.*
"""
_TECHNICAL_TERM_PATTERN = (
    r"(?i)(?:sha|md\d|base\d|utf|argon|[bs]crypt|pbkdf|rsa|aes|oauth|ed25519|x509|hmac|rfc|jwt).*|\d+-?[a-z]+"
)
_SLUG_PATTERN = r"(?:[A-Za-z]+(?:\d{1,3}[a-z]?)?|\d{1,4})(?:[-_.:/](?:[A-Za-z]+(?:\d{1,3}[a-z]?)?|\d{1,4}))*"
CODE_PATTERN = r"[&*@!]?[A-Za-z_]\w*(?:(?:\.|->|::|\?\.)[A-Za-z_]\w*)*(?:[(\[].*|[{|?]\D*)?"
SYMBOLS = frozenset("!@#$%^&*+=?~|")


def looks_secret(value: str, kind: str, *, quoted: bool = False, prose: bool = False) -> bool:
    value = value[:512]
    if is_dummy_value(value) or (compile_pattern(r"[~.]{0,2}/[\w./@-]*").fullmatch(value) and not looks_random(value)):
        return False
    digit, alpha = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    symbol = not SYMBOLS.isdisjoint(value)
    slug = compile_pattern(_SLUG_PATTERN).fullmatch(value)
    is_term = (slug and not value.isalnum()) or (
        not quoted and compile_pattern(_TECHNICAL_TERM_PATTERN).fullmatch(value)
    )
    if prose and (is_term or len(value) < 6 or not (digit and alpha)):
        return False
    if kind != "password":
        shortest = {"token": 16, "private-key": 24, "aws-session-token": 16}.get(kind, 8)
        return alpha and (digit or symbol) and len(value) >= shortest and not slug and " " not in value
    if quoted and (" " in value or not (digit or symbol)):
        words = re.findall("[a-z]+", value.lower())
        return len(value) >= 6 and COMMON_WORDS.isdisjoint(words) and not any("passw" in word for word in words)
    shortest = 4 if quoted else 5 if digit and alpha else 6 if digit or symbol else 3
    return len(value) >= shortest and not (slug and "/" in value)


def is_dummy_value(value: str, words: frozenset[str] = COMMON_WORDS) -> bool:
    is_word = len(set(value)) < 2 or value.lower().rstrip("=:") in words
    return is_word or compile_pattern(_PLACEHOLDER_PATTERN).fullmatch(value[:512]) is not None


def looks_random(value: str) -> bool:
    """Return whether a value looks random: long, with both cases and a digit."""
    return len(value) >= 16 and all(any(map(test, value)) for test in (str.islower, str.isupper, str.isdigit))


_CLASS_TABLE = dict.fromkeys(range(97, 123), "a") | dict.fromkeys(range(65, 91), "A")
_CLASS_TABLE |= dict.fromkeys(range(48, 58), "0")


def count_changes(value: str) -> int:
    """Count how often a letter and a digit, or the two cases, follow each other; a capital before its word is none."""
    classes = value.translate(_CLASS_TABLE)
    return len(compile_pattern(r"a(?=[A0])|A(?=0)|A(?=a)(?<=[A0]A)|0(?=[Aa])").findall(classes))


def looks_generated(value: str) -> bool:
    """Return whether a machine made a value at random: letters and digits change places as in no name."""
    size = sum(map(str.isalnum, value))
    if size < 16 or len(set(value)) < 8 or not value.isascii():
        return False
    if "/" in value and (value.islower() or compile_pattern(_SLUG_PATTERN).fullmatch(value)):
        return False
    rate = count_changes(value) / size
    has_digit, has_upper, has_lower = (any(map(test, value)) for test in (str.isdigit, str.isupper, str.islower))
    if has_upper and has_lower:
        return rate >= 0.28 if has_digit else rate >= 0.3 and size >= 20
    return has_digit and (has_upper or has_lower) and rate >= 0.17 and not _is_numbered_name(value)


def _is_numbered_name(value: str) -> bool:
    """Return whether the parts of a value are words and numbers: `worker-12-eu-west-1`."""
    parts = re.split(r"[-_./+~]", value)
    return len(parts) > 1 and all(part.isalpha() or part.isdigit() or len(part) < 4 for part in parts)


def is_common_word(value: str) -> bool:
    """Return whether a value is one of the words that stand where a secret might."""
    return value.lower() in COMMON_WORDS


def is_technical_term(value: str) -> bool:
    """Return whether a value names a method or a size: `sha256`, `12-character`."""
    return compile_pattern(_TECHNICAL_TERM_PATTERN).fullmatch(value) is not None
