"""Find passwords and codes in sentences of many languages: a value that looks chosen, near a word for a password.

The words tell only where to look. Whether a value is a secret is decided by its characters: digits, symbols or inner
capitals, or quotes around it. A plain word is one only after "password is" or a colon.
"""

# ruff: noqa: E501, SIM905 - tables of words and patterns

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

from athena.core.redaction.prose import is_phrase
from athena.core.redaction.values import SecretMatch, compile_pattern, count_changes, is_dummy_value
from athena.core.redaction.words import (
    BLOCKING_WORDS,
    CODE_QUALIFIERS,
    CODE_WORDS,
    CONNECTORS,
    HARMLESS_CODES,
    LOGIN_WORDS,
    NUMBER_UNITS,
    PASSWORD_WORDS,
    PIN_WORDS,
    POPULAR_PASSWORDS,
    WEAK_WORDS,
    WHOLE_WORDS,
)
from athena.core.threads import check_stopped

MAX_WINDOW_CHARS = 120
MAX_NAMES = 1_000  # of one word for a password that are looked at: a text of nothing else must not take minutes
MAX_WORDS = 8
_OPENING = "\"'`“‘«„(*_[「『"
_QUOTES = frozenset("\"'`“‘«„「『*")
_SYMBOLS = frozenset("!@#$%^&*+=?~|§€£")
_CJK_PATTERN = r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_HARMLESS_PATTERN = r"""(?xi)
    v?\d+(?:\.\d+)+[\w.+-]* | \d{4}-\d\d-\d\d.* | \d{1,2}:\d\d.* | [\w.+-]+@[\w-]+\.[\w.]+ | \d+[a-z]{1,3}
  | [a-z][a-z0-9+.-]*://.* | (?:[\w.@-]+/)+[\w.#-]* | ~?/.* | (?:[\w-]+\.)+[a-z]{2,6}(?:[:/].*)? | [a-z_][\w.]*\(.*
  | [\w.-]+[\])}]*:{1,2}[\w-]+\(?\)? | [\w.]+\[.* | <.* | \$[\w{(].* | \{.* | \#\d+ | \W+ | --?[a-z].* | %.{0,12}% | @\w+
  | \w+=.* | \w+@ | (?:%[A-Za-z][-/:.,\s]?)+ | .*(?:\]\{|\\[wsdSWDbnt\[(.]|\(\?|\[\^).* | .{0,40}[(){}].*[(){}].* | (?-i:[A-Z]+(?:_[A-Z0-9]+)+) | [a-z]+(?:_[a-z]+)*_\d* | (?-i:(?:[A-Z]?[a-z]+_)+[A-Z]?[a-z]+\d?) | ![a-z_]+ | &\w+=?.* | \d+-[a-z]+ | @[\w.]+\(?\)? | .*\]\(\#.* | [0-9a-f]{7,64} | [0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}
  | (?-i:[A-Z]{1,6}-?\d{1,6}) | (?:python|node|java|utf|http|oauth|base|sha|md|ipv|k8s|es|auth|gpt|totp|u2f|[12]fa|aes|rsa
    |argon|bcrypt|scrypt|pbkdf|hs|rs|win|web|log4j|x509|pkcs|tls|ssl|fido|1password|ed25519)-?\d{0,5}(?:[.-]\w{1,8})*
  | (?:step|section|table|page|version|phase|part|user|test|line|day|week|sprint|release|issue|pr|level)[-_#]?\d+
  | \+?\d[\d\s()/.-]* | \[?secret:.* | [a-z]+(?:['’][a-z]{1,4})
"""


def find_near_words(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find values that look like a chosen secret near a word for one; `lower` is the text in lower case."""
    is_ascii, has_digit = text.isascii(), compile_pattern(r"\d").search(text) is not None
    for needs_digit, ascii_names, other_names, find in _load_finders():
        if needs_digit and not has_digit:
            continue
        patterns = [pattern for gate, stems in ascii_names if gate in lower for pattern in stems]
        if not is_ascii:
            patterns += [pattern for gate, stems in other_names if gate in lower for pattern in stems]
        for pattern in patterns:
            done = 0
            for name in islice(pattern.finditer(lower), MAX_NAMES):
                check_stopped()
                if name.start() >= done and (span := _widen_name(lower, *name.span())):
                    for match in find(text, lower, *span):
                        yield match
                        done = match.end


_Finder = Callable[[str, str, int, int], Iterator[SecretMatch]]
_Names = tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]


@cache
def _load_finders() -> tuple[tuple[bool, _Names, _Names, _Finder], ...]:
    return (
        (False, *_load_names(PASSWORD_WORDS), _find_passwords),
        (True, *_load_names(PIN_WORDS), _find_pins),
        (True, *_load_names(CODE_WORDS), _find_codes),
        (True, *_load_names(LOGIN_WORDS), _find_logins),
    )


def _load_names(words: str) -> tuple[_Names, _Names]:
    """Return the patterns of the stems, in ASCII and others, each with the shortest stem that they hold."""
    stems = words.split()
    groups: dict[str, list[re.Pattern[str]]] = {}
    for stem in sorted(stems, key=len):
        literal = stem.partition("_")[0]
        gate = next((gate for gate in groups if gate in literal), literal)
        groups.setdefault(gate, []).append(re.compile(re.escape(stem).replace("_", r"[\s_-]")))
    names = [(gate, tuple(patterns)) for gate, patterns in groups.items()]
    return tuple(row for row in names if row[0].isascii()), tuple(row for row in names if not row[0].isascii())


def _widen_name(lower: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the whole word around a name; None inside a path, a URL, an option, a variable or code."""
    if compile_pattern(_CJK_PATTERN).match(lower, end - 1):
        return start, end
    first = start
    while first > 0 and start - first < 24 and (lower[first - 1].isalpha() or lower[first - 1] == "-"):
        first -= 1
    before = lower[first - 1 : first]
    if before and before in "$./?&=@#\\_0123456789<%+":
        return None
    last = end
    while last < len(lower) and last - end < 7 and lower[last].isalpha() and not "\u3000" < lower[last] < "\ud7ff":
        last += 1
    if lower[start:end] in WHOLE_WORDS and (
        last > end or lower[last : last + 1].isalnum() or (first < start and lower[start - 1] != "-")
    ):
        return None
    if lower[last : last + 1] in ("_", "(", "[", "/", "@", "\\") or compile_pattern(r"[.-]\w").match(lower, last):
        return None
    return first, last


def _read_words(text: str, end: int) -> Iterator[tuple[int, str]]:
    """Yield the words after a name, with their positions, up to the end of the sentence."""
    line_end = text.find("\n", end, end + MAX_WINDOW_CHARS)
    stop = min(len(text), end + MAX_WINDOW_CHARS) if line_end < 0 else line_end
    # a value may stand alone in the line under its name
    if line_end >= 0 and text[end:line_end].rstrip("*_ ")[-1:] in (":", "："):
        following = compile_pattern(r"\s{1,8}\S{4,64}(?=[ \t]*(?:\n|\Z))").match(text, line_end)
        stop = following.end() if following else stop
    for i, word in enumerate(compile_pattern(r"\S+").finditer(text, end, stop)):
        if i >= MAX_WORDS or (word.end() == stop and stop < len(text) and not text[stop].isspace()):
            return
        yield word.start(), word[0]
        if (
            word[0][-1] in ".!?;"
            and compile_pattern(r".*[^\W\d_]{2}[.!?;]", re.UNICODE).fullmatch(word[0])
            and not is_chosen(word[0][:-1], 8)
        ):
            return


def _find_passwords(text: str, lower: str, start: int, end: int) -> Iterator[SecretMatch]:
    if not text.isascii() and compile_pattern(_CJK_PATTERN).match(text, end - 1):
        yield from _find_after_cjk(text, end)
        return
    line_start = text.rfind("\n", max(0, start - 80), start) + 1 or max(0, start - 80)
    yield from _find_human_passwords(text, line_start, start)
    if (match := _find_before(text, start, end)) is not None:
        yield match
        return
    if (match := _find_pronoun(text, end)) is not None:
        yield match
        return
    is_connected, passed = False, 0
    is_weak = lower[start:end] in WEAK_WORDS  # a word with other meanings
    is_token = lower[start:end] == "token"
    is_verb = lower[start:end].startswith("pass") and end - start < 7
    for at, word in _read_words(text, end):
        offset, value = _strip_marks(word)
        low = value.lower()
        if at == end and word[0] in ".;!?":  # the name ends its clause
            return
        if at == end and word == ",":
            passed = 3
            continue
        is_quoted = bool(value) and bool(_QUOTES & set(word[:offset]))
        if word in ("«", "„", "“", "»") and (phrase := _match_phrase(text, at + 2)):
            yield phrase
            return
        if not is_quoted and (low in CONNECTORS or not value):
            is_connected = (
                is_connected
                or (low in CONNECTORS and not (is_verb and low == "to"))
                or not {":", "=", "→"}.isdisjoint(word)
            )
            continue
        is_likely = not is_weak or (is_connected and (passed == 0 or not is_verb)) or is_human_password(value)
        if is_quoted and is_connected and (phrase := _match_phrase(text, at + offset)):
            yield phrase
            return
        if is_likely and _is_password(text, at + offset, value, is_connected, is_quoted, passed):
            yield SecretMatch("password", at + offset, at + offset + len(value))
            return
        if is_connected and not is_token and compile_pattern(r"[A-Za-z]+(?:_[A-Za-z]+)*_\d{2,}").fullmatch(value):
            yield SecretMatch("password", at + offset, at + offset + len(value))  # elsewhere it is a name
            return
        if low in BLOCKING_WORDS:
            return
        passed += 1
        is_connected = word[-1] in ":=→：" or (is_connected and passed < 2)


def _find_pronoun(text: str, end: int) -> SecretMatch | None:
    """Find a password that a pronoun names in the next words: "password reset done. New one: X"."""
    near = text[end : end + MAX_WINDOW_CHARS].lower()
    if not any(pronoun in near for pronoun in _PRONOUNS):
        return None
    match = compile_pattern(_PRONOUN_PATTERN).search(text, end, end + MAX_WINDOW_CHARS)
    if match and "\n" not in text[end : match.start()]:
        value = match["s"].rstrip(",;:.")
        if is_chosen(value, 6, loose=True) or value in POPULAR_PASSWORDS:
            return SecretMatch("password", match.start("s"), match.start("s") + len(value))
    return None


def _match_phrase(text: str, at: int) -> SecretMatch | None:
    """Match a passphrase of several words in quotes."""
    match = compile_pattern(r"[^\"'`“”«»„\n]{8,100}(?=[\"'`”»“])", re.UNICODE).match(text, at)
    if match and " " in match[0].strip() and is_phrase(match[0]):
        return SecretMatch("password", match.start(), match.start() + len(match[0].rstrip()))
    return None


def _strip_marks(word: str) -> tuple[int, str]:
    """Return how many opening marks a word has, and the word without marks around it."""
    opened = word.lstrip(_OPENING + ":=→：")
    offset = len(word) - len(opened)
    value = opened.rstrip(
        ",;:\"'`”’»“」』" + (")" if "(" in word[:offset] else "") + ("*" if "*" in word[:offset] else "")
    )
    if value.endswith((".", ")", "]")) and not ("(" in value or "[" in value):
        value = value.rstrip(".)]" + ("\"'`”’»" if offset else "") + ",;:")
    value = compile_pattern(r"""(?<!\\)\\*["`]|'(?=[,;)}\]])|[;,](?=\w+=)""").split(value, 1)[0]
    return offset, value.removesuffix("?") if value[:-1].isalpha() else value


def _is_password(text: str, at: int, value: str, is_connected: bool, is_quoted: bool, passed: int) -> bool:
    if value.isalpha() and (value.islower() or value.istitle()) and value not in POPULAR_PASSWORDS:
        return False
    following = text[at + len(value) : at + len(value) + 24]
    if compile_pattern(NUMBER_UNITS).match(following):
        return False
    if is_connected and is_chosen(value, 4 if is_quoted else 5, loose=True):
        return True
    if is_connected and value in POPULAR_PASSWORDS:
        is_setting = not {":", "="}.isdisjoint(text[max(0, at - 3) : at])
        return not (is_setting and is_dummy_value(value))
    if is_quoted and passed < 2 and is_chosen(value, 5, loose=True):
        return True
    if passed == 0 and is_chosen(value, 6, loose=True):
        is_last = following[:1] in ("", ",", ".", "\n", ";", ")")
        if is_last or (len(value) >= 8 and any(map(str.isdigit, value))):
            return True
    return is_chosen(value, 7) and passed < 6


def is_chosen(value: str, shortest: int, *, loose: bool = False) -> bool:
    """Return whether the characters of a value are those of a password and not those of a word, a name or code.

    A loose judgement is for a value that stands where a password is said to be.
    """
    if value.isalpha() and (value.islower() or value.istitle()):
        return False
    if not shortest <= len(value) <= 128 or is_dummy_value(value) or "[SECRET" in value:
        return False
    if compile_pattern(_HARMLESS_PATTERN).fullmatch(value):
        return False
    has_lower, has_upper = any(map(str.islower, value)), any(map(str.isupper, value))
    has_digit, has_symbol = any(map(str.isdigit, value)), not _SYMBOLS.isdisjoint(value)
    has_letter = any(map(str.isalpha, value))
    if not has_letter:
        return has_symbol and has_digit and len(value) >= 6
    if has_symbol:
        is_marked_word = value[:-1].isalpha() and value[-1] in "!?"
        return not is_marked_word and (has_digit or loose or (has_lower and has_upper and len(value) >= 8))
    changes = count_changes(value)
    parts = re.split(r"[-_.]", value)
    if loose:
        if has_digit:
            # `db-1` and `prod2` are names, `walnut-canyon-13` and `welcome1` are not
            return len(value) >= 8 or changes > 1 or (has_upper and has_lower) or not value[-1].isdigit()
        is_phrase = len(parts) > 2 and min(map(len, parts)) > 2 and "." not in value and "_" not in value
        return is_phrase or (has_upper and has_lower and changes / len(value) >= 0.3 and len(value) >= 7)
    if has_digit and has_lower and has_upper:
        return changes >= 3 or bool(re.search(r"\d[-_.]?$", value) and len(value) >= 9 and changes == 1)
    return has_digit and changes >= 3 and len(parts) == 1


def _find_after_cjk(text: str, end: int) -> Iterator[SecretMatch]:
    """Find a password after its name in a language without spaces: the next word in Latin letters."""
    match = compile_pattern(r"[^\n\x21-\x7e。，、；]{0,10}[:=]?\s{0,3}[\"'`]?(?P<s>[!-~À-ɏ]{4,64})").match(text, end)
    if match:
        value = match["s"].rstrip("\"'`,.;:)")
        if is_chosen(value, 5, loose=True) or (value.isdigit() and 4 <= len(value) <= 8):
            yield SecretMatch("password", match.start("s"), match.start("s") + len(value))


_BEFORE_PATTERN = (
    r"""(?:^|[\s("'`“«„])(?P<s>[^\s"'`“”«»„()]{5,64})["'`”»]{0,2},?\s(?:[^\W\d]{1,8}(?:['’]\s?|\s)){0,4}[("]?$"""
)

_JOINING_WORDS = CONNECTORS | frozenset(
    "as als comme como come jako som kuin ως как як olarak ca drept mint for für pour para per".split()
)
_PRONOUNS = ("it's", "it’s", "its ", "it is", "it to", "set to", "changed to", "one is", "one:")
_PRONOUN_PATTERN = r"(?i)\b(?:it['’]?s|it is|it to|set to|changed to|one is|one:)\s[\"'`]?(?P<s>[^\s\"'`]{5,64})"
_CLAUSE_END_PATTERN = (
    r"""["'`”»)]?\s*(?:[.,;!?)\n]|\Z|(?:for|when|on|to|at|in|für|pour|para|per|voor|do|na|til|för)\b)"""
)


def _find_before(text: str, start: int, end: int) -> SecretMatch | None:
    """Find a password that stands before its name: "X is the password", "nimm X als Passwort"."""
    before = text[max(0, start - 100) : start]
    before = before[before.rfind("\n") + 1 :]
    near = before.lower()
    has_pronoun = any(pronoun in near for pronoun in _PRONOUNS)
    if has_pronoun and (match := compile_pattern(_PRONOUN_PATTERN).search(before)):
        value = match["s"].rstrip(",;:.")
        if is_chosen(value, 6, loose=True) or value in POPULAR_PASSWORDS:
            at = start - len(before) + match.start("s")
            return SecretMatch("password", at, at + len(value))
    if not any(word.strip("\"'`”»(") in _JOINING_WORDS for word in near.split()[-4:]):
        return None
    match = compile_pattern(_BEFORE_PATTERN, re.UNICODE).search(before)
    if match:
        words = before[match.end("s") :].lower().split()
        if not any(word.strip(",\"'`”»(") in _JOINING_WORDS for word in words) or "," in before[match.end("s") :]:
            return None
        value = match["s"].rstrip(",;:.")
        is_end = compile_pattern(_CLAUSE_END_PATTERN, re.UNICODE).match(text, end) is not None
        if is_chosen(value, 7, loose=is_end):
            at = start - len(before) + match.start("s")
            return SecretMatch("password", at, at + len(value))
    return None


def _find_pins(text: str, lower: str, start: int, end: int) -> Iterator[SecretMatch]:
    yield from _find_number(text, end, shortest=3 if lower[start:end] in ("cvv", "cvc", "cvv2") else 4)


def _find_codes(text: str, lower: str, start: int, end: int) -> Iterator[SecretMatch]:
    before = [word.strip("\"'`(.,:").lower() for word in lower[max(0, start - 40) : start].split()][-3:]
    if not HARMLESS_CODES.isdisjoint([*before, *re.split(r"[-\s]", lower[start:end])]):
        return
    after = [word.strip("\"'`(.,:").lower() for word in lower[end : end + 40].split()][:5]
    words = {part for word in [*before, *after, lower[start:end]] for part in re.split(r"['’-]", word)}
    is_qualified = any(stem in word for word in words for stem in CODE_QUALIFIERS)
    match = _find_before_code(text, start)
    if match and (is_qualified or match.end - match.start >= 6):
        yield match
        return
    if is_qualified and (text[end - 1] in "sS" or ":" in text[end : end + 60]):
        yield from _find_code_list(text, end)
    yield from _find_number(text, end, shortest=4 if is_qualified else 6, longest=10 if is_qualified else 6)


_NUMBER_PATTERN = r"(?P<s>\d{3}[ -]\d{3}(?:[ -]\d{2,4})?|\d{4}[ -]\d{4}|\d{3,10}|(?:\d[ -]){3,7}\d)(?![\w%]|[.,:/-]\w)"


def _find_number(text: str, end: int, shortest: int, longest: int = 10) -> Iterator[SecretMatch]:
    """Find a number that is said after its name."""
    line_end = text.find("\n", end, end + 80)
    stop = min(len(text), end + 80) if line_end < 0 else line_end
    gap = compile_pattern(r"[^\d.;!?\n#/+$€&=\\]{1,60}?=?\s?[\"'`*“«(]{0,3}(?<![\w.,-])" + _NUMBER_PATTERN, re.UNICODE)
    match = gap.match(text, end, stop) or compile_pattern(r"\s?[:=：]\s{0,8}" + _NUMBER_PATTERN).match(
        text, end, end + 40
    )
    if match is None and not text.isascii():
        match = compile_pattern(r"[^\d\n\x21-\x7e。]{0,10}[:=]?\s?" + _NUMBER_PATTERN).match(text, end)
    if not match:
        return
    digits, words = re.sub(r"\D", "", match["s"]), text[end : match.start("s")].lower().split()
    words = [word.strip("\"'`(,:") for word in words]
    is_connected = (
        any(word in CONNECTORS for word in words)
        or text[end : match.start("s")].strip(" *\"'`(")[-1:] in (":=：")
        or not words
    )
    is_year = len(digits) == 4 and digits[:2] in ("19", "20") and not is_connected
    if not shortest <= len(digits) <= longest or len(set(digits)) < 2 or is_year:
        return
    if len(words) > (6 if is_connected else 3) or not BLOCKING_WORDS.isdisjoint(words):
        return
    if not HARMLESS_CODES.isdisjoint(words[-1:]):  # "cvv by text, zip 94110"
        return
    if compile_pattern(NUMBER_UNITS).match(text, match.end("s")):
        return
    yield SecretMatch("pin", *match.span("s"))


def _find_before_code(text: str, start: int) -> SecretMatch | None:
    """Find a number that stands before its name: "482913 is your code"."""
    before = text[max(0, start - 60) : start]
    match = compile_pattern(
        r"(?:^|[\s(\"'`*])(?P<s>\d{3}[ -]\d{3}|\d{4,8})[\"'`*)]{0,2}\s(?P<words>(?:[^\W\d]{1,12}\s){1,4})$", re.UNICODE
    ).search(before)
    if match and match["words"].split()[0].lower() in _JOINING_WORDS:
        at = start - len(before) + match.start("s")
        return SecretMatch("pin", at, at + len(match["s"]))
    return None


def _find_code_list(text: str, end: int) -> Iterator[SecretMatch]:
    """Find the codes of a list, in lines or with commas between."""
    head = compile_pattern(r"[^\n:]{0,40}(?::|\n)\s{0,4}").match(text, end)
    at = head.end() if head else -1
    for _ in range(24):
        item = (
            compile_pattern(
                r"(?:[-*•] |\d{1,2}[.)] )?(?P<s>(?=[a-zA-Z-]*\d)[0-9A-Za-z]{4,10}(?:[- ][0-9A-Za-z]{4,10}){0,3})[ \t]*(?:[,;]\s?|\s{1,4}|$)"
            ).match(text, at)
            if at >= 0
            else None
        )
        if not item or compile_pattern(r"(?i)(?:19|20)\d\d|[a-z]+\d?").fullmatch(item["s"]):
            return
        # a word after a blank is none of the codes
        parts = item["s"].split(" ")
        codes = [part for part in parts if any(map(str.isdigit, part))]
        yield SecretMatch("pin", item.start("s"), item.start("s") + len(" ".join(codes)))
        if codes != parts:
            return
        at = item.end()


_WITH_PATTERN = r"""(?xi)\b(?:with|as|using|mit|als|avec|con|com|met|als|med|som|z|jako|с|как)\s["'`]?(?P<user>[\w.@+-]{2,40})["'`]?
    \s(?:and|with|und|et|y|e|en|i|a|och|og|и|ja|/|mit|avec|con|com|met|med)\s["'`]?(?P<s>[^\s"'`]{6,64})"""
_PAIR_PATTERN = r"(?<![\w/:.@])(?P<user>[\w.@+\\-]{2,64})\s[/|]\s[\"'`]?(?P<s>[^\s\"'`]{6,64})"
_SAID_LOGIN_PATTERN = r"\s?(?::|=|→|is|ist|est|es|é|è)\s[\"'`]?(?P<s>[^\s\"'`]{7,64})"


def _find_logins(text: str, lower: str, start: int, end: int) -> Iterator[SecretMatch]:
    """Find a password in a line that speaks of a login: "admin / X", "user bob, X"."""
    line_start = text.rfind("\n", max(0, start - MAX_WINDOW_CHARS), start) + 1 or max(0, start - MAX_WINDOW_CHARS)
    line_end = text.find("\n", end, end + MAX_WINDOW_CHARS)
    line_end = min(len(text), end + MAX_WINDOW_CHARS) if line_end < 0 else line_end
    # the line without the words that the limit cuts
    while line_start < start and text[line_start - 1 : line_start].strip():
        line_start += 1
    while line_end > end and text[line_end : line_end + 1].strip():
        line_end -= 1
    for word in compile_pattern(r"\S{6,160}").finditer(text, line_start, line_end):
        offset, value = _strip_marks(word[0])
        pair = compile_pattern(r"(?P<user>[A-Za-z][\w.@+\\-]{1,64})[:/|](?P<s>[^/\s]{6,64})").fullmatch(value)
        if pair and not compile_pattern(r"\d+|.*[:/.(){}\[\],=].*").fullmatch(pair["s"]) and is_chosen(pair["s"], 7):
            at = word.start() + offset + pair.start("s")
            yield SecretMatch("password", at, at + len(pair["s"]))
    yield from _find_human_passwords(text, line_start, line_end)
    for match in compile_pattern(_WITH_PATTERN, re.UNICODE).finditer(text, line_start, line_end):
        value = match["s"].rstrip(",;:.)")
        if is_chosen(value, 6, loose=True) and not is_dummy_value(match["user"]):
            yield SecretMatch("password", match.start("s"), match.start("s") + len(value))
    said = compile_pattern(_SAID_LOGIN_PATTERN).match(text, end, line_end)
    for match in [*([said] if said else []), *compile_pattern(_PAIR_PATTERN).finditer(text, line_start, line_end)]:
        value = match["s"].rstrip(",;:.)")
        if is_chosen(value, 7 if match is said else 6, loose=match is not said):
            yield SecretMatch("password", match.start("s"), match.start("s") + len(value))


def _find_human_passwords(text: str, start: int, end: int) -> Iterator[SecretMatch]:
    for word in compile_pattern(r"\S{8,64}").finditer(text, start, end):
        offset, value = _strip_marks(word[0])
        if is_human_password(value):
            yield SecretMatch("password", word.start() + offset, word.start() + offset + len(value))


def is_human_password(value: str) -> bool:
    """Return whether a value is a word, a number and a symbol, as people make up passwords: `Monday2026*`."""
    return len(value) >= 8 and compile_pattern(_HUMAN_PATTERN, re.UNICODE).fullmatch(value) is not None


_HUMAN_PATTERN = r"""(?x) [A-Z][^\W\d_]{2,} (?: [!@#$%^&*?_~+=]\d{2,6} | \d{2,6}[!@#$%^&*~+=] ) [!@#$%^&*?.~]?
  | [A-Z][^\W\d_]{3,} [!#$?~*] [A-Z][^\W\d_]{2,} """
