"""Find keys, tokens, private keys and passwords in texts, and replace them by `[SECRET:kind]`.

Secrets are looked for in the text and in what it says once decoded: without the escapes of JSON, URLs and HTML, without
colour codes and invisible characters, and inside base64 and hex. Patterns are tried only where `str.find` finds a
literal (`ghp_`, `password`), so that text without one costs microseconds. The work is linear in the text: repetitions
are bounded, or no later match starts inside them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import Any, NamedTuple

from athena.core.redaction import views
from athena.core.redaction.assignments import find_assignments, find_headers
from athena.core.redaction.commands import find_in_commands
from athena.core.redaction.generated import UNKNOWN_KEY, find_generated_keys
from athena.core.redaction.keys import find_keys
from athena.core.redaction.nearby import find_near_words
from athena.core.redaction.prose import find_in_prose
from athena.core.redaction.settings import find_settings
from athena.core.redaction.tables import find_below_names
from athena.core.redaction.values import SecretMatch, compile_pattern
from athena.core.threads import check_stopped

__all__ = ["RedactedText", "SecretMatch", "find_secrets", "redact", "redact_field", "redact_json"]

MAX_PASSES = 6
MAX_CLEAN_CHARS = 200
MAX_CLEAN_TEXTS = 4_096
MIN_LONG_CHARS = 2_000  # a shorter text is searched in less than a millisecond
MAX_BLOB_DEPTH = 2  # base64 inside base64
MAX_JOINED_CHARS = 512  # of each text, where all texts of a value are searched together
MAX_LABEL_CHARS = 60  # of the names that lead to a number
MAX_SECRET_NUMBER = 10**18
_PLAIN_CHARS = str.maketrans({'"': "'", "\\": "/", **{chr(code): " " for code in range(32)}})  # text inside quotes
_FIELD_RANKS = {"name": 1, "key": 1, "variable": 1, "value": 2}
GENERIC_KINDS = frozenset({"api-key", "basic-auth", "bearer-token", "cookie", "password", "pin", "secret", "token"})


_clean_texts: set[str] = set()  # the last short texts without a secret: names and questions come again and again


class RedactedText(NamedTuple):
    """A text without its secrets, and the kinds of those that were replaced, in order."""

    text: str
    kinds: tuple[str, ...]


def redact(text: str) -> RedactedText:
    """Replace each secret in the text by `[SECRET:kind]`."""
    if text in _clean_texts:
        return RedactedText(text, ())
    replaced: list[SecretMatch] = []
    # A placeholder may complete a pattern with the text beside it, so we search again until nothing is found: that
    # makes redaction idempotent. The second pass is nearly always the last; the limit bounds the work, and the last
    # pass takes whole runs of characters: what is left of one could hold another key.
    for number in range(MAX_PASSES):
        matches = find_secrets(text)
        if not matches:
            break
        if number == MAX_PASSES - 1:
            matches = [_widen_match(text, match) for match in matches]
        text, replaced = _replace_matches(text, _merge_matches([*replaced, *matches]))
    if not replaced and len(text) <= MAX_CLEAN_CHARS:
        if len(_clean_texts) >= MAX_CLEAN_TEXTS:
            _clean_texts.clear()
        _clean_texts.add(text)
    return RedactedText(text, tuple(match.kind for match in replaced))


def _widen_match(text: str, match: SecretMatch) -> SecretMatch:
    run = compile_pattern(r"[\w+/=-]*").match(text, match.end)
    return match._replace(end=run.end() if run else match.end)


def redact_json(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Redact every text inside a JSON value, keys included; return it with the kinds of the secrets.

    Each text is searched alone, then all of them as the one text that they are to a reader: a name may stand in another
    field than its secret, and a number may be one.
    """
    safe, kinds = _redact_parts(value)
    for _ in range(MAX_PASSES if isinstance(safe, dict | list) else 0):
        replaced = _redact_together(safe)
        if not replaced:
            break
        kinds += replaced
    return safe, kinds


def _redact_parts(value: Any) -> tuple[Any, tuple[str, ...]]:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        fields = [redact_field(key, item) for key, item in value.items()]
        return {key: item for key, item, _ in fields}, tuple(kind for *_, kinds in fields for kind in kinds)
    if isinstance(value, list):
        items = [_redact_parts(item) for item in value]
        return [item for item, _ in items], tuple(kind for _, kinds in items for kind in kinds)
    return value, ()


class _Piece(NamedTuple):
    """A part of the JSON of a value; of a text or number in it also what holds it, and the names that lead to it."""

    text: str
    holder: Any = None
    name: Any = None
    label: str = ""


def _redact_together(value: Any) -> tuple[str, ...]:
    """Replace, in place, what the texts and numbers of a value hold of the secrets in its JSON; return the kinds."""
    pieces: list[_Piece] = []
    _write_value(value, pieces)
    starts = [0, *accumulate(len(piece.text) for piece in pieces)]
    kinds = []
    for kind, first, last in reversed(find_secrets("".join(piece.text for piece in pieces))):  # earlier positions stay
        for number in range(bisect_right(starts, first) - 1, bisect_left(starts, last)):
            text, holder, name, label = pieces[number]
            value = None if holder is None else holder[name]
            start, end = max(first - starts[number], 0), min(last - starts[number], len(text))
            if isinstance(value, str) and start < end:
                holder[name] = f"{value[:start]}[SECRET:{kind}]{value[end:]}"
                kinds.append(kind)
            # of a number its names must say so, too: ids stand beside many words
            elif value is not None and end - start == len(text) and redact(f'"{label}": {text}').kinds:
                holder[name] = f"[SECRET:{kind}]"
                kinds.append(kind)
    return tuple(reversed(kinds))


def _write_value(value: Any, pieces: list[_Piece], holder: Any = None, name: Any = None, label: str = "") -> None:
    """Write a value as JSON, each text in as many characters as it has, and a name just before its value."""
    write = pieces.append
    if isinstance(value, dict):
        named, lead = "", "{"
        for key, item in sorted(value.items(), key=lambda field: _FIELD_RANKS.get(field[0].lower(), 0)):
            rank = _FIELD_RANKS.get(key.lower())
            named = item if rank == 1 and isinstance(item, str) else named
            write(_Piece(f'{lead}"{key.translate(_PLAIN_CHARS)}": '))
            lead = ", "
            own = f"{label} {(named if rank == 2 else key)[-MAX_LABEL_CHARS:]}"
            _write_value(item, pieces, value, key, own[-MAX_LABEL_CHARS:].strip())
        write(_Piece("}"))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            write(_Piece(", " if number else "["))
            _write_value(item, pieces, value, number, label)
        write(_Piece("]"))
    elif isinstance(value, str):
        write(_Piece('"'))
        write(_Piece(value[:MAX_JOINED_CHARS].translate(_PLAIN_CHARS), holder, name, label))
        write(_Piece('"'))
    elif isinstance(value, bool | None) or abs(value) > MAX_SECRET_NUMBER:
        write(_Piece("null"))
    else:
        write(_Piece(str(value), holder, name, label))


def redact_field(key: str, value: Any) -> tuple[str, Any, tuple[str, ...]]:
    """Redact a key and its value, also a value that is a secret only because of its key, such as `password`."""
    (safe_key, key_kinds), (safe_value, kinds) = redact(key), _redact_parts(value)
    if isinstance(value, str) and not key_kinds and not kinds:
        kinds = redact(f'{key}="{value}"').kinds[:1]
        safe_value = f"[SECRET:{kinds[0]}]" if kinds else safe_value
    return safe_key, safe_value, (*key_kinds, *kinds)


def find_secrets(text: str) -> list[SecretMatch]:
    """Return the positions of the secrets in the text, in order and apart from each other."""
    matches = [match for match in _find_decoded(text, 0) if not _is_in_placeholder(text, match.start)]
    known = _merge_matches(match for match in matches if match.kind != UNKNOWN_KEY)
    keys = [SecretMatch("api-key", *match[1:]) for match in matches if match.kind == UNKNOWN_KEY]
    if not keys:
        return known
    # a key of unknown form counts only where nothing better is known, since its ends are less sure
    starts = [match.start for match in known]
    return _merge_matches([*known, *(key for key in keys if not _is_mostly_covered(key, known, starts))])


def _is_mostly_covered(key: SecretMatch, known: list[SecretMatch], starts: list[int]) -> bool:
    last = known[max(0, bisect_left(starts, key.end) - 1)] if known else None
    return last is not None and min(last.end, key.end) - max(last.start, key.start) > (key.end - key.start) / 2


def _find_decoded(text: str, depth: int) -> Iterator[SecretMatch]:
    """Find secrets in the text, in what its escaped parts say once decoded, and in blobs."""
    for match in _find_plain(text):
        yield _end_before_escape(text, match)
    yield from _find_in_blobs(text, depth)
    for offset, end in views.find_escaped_parts(text):
        if layers := views.decode_text(text[offset:end]):
            decoded = layers[-1].text
            for match in chain(_find_plain(decoded), _find_in_blobs(decoded, depth)):
                start, stop = views.map_span(layers, match.start, match.end)
                yield SecretMatch(match.kind, offset + start, offset + stop)


def _end_before_escape(text: str, match: SecretMatch) -> SecretMatch:
    """Let a secret end before an escaped line end, tab or quote: what follows is other text, and JSON stays JSON."""
    if match.kind == "private-key" or "\\" not in text[match.start : match.end + 1]:
        return match
    escape = compile_pattern(r"\\[nrt\"']").search(text, match.start, match.end + 1)
    value = text[match.start : escape.start()].rstrip("\\") if escape else ""
    return SecretMatch(match.kind, match.start, match.start + len(value)) if value else match


def _find_in_blobs(text: str, depth: int) -> Iterator[SecretMatch]:
    if depth < MAX_BLOB_DEPTH:
        for start, end, decoded in views.find_blobs(text):
            check_stopped()
            if match := next(_find_decoded(decoded, depth + 1), None):
                yield SecretMatch("api-key" if match.kind == UNKNOWN_KEY else match.kind, start, end)


def _find_plain(text: str) -> Iterator[SecretMatch]:
    # U+0130 is the only character whose lower case is longer; without it the positions agree
    lower = text.replace("\u0130", "I").lower()
    is_long = len(text) >= MIN_LONG_CHARS
    for find in (
        find_keys,
        find_headers,
        find_assignments,
        find_in_commands,
        find_in_prose,
        find_near_words,
        find_settings,
        find_below_names,
    ):
        if is_long:
            check_stopped()  # the search of a long text takes seconds
        for match in find(text, lower):
            check_stopped()
            yield match
    if views.has_long_run(text):
        yield from find_generated_keys(text)


def _is_in_placeholder(text: str, at: int) -> bool:
    opening = text.rfind("[SECRET:", max(0, at - 32), at + 8)
    placeholder = compile_pattern(r"\[SECRET:[a-z-]+\]").match(text, opening) if opening >= 0 else None
    return placeholder is not None and placeholder.end() > at


def _replace_matches(text: str, matches: list[SecretMatch]) -> tuple[str, list[SecretMatch]]:
    """Return the text with placeholders, and their positions in it."""
    pieces, replaced, length, done = [], [], 0, 0
    for kind, start, end in matches:
        placeholder = f"[SECRET:{kind}]"
        pieces += [text[done:start], placeholder]
        length += start - done
        replaced.append(SecretMatch(kind, length, length + len(placeholder)))
        length, done = replaced[-1].end, end
    return "".join([*pieces, text[done:]]), replaced


def _merge_matches(matches: Iterable[SecretMatch]) -> list[SecretMatch]:
    """Join matches that overlap, so that no part of either survives; a specific kind names the whole."""
    merged: list[SecretMatch] = []
    for match in sorted(matches, key=lambda match: (match.start, -match.end)):
        if merged and match.start < merged[-1].end:
            last = merged.pop()
            is_less_precise = last.kind in GENERIC_KINDS and match.kind not in GENERIC_KINDS
            kind = match.kind if is_less_precise else last.kind
            match = SecretMatch(kind, last.start, max(last.end, match.end))
        merged.append(match)
    return merged
