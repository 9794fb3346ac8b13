"""Find passwords, PINs and tokens that somebody says in a sentence: "my password for staging is ..."."""

# ruff: noqa: E501 - tables of words and patterns

import re
from collections.abc import Iterator
from itertools import islice

from athena.core.redaction.values import SecretMatch, compile_pattern, is_common_word, is_dummy_value, is_technical_term

# A literal in lower case; names with it, each as a literal that it begins with, its rest and its kind.
_NAMES = {
    "pass": (
        ("passw", r"(?:ords?|ort|oord|d)", "password"),
        ("passphrase", "", "password"),
        ("passcode", "", "pin"),
        ("mot de passe", "", "password"),
        ("pass", "", "pass"),
    ),
    "nwort": (("kennwort", "", "password"),),
    "wacht": (("wachtwoord", "", "password"),),
    "contrase": (("contrase", "(?:ñ|n)a", "password"),),
    "senha": (("senha", "", "password"),),
    "clave": (("clave", "", "password"),),
    "hasło": (("hasło", "", "password"),),
    "пароль": (("пароль", "", "password"),),
    "密": (("密码", "", "password"), ("密碼", "", "password")),
    "パスワード": (("パスワード", "", "password"),),
    "mdp": (("mdp", "", "password"),),
    "otp": (("otp", "", "pin"),),
    "phrase": (("seed phrase", "", "phrase"), ("recovery phrase", "", "phrase"), ("secret phrase", "", "phrase")),
    "mnemonic": (("mnemonic", r"(?:\sphrase)?", "phrase"),),
    "pw": (("pw", "d?", "password"),),
    "pin": (("pin", r"(?:[\s-](?:code|number))?", "pin"),),
    "code": (("code", "", "code"),),
    "secret": (("secret", "", "secret"),),
    "token": (("token", "", "token"),),
    " key": (("key", "", "key"),),
    "cred": (("credential", "s?", "login"), ("creds", "", "login")),
    "log": (("log", r"(?:[\s-]?(?:in|on)(?:to)?)(?:\sto\s[\w.-]{1,64})?", "login"),),
    "sign in": (("sign in", r"(?:to\s[\w.-]{1,64})?", "login"),),
}
_SETTING_NAMES = frozenset({"password", "passwd", "pwd", "passphrase", "secret", "token", "key"})
_SIGNS = frozenset({":", "="})
_CODE_QUALIFIERS = (
    "door", "gate", "alarm", "access", "entry", "unlock", "security", "verification", "2fa", "mfa", "otp",
    "backup", "recovery",
    "safe", "garage", "lock", "lockbox", "sms", "login", "auth", "authentication", "one-time", "pin", "pass", "secret",
    "confirmation", "vault", "locker", "keypad", "building", "combination",
)  # fmt: skip
_KEY_QUALIFIERS = (
    "api", "access", "secret", "private", "license", "licence", "encryption", "signing", "master", "account",
    "product", "wifi", "wi-fi", "wlan", "wpa", "network", "vpn",
)  # fmt: skip
# What may stand between the name and the value. A sentence's end, a comma or a bracket ends the search.
_IS = r"""(?:['’]s(?=\s)|\s(?:is|was|are|will\sbe|should\sbe|reads|equals|becomes?|ist|lautet|war|heißt|est|était|es
    |era|é|è|to|jest|это)(?=[\s:])
    |\s?(?:=|:|→|->|=>|是|は|：)|\s[–—-](?=\s))"""
_FILLER = r"""(?:\s(?:now|still|currently|just|simply|always|actually|literally|again|both|set\sto|changed\sto
    |reset\sto|to|called|as\sfollows
    |probably|really|only|also|jetzt|immer\snoch|nun|maintenant|ahora|nu))*"""
_STATEMENT_PATTERN = rf"""(?xi)
    (?P<gap> (?: \s+ (?!is\b|was\b|ist\b|est\b|es\b|are\b) [^\s,;:!?()<>\[\]{{}}=\"`|]{{1,40}}
    | \s?\([^()\n]{{1,40}}\) ){{0,8}}? )
    (?P<is> {_IS} ) {_FILLER} \s{{0,4}}:?\s{{0,4}}
    (?P<quote>["'`“‘«*]{{0,3}}) (?P<s> [^\s"`“”»]{{3,128}} )
"""
_QUOTED_PATTERN = (
    r"""(?i)\s(?:is|was|ist|lautet|est|es)\s["“«`'](?P<s>[^"“”«»`'\s]{1,40}(?:\s[^"“”«»`'\s]{1,40}){1,12})["”»`']"""
)
_ADJACENT_PATTERN = r"""(?x) [ \t]{1,4} (?P<quote>["'`“‘«(]?) (?P<s> [^\s"'`“”»]{6,128} )"""
# "use X as the password", "X is the password"
_BEFORE_PATTERN = r"""(?xi)
    (?:^|[\s("'`“‘*]) (?P<s> [^\s"'`“”’*()]{4,128} ) ["'`”’*]{0,3} ,?\s+ (?:as|for|is|was|that['’]s|which\sis|ist|als
    |comme|como|est|es)
    \s+ (?: (?:the|your|my|our|a|its|his|her|their|new|das|dein|mein|unser|le|la|mon|el
    |het) \s+ ){0,2} (?: [\w.-]{1,24} \s+ ){0,3} $
"""
_LOGIN_PATTERN = r"""(?xi)
    (?: \s+ [\w.-]{1,40} ){0,4}? \s{0,2} (?: [:=] | \s(?:with|as|using|are|is|mit|avec|con|met) ) \s{1,4}
    (?: (?:the\s)? (?:user(?:name)?|account|login) \s+ )?
    ["'`“]? (?P<user>[\w.@+\\-]{2,64}) ["'`”]? (?: \s?[/:|]\s? | ,?\s+(?:and|with|plus|und|et|y|en) \s+ | ,\s+ | \s+ )
    (?: (?:the\s)? (?:password|pass|pw|passwort) \s+ (?:is\s+)? )?
    (?P<quote>["'`“]?) (?P<s> [^\s"'`”]{5,128} )
"""
_UNITS = r"""(?xi)\s{0,2}(?:-|%|°|characters?|chars?|letters?|digits?|bits?|bytes?|symbols?|days?|hours?|minutes?
    |mins?|seconds?|secs?|ms|s\b
    |times?|weeks?|months?|years?|attempts?|users?|tokens?|words?|of\b|per\b|and\smore|or\smore|to\s\d|zeichen|tage
    |caractères|caracteres|tekens)"""
# what is no password although it has letters and digits
_HARMLESS_PATTERN = r"""(?xi)
    [a-z_]\w*=.* | @[\w.]+\(?\)? | .*\]\(\#.* | v?\d+(?:\.\d+)+[\w.+-]* | \d{4}-\d\d-\d\d.* | \d{1,2}:\d\d.* | \d+(?:st|nd|rd|th|x|k|m|s|ms|h|d|gb|mb|kb|min|am
    |pm|px|%) | [\w.+-]+@[\w-]+\.[\w.]+
  | (?:https?|ftp|file|s3|ssh)://.* | (?:[\w.-]+/)+[\w.-]* | ~?/.* | [\w-]+\.(?:py|js|ts|json|ya?ml|toml|md|txt|env
    |cfg|ini|conf|go|rs|java|sh|com|org|net|io|dev)
  | [a-z_][\w.]*\(.* | [A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+ | [a-z]+(?:_[a-z0-9]+)+ | \w+\[.*
    | [0-9a-f]{7,40}(?<=^[0-9a-f]{7}) | <.* | \$.* | \{.*
  | (?:python|node|java|utf|http|oauth|base|sha|md|ipv|web|k8s|s3|ec2|p2p|b2b|h2|log4j|x86|arm|win|python|vue|es
    |neo4j|auth|gpt-|claude-|llama|mp|i18n|a11y|totp|u2f|fido|[12]fa|1password)[\w.-]*
  | (?:level|step|section|chapter|table|figure|item|option|page|version|phase|part|user|test|line|row|day|week|sprint
    |release|ticket|issue|pr)[-_#]?\d+
"""
# one word of letters can be a password, but rarely is: these say something of the password itself
_SAYING_WORDS_TEXT = """
about above accepted active again allowed already also always ambiguous annoying anything available awful back bad
because been before behind being below best better between blank both broken cached case changed checked cleared
complex compromised configured confidential confirmed considered correct corrupt created current cut defined deleted
deprecated different displayed done down easy either else embedded entered equal even everything exactly exposed
fine first forgotten found foreign free fresh full fully garbage gone good great guessable handled hard hardcoded
harder here identical ignored immutable important inside insecure inherited kept known lacking last later leaked
left less like limited local locked logged longer lost mine missing more most much nearly necessary neither new
nothing nowhere obsolete obvious okay old omitted once open other ours out outdated over partially passed perfectly
permanent plain plaintext pending possible posted present printed probably problematic prompted public purged ready
refreshed rejected removed renewed replaced requested resolved returned revoked right rolled rotten safe same saved
scoped secure sensitive sent separate shared shown similar simple single sometimes somewhere specified stale
standard still strong stronger stupid such sufficient supplied supported temporary terrible there too trivial tricky
typed unavailable unclear unencrypted unique unlocked unnecessary unrelated unsafe untouched unusable up useful
useless usually vague valid validated verified very viewable visible weak weaker well what whether why worthless
wrong yours abgelaufen falsch geheim gespeichert gesetzt geändert korrekt leer nicht richtig sicher ungültig
unbekannt expiré incorrect oublié incorrecta correcta verlopen onjuist verkeerd hier dort dans incorrecto
"""
_SAYING_WORDS = frozenset(_SAYING_WORDS_TEXT.split())


MAX_NAMES = 1_000  # of one name that are looked at, so that a text of nothing else does not take minutes


def find_in_prose(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find secrets that a sentence names; `lower` is the text in lower case."""
    for gate, names in _NAMES.items():
        # the names of one gate are looked for only if it is there, since a search of the text takes a while
        if gate in lower:
            for literal, rest, kind in names:
                search = compile_pattern(_build_name(literal, rest)).finditer
                for name in islice(search(lower), MAX_NAMES):
                    if said := _classify_name(lower, name.start(), kind):
                        yield from _find_said(text, *name.span(), said, is_setting=name[0] in _SETTING_NAMES)


def _build_name(literal: str, rest: str) -> str:
    """Return the pattern of a name that stands in a sentence, and is no part of a longer name, a URL or code."""
    before = rf"(?<![\w$./?&=@#\\-]{literal})" if literal.isascii() else ""
    return rf"{literal}{before}{rest}(?=[\s'’:=→：是は.,\"`*)-]|\Z)"


def _classify_name(lower: str, at: int, kind: str) -> str | None:
    if kind not in ("code", "key"):
        return kind
    before = lower[max(0, at - 24) : at].split()
    if kind == "code" and (
        match := compile_pattern(r"code (?:for|to|of) (?:the |my |our )?([\w-]{2,20})").match(lower, at)
    ):
        return "pin" if match[1] in _CODE_QUALIFIERS else None
    if not before:
        return None
    if kind == "key":
        return "api-key" if before[-1].strip("\"'`(").endswith(_KEY_QUALIFIERS) else None
    return "pin" if before[-1].strip("\"'`(-") in _CODE_QUALIFIERS else None


_PHRASE_PATTERN = (
    r"[^\n]{0,40}?(?:[:=]|\sis|\swas)\s{0,4}[\"'`]?(?P<s>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})(?![\w ])"
)
# a passphrase of plain words is one up to the end of its line or sentence, if none of them is a word of sentences
_WORDS_PATTERN = r"\s?(?:[:=]|is|was)\s{1,4}(?P<s>(?:[a-z]{3,10} ){3,9}[a-z]{3,10})(?=[.,;]?(?:\s*\n|\s*\Z|\s[A-Z]))"
_JOINING_PATTERN = (
    r"\b(?:and|but|before|after|for|from|into|the|that|with|you|our|its|has|can|may|we|\w+(?:ing|ed|ly))\b"
)
_PAIR_PATTERN = r"\s{1,2}(?P<user>[\w.@+-]{2,64})[:/](?P<s>[^\s\"'`/]{5,128})"


def _find_said(text: str, at: int, end: int, kind: str, *, is_setting: bool) -> Iterator[SecretMatch]:
    if kind == "phrase":
        match = compile_pattern(_PHRASE_PATTERN).match(text, end)
        words = match["s"].replace(",", " ").split() if match else []
        if match and sum(map(is_common_word, words)) * 4 < len(words):  # "access" and "object" are among the words
            yield SecretMatch("seed-phrase", *match.span("s"))
        return
    if kind == "login":
        if match := compile_pattern(_LOGIN_PATTERN).match(text, end) or compile_pattern(_PAIR_PATTERN).match(text, end):
            value = _strip_value(match["s"])
            if _is_strict(value, 6) and not is_dummy_value(match["user"], frozenset()):
                yield SecretMatch("password", match.start("s"), match.start("s") + len(value))
        return
    if kind == "password" and (quoted := compile_pattern(_QUOTED_PATTERN).match(text, end)):
        if is_phrase(quoted["s"]):
            yield SecretMatch(kind, *quoted.span("s"))
        return
    is_named_phrase = text[end - 6 : end].lower() == "phrase"
    words = compile_pattern(_WORDS_PATTERN).match(text, end) if is_named_phrase or kind == "password" else None
    if words and is_phrase(words["s"], strict=not is_named_phrase) and not _has_joining_word(words["s"]):
        yield SecretMatch(kind, *words.span("s"))
        return
    match = compile_pattern(_STATEMENT_PATTERN).match(text, end)
    # `password: x` and `password = x` are settings, which are judged elsewhere
    is_sign = match is not None and match["is"].strip() in _SIGNS
    if (
        match
        and match["s"][0] not in "<[{($"
        and not (is_sign and (is_setting if not match["gap"] else "=" in match["is"]))
    ):
        value = _strip_value(match["s"])
        start = match.start("s")
        if _is_said_secret(text, at, match, value, kind):
            is_word = kind == "pin" and not value.isdigit()
            yield SecretMatch("password" if is_word else _KINDS.get(kind, kind), start, start + len(value))
            return
    if kind == "pin" and (match := compile_pattern(r"[ \t]{1,4}(?P<s>\d{4,8})(?![\w.:/-]{0,8}\w)").match(text, end)):
        if text[at:end] in ("PIN", "OTP") or text[at : at + 8].lower() == "passcode":
            yield SecretMatch("pin", *match.span("s"))
    elif kind != "pin" and (match := compile_pattern(_ADJACENT_PATTERN).match(text, end)):
        value = _strip_value(match["s"])
        if (
            _is_strict(value, 8 if kind in ("password", "pass") else 16)
            and not value.isdigit()
            and ":" not in value[:-1]
        ):
            yield SecretMatch(_KINDS.get(kind, kind), match.start("s"), match.start("s") + len(value))
            return
    before = text[max(0, at - 200) : at]
    before = before[before.rfind("\n") + 1 :]
    if match := compile_pattern(_BEFORE_PATTERN).search(before):
        value = _strip_value(match["s"])
        is_pin = kind == "pin" and value.isdigit() and 4 <= len(value) <= 8
        if is_pin or _is_strict(value, 6 if kind in ("password", "pin") else 16):
            start = at - len(before) + match.start("s")
            yield SecretMatch(_KINDS.get(kind, kind), start, start + len(value))


_KINDS = {"pass": "password"}


def _has_joining_word(phrase: str) -> bool:
    return compile_pattern(_JOINING_PATTERN).search(phrase) is not None


def is_phrase(phrase: str, *, strict: bool = False) -> bool:
    """Return whether words are a passphrase, and not what somebody says about one; `strict`: none may be a usual one."""
    words = re.findall(r"[^\W\d_]+", phrase.lower())
    usual = sum(is_common_word(word) or (word in _SAYING_WORDS and word != "correct") for word in words)
    return len(words) > 2 and usual * 4 < (1 if strict else len(words)) and not is_dummy_value(phrase)


def _strip_value(value: str) -> str:
    value = value.rstrip("*#`'’\"»”") if value.rstrip("*#.").isdigit() else value.rstrip("*`'’\"»”")
    stripped = value.rstrip(".,;:!?)]}")
    # a closing mark may belong to the password: "is it!9?" loses it, "P@ss!" keeps its exclamation mark
    kept = value[: len(stripped) + 1] if value[len(stripped) : len(stripped) + 1] == "!" else stripped
    return kept.rstrip("*`'’\"»”") if "'" not in kept[:-1] else kept


def _is_said_secret(text: str, at: int, match: re.Match[str], value: str, kind: str) -> bool:
    following = text[match.start("s") + len(value) : match.start("s") + len(value) + 16]
    if compile_pattern(_UNITS).match(following):
        return False
    if kind == "pin" or (kind == "password" and value.isdigit()):
        is_number = value.isdigit() and 4 <= len(value) <= 10
        return (is_number and len(set(value)) > 1) or (not value.isdigit() and kind == "pin" and _is_strict(value, 6))
    if kind in ("token", "secret", "api-key", "pass"):
        return _is_strict(value, 8 if kind != "pass" else 6) and not value.isdigit()
    if _is_strict(value, 5 if not match["gap"] else 6):
        return True
    return not match["gap"].strip().count(" ") > 4 and _is_word_password(text, at, match, value, following)


def _is_strict(value: str, shortest: int) -> bool:
    """Return whether a word of a sentence can hardly be anything but a secret."""
    if len(value) < shortest or is_dummy_value(value) or is_technical_term(value):
        return False
    if compile_pattern(_HARMLESS_PATTERN).fullmatch(value):
        return False
    has_digit, has_letter = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    has_symbol = any(char in "!@#$%^&*+=?~" for char in value[:-1]) or (value[-1] == "!" and has_digit)
    if not has_letter:
        return has_symbol and has_digit and len(value) >= 8
    parts = re.split(r"[-_./:]", value)
    if len(parts) > 1 and not has_symbol:
        # `db-prod-1` is a name; two parts with digits, or mixed case and a digit, are a password
        numbered = sum(any(map(str.isdigit, part)) for part in parts)
        mixed = any(map(str.isupper, value)) and any(map(str.islower, value))
        if "." in value or "/" in value or ":" in value:
            return has_digit and mixed and len(value) >= 12 and numbered > 1
        return (has_digit and (mixed or numbered > 1)) or (
            len(parts) > 3 and "_" not in value and min(map(len, parts)) > 1
        )
    return (has_digit and not re.fullmatch(r"[A-Z]{1,4}-?\d{1,5}|\d+[a-z]{1,2}", value)) or has_symbol


_WORD_BEGINNINGS = ("un", "non", "not", "pass", "over", "ver")
_WORD_ENDINGS = (
    "ed", "ing", "ly", "able", "ible", "ful", "less", "ive", "ous", "ent", "ant", "ary", "al", "ic", "en", "wn", "iert",
    "lich",
)  # fmt: skip


def _is_word_password(text: str, at: int, match: re.Match[str], value: str, following: str) -> bool:
    """Return whether one word of letters is a password: after "my password is", no usual word, before a stop."""
    quoted = bool(match["quote"])
    lead = text[max(0, at - 40) : at].lower()
    words = lead.split()
    is_own = any(
        word in words[-4:]
        for word in ("my", "our", "his", "her", "your", "mein", "meine", "unser", "mon", "notre", "mi", "mijn")
    )
    is_marked = match["is"].strip() in _SIGNS
    if not value.replace("-", "").isalpha() or len(value) < (4 if quoted else 5) or (is_marked and not quoted):
        return False
    word = value.lower()
    if (
        is_common_word(value)
        or word in _SAYING_WORDS
        or word.startswith(_WORD_BEGINNINGS)
        or word.endswith(_WORD_ENDINGS)
    ):
        return False
    if quoted:
        return (is_own or not match["gap"]) and not compile_pattern(r"[a-z]+(?:_[a-z]+)+").fullmatch(value)
    return is_own and (not following or following[0] in ".,;!\n)") and value.isascii()
