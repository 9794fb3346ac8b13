"""Find personal data in texts: e-mail addresses, phone numbers, cards, accounts, national ids, IPs, dates of birth.

A pattern only says where to look; a checksum, a calendar or the rules of a country decide. Names of people are found
only where the caller lists them. All functions are pure, and their work is linear in the text.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from athena.core.redaction import redact, views
from athena.core.redaction.columns import find_in_columns
from athena.core.redaction.numbers import NUMBER_FINDERS, find_ips
from athena.core.redaction.personal_values import (
    BIRTH_DATE,
    CARD,
    EMAIL,
    IBAN,
    IP,
    NAME,
    NATIONAL_ID,
    PHONE,
    TOKEN_PATTERN,
    PersonalMatch,
)
from athena.core.redaction.values import compile_pattern
from athena.core.redaction.zones import find_zones, fold_characters
from athena.core.threads import check_stopped

MAX_BLOB_DEPTH = 2
MIN_KNOWN_CHARS, MAX_KNOWN_CHARS = 6, 40
MAX_LOCAL_CHARS, MAX_DOMAIN_CHARS = 64, 255


class PersonalRules(NamedTuple):
    """What to look for beside the kinds with a form of their own."""

    names: frozenset[str] = frozenset()  # of people
    patterns: Mapping[str, str] = {}  # own kinds, each with a regular expression
    known: Mapping[str, str] = {}  # numbers that were found before by a word beside them, bare, each with its kind


class NumberQuestions(dict[str, str]):
    """Stands in for the known numbers: it knows none, and collects those of a text that would have to be looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __bool__(self) -> bool:
        return True

    def get(self, number: str, default: Any = None) -> Any:
        if len(number) >= MIN_KNOWN_CHARS - 1:  # a zero at its beginning does not count
            self.asked.add(number)
        return default


def find_personal(text: str, rules: PersonalRules = PersonalRules()) -> list[PersonalMatch]:  # noqa: B008  # a tuple
    """Return the positions of personal values in a text, in order and apart from each other."""
    matches = [match for match in _find_decoded(text, rules, 0) if not is_in_token(text, match.start)]
    return _select_matches(matches) if matches else []


def mask_personal(text: str, rules: PersonalRules = PersonalRules()) -> str:  # noqa: B008
    """Return a text with `[KIND]` in place of personal values, for logs and where there is no vault."""
    for match in reversed(find_personal(text, rules)):
        text = f"{text[: match.start]}[{match.kind}]{text[match.end :]}"
    return text


def mask_private(text: str, rules: PersonalRules = PersonalRules()) -> str:  # noqa: B008
    """Return a text without secrets and personal values, for a log."""
    return mask_personal(redact(text).text, rules)


def is_in_token(text: str, at: int) -> bool:
    """Return whether a position lies inside of a token or of a placeholder for a secret."""
    opening = text.rfind("[", max(0, at - 60), at + 1)
    token = compile_pattern(rf"{TOKEN_PATTERN}|\[SECRET:[a-z-]+\]").match(text, opening) if opening >= 0 else None
    return token is not None and token.end() > at


def _select_matches(matches: Iterable[PersonalMatch]) -> list[PersonalMatch]:
    """Of matches that overlap, take the one that begins first and is the longest, or whose kind is the surest."""
    order = {kind: rank for rank, kind in enumerate((EMAIL, IBAN, CARD, NATIONAL_ID, IP, PHONE, BIRTH_DATE, NAME))}
    chosen: list[PersonalMatch] = []
    for match in sorted(set(matches), key=lambda m: (m.start, -m.end, order.get(m.kind, -1))):
        if not chosen or match.start >= chosen[-1].end:
            chosen.append(match)
        elif match.end > chosen[-1].end:  # nothing of either may be left
            last = chosen.pop()
            kind = min(last.kind, match.kind, key=lambda kind: order.get(kind, -1))
            chosen.append(PersonalMatch(kind, last.start, match.end))
    return chosen


def _find_decoded(text: str, rules: PersonalRules, depth: int) -> Iterator[PersonalMatch]:
    """Find values in the text, in what its escaped parts say once decoded, and in blobs."""
    yield from _find_plain(text, rules)
    yield from _find_in_blobs(text, rules, depth)
    for offset, end in views.find_escaped_parts(text):
        check_stopped()
        if layers := views.decode_text(text[offset:end]):
            decoded = layers[-1].text
            for match in (*_find_plain(decoded, rules), *_find_in_blobs(decoded, rules, depth)):
                start, stop = views.map_span(layers, match.start, match.end)
                yield PersonalMatch(match.kind, offset + start, offset + stop)


def _find_in_blobs(text: str, rules: PersonalRules, depth: int) -> Iterator[PersonalMatch]:
    if depth < MAX_BLOB_DEPTH and views.has_long_run(text):
        for start, end, decoded in views.find_blobs(text):
            check_stopped()
            if match := next(_find_decoded(decoded, rules, depth + 1), None):
                yield PersonalMatch(match.kind, start, end)


def _find_plain(text: str, rules: PersonalRules) -> Iterator[PersonalMatch]:
    text = fold_characters(text)
    if "@" in text:
        yield from _find_emails(text)
    if compile_pattern(r"\d").search(text):
        lower = text.replace("\u0130", "I").lower()
        zones = find_zones(text)
        for find in NUMBER_FINDERS:
            check_stopped()
            yield from find(text, lower, zones)
        if zones and "\n" in text:
            yield from find_in_columns(text, lower, zones)
        if rules.known:
            yield from _find_known(text, rules.known)
    elif "::" in text:
        yield from find_ips(text, text.lower(), [])
    if rules.names:
        yield from _find_names(text, rules.names)
    for kind, pattern in rules.patterns.items():
        matches = compile_pattern(pattern, re.UNICODE).finditer(text)
        yield from (PersonalMatch(kind, *match.span()) for match in matches if match.end() > match.start())


# --- e-mail addresses -------------------------------------------------------------------------------------------------

_LOCAL_PATTERN = r"[\w.+%&'-]*"
_ASCII_DOMAIN_PATTERN = (
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,10}(?:[A-Za-z]{2,24}|xn--[a-z0-9-]{2,59})(?![A-Za-z0-9_-])"
)
_DOMAIN_PATTERN = r"(?:[^\W_](?:[\w-]{0,62}[^\W_])?\.){1,10}(?:[^\W\d_]{2,24}|xn--[a-z0-9-]{2,59})(?![\w-])"
# Scripts that are written without spaces: an address may stand right beside a word.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_STRING_PREFIXES = frozenset({"b", "f", "r", "u", "br", "rb", "fr", "rf"})  # of a literal: b'ada@example.com'
_QUOTED_LOCAL_PATTERN = r'"[^"\n]{1,62}"'
# What an "address" ends with when it is the name of a file: logo@2x.png.
_FILE_SUFFIXES_TEXT = (
    "avif bmp css csv gif html ico jpeg jpg js json jsx less map md mjs pdf png py scss svg toml ts tsx txt webp xml "
    "yaml yml"
)
_FILE_SUFFIXES = frozenset(_FILE_SUFFIXES_TEXT.split())
_COMMON_DOMAINS_TEXT = (
    "com org net edu gov mil int info biz name io co me app dev eu uk de fr es it nl be ch at se no dk fi pl pt ie cz "
    "gr tr ru ua za in cn jp kr tw hk sg au nz br mx ar cl ca us example test"
)
_COMMON_DOMAINS = frozenset(_COMMON_DOMAINS_TEXT.split())


def _find_emails(text: str) -> Iterator[PersonalMatch]:
    at = text.find("@")
    while at >= 0:
        local = _match_local_part(text, at)
        end = _match_domain(text, at + 1)
        if local is not None and end is not None and not _is_other_address(text, local, at, end):
            yield PersonalMatch(EMAIL, local, end)
        at = text.find("@", at + 1)


def _match_domain(text: str, start: int) -> int | None:
    """Return where the name of a host ends, without the suffix of a file: `ada@example.com.txt`."""
    last = start + MAX_DOMAIN_CHARS
    match = compile_pattern(_ASCII_DOMAIN_PATTERN).match(text, start, last)
    if match is None or compile_pattern(rf"[^\W{_UNSPACED}]|\.\w", re.U).match(text, match.end()):
        match = compile_pattern(_DOMAIN_PATTERN, re.U).match(text, start, last) or match
    if match is None:
        return None
    host, _, suffix = match[0].rpartition(".")
    if suffix.lower() in _FILE_SUFFIXES and host.rpartition(".")[2].lower() in _COMMON_DOMAINS and "." in host:
        return start + len(host)
    return match.end()


def _match_local_part(text: str, at: int) -> int | None:
    """Return where the name before an @ begins."""
    backwards = text[max(0, at - MAX_LOCAL_CHARS) : at][::-1]  # read from its end, the name is matched in one go
    if quoted := compile_pattern(_QUOTED_LOCAL_PATTERN, re.U).match(backwards):
        return at - len(quoted[0])
    match = compile_pattern(_LOCAL_PATTERN, re.U).match(backwards)
    local = match[0][::-1].lstrip(".'%&-") if match else ""
    if "&" in local:  # a query or an entity: what stands before it belongs to something else
        local = local.rpartition("&")[2]
    before, quote, rest = local.rpartition("'")
    if quote and (before.rpartition("'")[2].lower() in _STRING_PREFIXES or local.count("'") > 1):
        local = rest
    if not local.isascii() and (tail := compile_pattern(rf"[{_UNSPACED}]([A-Za-z0-9][\w.+%-]*)\Z").search(local)):
        local = tail[1]
    if not local or local.endswith((".", "'")) or ".." in local:
        return None
    return at - len(local)


def _is_other_address(text: str, start: int, at: int, end: int) -> bool:
    """Return whether user@host is an address of a machine, a version of a package or the name of a file."""
    run = compile_pattern(r"[^\s\"'<>()\[\]{},;|]*").match(text[max(0, start - 200) : start][::-1])
    before = run[0][::-1] if run else ""
    if "://" in before and "/" not in before.rpartition("://")[2] and "?" not in before:
        return True  # the user of a URL
    if text[end : end + 1] == ":" and compile_pattern(r":[\w~./-]+").match(text, end) and text[start:at] in _SSH_USERS:
        return True
    return text[at + 1 : end].rpartition(".")[2].lower() in _FILE_SUFFIXES


_SSH_USERS = frozenset({"git", "hg", "svn", "root", "ubuntu", "ec2-user", "deploy"})


# --- names and values that are known ----------------------------------------------------------------------------------


MAX_NAME_WORDS = 8
STOP_CHECK_WORDS = 10_000
_NAME_GAP_PATTERN = r"""[\s_.,'’"()&/-]{1,4}"""  # between the words of a name


def split_name(name: str) -> tuple[str, ...]:
    """Return the words of a name, as names are compared."""
    words = compile_pattern(r"[^\W_]+", re.UNICODE).findall(fold_characters(name))
    return tuple(word.casefold() for word in words[:MAX_NAME_WORDS])


def _find_names(text: str, names: frozenset[str]) -> Iterator[PersonalMatch]:
    """Find names by the words of the text: the work does not grow with the number of names."""
    keys, first_words, longest = _index_names(names)
    words = [match.span() for match in compile_pattern(r"[^\W_]+", re.UNICODE).finditer(text)]
    position = 0
    while position < len(words):
        if position % STOP_CHECK_WORDS == 0:
            check_stopped()
        start, end = words[position]
        step = 1
        if text[start:end].casefold() in first_words and text[start - 1 : start] != "_":
            for last in _list_name_ends(text, words, position, longest):
                key = tuple(text[slice(*word)].casefold() for word in words[position : last + 1])
                if key in keys and text[words[last][1] : words[last][1] + 1] != "_":
                    yield PersonalMatch(NAME, start, words[last][1])
                    step = last + 1 - position
                    break
        position += step


def _list_name_ends(text: str, words: list[tuple[int, int]], first: int, longest: int) -> list[int]:
    """Return the words with which a name may end that begins with one, the furthest first."""
    gap = compile_pattern(_NAME_GAP_PATTERN, re.UNICODE)
    ends = [first]
    for last in range(first + 1, min(first + longest, len(words))):
        if not gap.fullmatch(text, words[last - 1][1], words[last][0]):
            break
        ends.append(last)
    return ends[::-1]


@lru_cache(maxsize=16)
def _index_names(names: frozenset[str]) -> tuple[frozenset[tuple[str, ...]], frozenset[str], int]:
    keys = frozenset(key for name in names if (key := split_name(name)))
    return keys, frozenset(key[0] for key in keys), max(map(len, keys), default=0)


MAX_KNOWN_GROUPS = 8


def strip_number(value: str) -> str:
    """Return a number without its separators and leading zeros: its spellings have that in common."""
    return "".join(filter(str.isalnum, fold_characters(value))).lower().lstrip("0")


def _find_known(text: str, known: Mapping[str, str]) -> Iterator[PersonalMatch]:
    """Find numbers that stood beside a telling word elsewhere: a date of birth, a phone number."""
    if not known:
        return
    for run in compile_pattern(r"(?<![\w.])[+(]{0,2}\d[\w()./-]*(?: {1,2}\(?\d[\w()./-]*){0,30}").finditer(text):
        if run.end() - run.start() < MIN_KNOWN_CHARS:
            continue
        groups = [group.span() for group in compile_pattern(r"[^ ]+").finditer(text, *run.span())]
        first = 0
        while first < len(groups):
            first = (yield from _match_known_groups(text, groups, first, known)) or first + 1


def _match_known_groups(
    text: str, groups: list[tuple[int, int]], first: int, known: Mapping[str, str]
) -> Generator[PersonalMatch, None, int]:
    """Find the longest known number that begins with a group; return the group after it, 0 if there is none."""
    for last in range(min(len(groups), first + MAX_KNOWN_GROUPS), first, -1):
        value = text[groups[first][0] : groups[last - 1][1]].rstrip("./-()").removesuffix(".0")  # a float
        if MIN_KNOWN_CHARS - 1 <= len(value) <= MAX_KNOWN_CHARS and (kind := known.get(strip_number(value))):
            yield PersonalMatch(kind, groups[first][0], groups[first][0] + len(value))
            return last
    return 0
