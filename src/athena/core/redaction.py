"""Find keys, tokens, private keys and passwords in texts, and replace them by `[SECRET:kind]`.

Patterns are tried only where `str.find` finds a literal (`ghp_`, `password`), so that text without one costs
microseconds. The work is linear in the text: repetitions are bounded, or no later match starts inside them.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

MAX_PASSES = 6


class SecretMatch(NamedTuple):
    """The position of a secret: `text[start:end]`."""

    kind: str
    start: int
    end: int


class RedactedText(NamedTuple):
    """A text without its secrets, and the kinds of those that were replaced, in order."""

    text: str
    kinds: tuple[str, ...]


def redact(text: str) -> RedactedText:
    """Replace each secret in the text by `[SECRET:kind]`."""
    replaced: list[SecretMatch] = []
    # A placeholder may complete a pattern with the text beside it, so we search again until nothing is found: that
    # makes redaction idempotent. The second pass is nearly always the last; the limit bounds the work.
    for _ in range(MAX_PASSES):
        matches = [match for match in _find_secrets(text) if not _is_in_placeholder(text, match.start)]
        if not matches:
            break
        text, replaced = _replace_matches(text, _merge_matches([*replaced, *matches]))
    return RedactedText(text, tuple(match.kind for match in replaced))


def find_secrets(text: str) -> list[SecretMatch]:
    """Return the positions of the secrets in the text, in order."""
    return _merge_matches(match for match in _find_secrets(text) if not _is_in_placeholder(text, match.start))


def _is_in_placeholder(text: str, at: int) -> bool:
    opening = text.rfind("[SECRET:", max(0, at - 32), at + 8)
    placeholder = _compile_pattern(r"\[SECRET:[a-z-]+\]").match(text, opening) if opening >= 0 else None
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
            kind = match.kind if last.kind in _GENERIC_TYPES else last.kind
            match = SecretMatch(kind, last.start, max(last.end, match.end))
        merged.append(match)
    return merged


def _find_secrets(text: str) -> Iterator[SecretMatch]:
    # U+0130 is the only character whose lower case is longer; without it the positions agree
    lower = text.replace("İ", "I").lower()
    for gate, patterns in _load_prefix_patterns().items():
        if _compile_pattern(gate).search(text):
            for pattern in patterns:
                yield from _find_by_trigger(text, text, *pattern)
    for pattern in _load_context_patterns():
        yield from _find_by_trigger(text, lower, *pattern)
    for name in _SECRET_NAMES:
        if name in lower:
            yield from _find_assignments(text, lower, name)
    for name in ("bearer", "basic", "authorization"):
        if name in lower:
            yield from _find_auth_headers(text, lower, name)
    if "://" in text:
        yield from _find_in_urls(text)
    if "PRIVATE KEY" in text:
        yield from _find_private_keys(text)
    if ":AA" in text:
        yield from (
            SecretMatch("telegram-token", *m.span()) for m in _compile_pattern(_TELEGRAM_TOKEN_PATTERN).finditer(text)
        )
    if _compile_pattern(r"\.[\w-]{6}\.[\w-]{27}").search(text):
        yield from (
            SecretMatch("discord-token", *m.span()) for m in _compile_pattern(_DISCORD_TOKEN_PATTERN).finditer(text)
        )


# Kind, literals that start it, the pattern after them. The group `s` is the secret, or without it the whole match.
_PREFIX_TABLE = r"""
age-key             AGE-SECRET-KEY-                 1[A-Z0-9]{40,70}+
anthropic-key       sk-ant-                         [\w-]{20,}+
aws-key             AKIA ASIA ABIA ACCA             [A-Z0-9]{16}
azure-key           AccountKey= SharedAccessKey=    (?P<s>[A-Za-z0-9+/]{40,}+={0,2})
azure-sas           sig=                            (?P<s>[\w+/%-]{40,}+={0,2})
databricks-token    dapi                            [0-9a-f]{32}(?:-\d{1,2})?
digitalocean-token  dop_v1_ doo_v1_ dor_v1_         [0-9a-f]{64}
discord-webhook     discord.com/ discordapp.com/    api/webhooks/(?P<s>\d{5,25}/[\w-]{30,}+)
docker-token        dckr_pat_ dckr_oat_             [\w-]{20,}+
github-token        ghp_ gho_ ghu_ ghs_ ghr_ github_pat_    \w{36,}+
gitlab-token        glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent-  [\w.-]{20,}+
google-api-key      AIza                            [\w-]{35}(?![\w-])
google-oauth        GOCSPX- ya29.                   [\w-]{20,}+
heroku-key          HRKU-                           [\w-]{30,}+
hugging-face-token  hf_                             [A-Za-z0-9]{30,}+
jwt                 eyJ                             [\w-]*+(?:(?<=[\w-]{12})\.[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]++){0,2})?
linear-key          lin_api_ lin_oauth_             [A-Za-z0-9]{32,}+
mailgun-key         key-                            (?<![\w-]key-)[0-9a-f]{32}
notion-token        secret_ ntn_                    [A-Za-z0-9]{40,}+
npm-token           npm_                            [A-Za-z0-9]{36,}+
onepassword-token   ops_                            eyJ[\w+/=-]{40,}+
openai-key          sk-                             (?=[A-Za-z]*\d)[A-Za-z0-9]{20,}+(?![\w-])
openai-key          sk-proj- sk-svcacct- sk-admin- sk-None- sk-or-v1-   [\w-]{20,}+
putty-key           Private-Lines   :\s\d+(?P<s>(?>(?:\s{1,2}[A-Za-z0-9+/=]++(?![:-]))+)(?:\s+Private-MAC:\s\w+)?)
pypi-token          pypi-                           AgE[\w-]{40,}+
sendgrid-key        SG.                             [\w-]{16,32}\.[\w-]{32,64}+
service-token       ATATT3 NRAK- figd_ glc_ glsa_ gsk_ r8_ sbp_ xai-       [\w=-]{27,}+
shopify-token       shpat_ shpca_ shppa_ shpss_     [0-9a-fA-F]{32,}+
slack-token         xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe. xapp-   [\w.-]{10,}+
slack-webhook       hooks.slack.com/                (?:services|workflows|triggers)/(?P<s>[\w/]{20,}+)
square-token        sq0atp- sq0csp-                 [\w-]{22,}+
square-token        EAAA                            [\w-]{60}(?![\w-])
stripe-key          sk_live_ sk_test_ rk_live_ rk_test_ whsec_      [A-Za-z0-9+/=]{10,}+
vault-token         hvs. hvb. hvr.                  [\w-]{24,}+
"""
# kind, the service's name in lower case, the secret somewhere after it on the line.
_CONTEXT_TABLE = r"""
cloudflare-token    cloudflare  (?P<s>(?=[\w-]{0,39}\d)(?![0-9a-f]{40}\b)[\w-]{40}|[0-9a-f]{37})(?!\w)
heroku-key          heroku      (?P<s>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?!\w)
mailgun-key         mailgun     (?P<s>[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8})(?!\w)
password            curl        (?:-u|--user)[\s=]["']?[^\s:"']{1,64}:(?P<s>(?!pass(?:word)?\b|[$<{*[])[^\s"']{3,})
twilio-key          twilio      (?P<s>SK[0-9a-f]{32})(?!\w)
"""
_AWS_SECRET_PATTERN = r"(?<![\w+/=-])[A-Za-z0-9+/]{40}(?![\w+/=-])"
_TELEGRAM_TOKEN_PATTERN = r"(?<!\w)\d{8,10}:AA[\w-]{33}(?![\w-])"
# The first part is a decimal id in base64, which leaves few letters possible.
_DISCORD_TOKEN_PATTERN = r"[MNO](?<![\w-].)[DTjz][AEIMQUYcgk][w-z0-5][\w-]{14,24}\.[\w-]{6}\.[\w-]{27,45}(?![\w-])"
_SecretPattern = tuple[str, str, re.Pattern[str]]


@cache
def _compile_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | flags)


@cache
def _load_prefix_patterns() -> dict[str, list[_SecretPattern]]:
    """Group the patterns by a short expression that is quick to search for and rare in prose."""
    groups: dict[str, list[_SecretPattern]] = {}
    for line in _PREFIX_TABLE.strip().splitlines():
        kind, *triggers, rest = line.split()
        for trigger in triggers:
            pattern = _compile_pattern(rf"(?<![A-Za-z0-9]){re.escape(trigger)}{rest}(?![A-Za-z0-9])")
            gate = trigger if trigger[-1].isalnum() else re.escape(trigger[-1]) + r"[\w+/=%.-]{10}"
            groups.setdefault(gate, []).append((trigger, kind, pattern))
    return groups


@cache
def _load_context_patterns() -> list[_SecretPattern]:
    rows = [line.split() for line in _CONTEXT_TABLE.strip().splitlines()]
    return [(name, kind, _compile_pattern(rf"(?i:{name})[^\n]{{0,48}}?(?<![\w-]){rest}")) for kind, name, rest in rows]


def _find_by_trigger(text: str, where: str, trigger: str, kind: str, pattern: re.Pattern[str]) -> Iterator[SecretMatch]:
    at = where.find(trigger)
    while at >= 0:
        after = at + len(trigger)
        if match := pattern.match(text, at):
            start, end = match.span("s" if "s" in pattern.groupindex else 0)
            # One repeated character is a placeholder: `ghp_xxxx`. The further parts of a JWT are optional in its
            # pattern, so that a run without them is skipped as a whole.
            if len(set(text[max(start, after) : end])) > 1 and (kind != "jwt" or "." in match[0]):
                yield SecretMatch(kind, start, end)
                if kind == "aws-key":
                    # the secret key often stands near its id
                    nearby = _compile_pattern(_AWS_SECRET_PATTERN).finditer(text, end, end + 120)
                    yield from (SecretMatch("aws-secret-key", *m.span()) for m in nearby if _looks_random(m[0]))
            after = match.end()
        at = where.find(trigger, after)


def _find_in_urls(text: str) -> Iterator[SecretMatch]:
    # a password holds no `//`, so that the matches of two `://` cannot overlap and the work stays linear
    pattern = _compile_pattern(
        r"""(?<=[A-Za-z0-9])://(?P<user>[^\s/:@"'`<>\[]{0,255}):"""
        r"""(?:(?P<s>[^\s/"'`<>]{1,512})|(?P<slashed>(?:[^\s/"'`<>@]|/(?!/)){1,512}))@(?=[^\s/@:?#])"""
    )
    at = text.find("://")
    while at >= 0:
        if match := pattern.match(text, at):
            user, password = match["user"], match["s"] or match["slashed"]
            port = _compile_pattern(r"\d{1,5}(?:[/?#].*)?").fullmatch(password)
            is_host = port and (not password.isdigit() or "." in user or user == "localhost")
            if not is_host and not _is_dummy_value(password, _PASSWORD_WORDS):
                yield SecretMatch("password", *match.span("s" if match["s"] else "slashed"))
        at = text.find("://", at + 3)


def _find_private_keys(text: str) -> Iterator[SecretMatch]:
    marker = _compile_pattern(r"-{4,5} ?(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
    # a key without its end: header lines, long base64 lines, and a shorter one that fills its line
    cut_short = _compile_pattern(
        r"(?:(?:\s|\\+[nr]){1,4}[\w-]{1,30}: [^\n\\]{1,200}(?=\n|\\)){0,6}"
        r"(?>(?:(?:\s|\\+[nr]){0,8}[A-Za-z0-9+/=]{16,}+)+)"
        r"""(?:(?:\r?\n|\\+n)[ \t]{0,8}[A-Za-z0-9+/=]{1,15}(?=[ \t]{0,8}(?:[\r\n\\"'`]|\Z)))?"""
    )
    for mark, following in pairwise([*marker.finditer(text), None]):
        if mark is None or mark[1] == "END":
            continue
        if following and following[1] == "END" and following.start() - mark.end() < 100_000:
            if _compile_pattern(r"[A-Za-z0-9+/=]{16}").search(text, mark.end(), following.start()):
                yield SecretMatch("private-key", mark.start(), following.end())
        elif body := cut_short.match(text, mark.end()):
            yield SecretMatch("private-key", mark.start(), body.end())


_GENERIC_TYPES = frozenset({"api-key", "basic-auth", "bearer-token", "password", "secret", "token"})
# The last word of a name decides.
_SECRET_NAMES = ("password", "passwd", "passphrase", "pass", "pwd", "secret", "token", "key")
_KEY_QUALIFIERS = ("api", "access", "secret", "private", "auth", "encryption", "signing", "account", "master")
_HARMLESS_TOKEN_QUALIFIERS = (
    "page",
    "next",
    "continuation",
    "cursor",
    "starting",
    "request",
    "lock",
    "change",
    "publickey",
)
_PASSWORD_WORDS = frozenset({"pass", "passwd", "password", "pw", "pwd", "token"})
# A group that must not be tried again is atomic, `(?>(...)*)`: Python before 3.11.5 matches `(...)*+` wrongly.
_ASSIGNMENT_PATTERN = r"""
(?: _? (?: \d{1,2} | prod | production | staging | dev | test | local | old | new ) )? \\*+ (?: ["'`] \]? )?
(?P<sep>
    [ \t]{0,4} (?: :[ \t]{0,4} (?:str|bytes|SecretStr|Optional|Final|Any) [\w.\[\],|\ ]{0,30}? = (?!=)
                 | => | :=? | ={1,3} ) [ \t]{0,8}
  | (?P<tag> > (?= [^<>\n]{1,512} </ ) )
  | (?P<prose> [ \t]{1,4} (?:is|was|to) [ \t:]{1,4} | [ \t]{1,4} (?=["'`]) )
  | (?P<gap> [ \t]{1,4} (?!-) )
)
(?:
    [bfru]{0,2} (?: " (?P<double> [^"\\\n]*+ (?> (?: \\. [^"\\\n]*+ )* ) ) "
                  | ' (?P<single> [^'\\\n]*+ (?> (?: \\. [^'\\\n]*+ )* ) ) '
                  | ` (?P<back> [^`\n]*+ ) ` )
  | \\*+ ["'`]? (?P<bare> [^\s"'`,;&<\\]++ (?> (?: & (?! & | [\w.-]{0,64} = ) [^\s"'`,;&<\\]++ )* ) )
)
"""
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
_COMMON_WORDS = frozenset(_COMMON_WORDS_TEXT.split())
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
_SLUG_PATTERN = r"(?:[A-Za-z]+\d{0,3}|\d{1,4})(?:[-_.:/](?:[A-Za-z]+\d{0,3}|\d{1,4}))*"
_CODE_PATTERN = r"[&*@!]?[A-Za-z_]\w*(?:(?:\.|->|::|\?\.)[A-Za-z_]\w*)*(?:[(\[].*|[{|?]\D*)?"
_SYMBOLS = frozenset("!@#$%^&*+=?~|")


def _find_assignments(text: str, lower: str, name: str) -> Iterator[SecretMatch]:
    pattern = _compile_pattern(_ASSIGNMENT_PATTERN, re.VERBOSE | re.IGNORECASE)
    at = lower.find(name)
    while at >= 0:
        after = at + len(name)
        kind = None if text.startswith("[SECRET:", at - 1) else _classify_name(lower, name, at)
        if kind and (match := pattern.match(text, after)):
            secret = _match_assigned_value(text, at, match, kind)
            if secret:
                yield secret
            # a rejected value may hold another name, but a long one is not scanned twice
            if secret or match.end() - after > 256:
                after = match.end()
        at = lower.find(name, after)


def _classify_name(lower: str, name: str, at: int) -> str | None:
    before = lower[max(0, at - 24) : at]
    if name == "pass" and not before.endswith(("_", "-", "db")):
        is_quoted = not before[-1:].isalpha() and not {'"', "'"}.isdisjoint(lower[at : at + 8])
        return "password" if is_quoted else None
    if before.endswith(":") and lower.startswith("secret:", at):  # an ARN
        return None
    before = before.rstrip("_- ")
    if name == "key":
        if before.endswith("access") and "secret" in before:
            return "aws-secret-key"
        return "private-key" if before.endswith("private") else "api-key" if before.endswith(_KEY_QUALIFIERS) else None
    if name == "token":
        if before.endswith("session") and "aws" in before:
            return "aws-session-token"
        return None if before.endswith(_HARMLESS_TOKEN_QUALIFIERS) else "token"
    return "secret" if name == "secret" else "password"


def _match_assigned_value(text: str, at: int, match: re.Match[str], kind: str) -> SecretMatch | None:
    before = text[max(0, at - 48) : at]
    lead = r"<[\w:.-]{0,40}\Z" if match["tag"] else r"(?<![\w-])--?[\w-]{0,40}\Z" if match["gap"] else ""
    if not _compile_pattern(lead).search(before):
        return None
    start, end = match.span(match.lastgroup or 0)
    value, name, prose = text[start:end], text[at : match.start()], match["prose"] is not None
    # a setting must start its line within 48 characters, so that only one value of a line is read to its end
    line = before[before.rfind("\n") + 1 :] if at <= 48 or "\n" in before else "?"
    if match["bare"] is None:
        real = _looks_secret(value, kind, quoted=True, prose=prose)
    elif match["sep"] == "=" and _compile_pattern(r"\s*(?:(?:export|set|ENV)\s+)?[A-Z0-9_]+").fullmatch(line + name):
        # the value of a setting ends at white space
        value = _compile_pattern(r"\S*").match(text, start)[0].rstrip(",;\"'")  # type: ignore[index]
        is_plain = kind in ("password", "secret") and len(value) >= 6 and value.isalnum()
        real = not _is_dummy_value(value) if is_plain else _looks_secret(value, kind)
    else:
        value = value.rstrip(".:)]}")
        real = _looks_secret(value, kind, prose=prose) and _is_literal(text, match, value, start + len(value))
    return SecretMatch(kind, start, start + len(value)) if real else None


def _is_literal(text: str, match: re.Match[str], value: str, end: int) -> bool:
    """Return whether a bare value is no variable, type, call, or next word of a sentence."""
    is_code = _compile_pattern(_CODE_PATTERN, re.DOTALL).fullmatch(value) and not value.isidentifier()
    parts = [part.strip("0123456789") for part in value.lower().split("_")]
    is_name = len(parts) > 1 and not _COMMON_WORDS.isdisjoint(parts)
    if is_name or (is_code and ("(" in value or not _looks_random(value))) or re.search(r"=\w*[.{]|\}\)", value):
        return False
    if any(c.isdigit() or c in _SYMBOLS for c in value):
        return True
    following = text[end : end + 2]
    if match["gap"]:
        return following[:1] in "\n\r\"'`|;&." or following in (" -", " |", " \\")
    if "_" in value or not value.islower() or len(value) < 6:
        return False
    if "=" in match["sep"]:
        return match["sep"] == "=" and (not following or following[0] not in ",).([")
    return following[:1] in "\n\r\"'`.,;)}]"


def _looks_secret(value: str, kind: str, *, quoted: bool = False, prose: bool = False) -> bool:
    value = value[:512]
    if _is_dummy_value(value) or (
        _compile_pattern(r"[~.]{0,2}/[\w./@-]*").fullmatch(value) and not _looks_random(value)
    ):
        return False
    digit, alpha = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    symbol = not _SYMBOLS.isdisjoint(value)
    slug = _compile_pattern(_SLUG_PATTERN).fullmatch(value)
    is_term = (slug and not value.isalnum()) or (
        not quoted and _compile_pattern(_TECHNICAL_TERM_PATTERN).fullmatch(value)
    )
    if prose and (is_term or len(value) < 6 or not (digit and alpha)):
        return False
    if kind != "password":
        shortest = {"token": 16, "private-key": 24, "aws-session-token": 16}.get(kind, 8)
        return alpha and (digit or symbol) and len(value) >= shortest and not slug and " " not in value
    if quoted and (" " in value or not (digit or symbol)):
        words = re.findall("[a-z]+", value.lower())
        return len(value) >= 6 and _COMMON_WORDS.isdisjoint(words) and not any("passw" in word for word in words)
    shortest = 4 if quoted else 5 if digit and alpha else 6 if digit or symbol else 3
    return len(value) >= shortest and not (slug and "/" in value)


def _is_dummy_value(value: str, words: frozenset[str] = _COMMON_WORDS) -> bool:
    is_word = len(set(value)) < 2 or value.lower().rstrip("=:") in words
    return is_word or _compile_pattern(_PLACEHOLDER_PATTERN).fullmatch(value[:512]) is not None


def _looks_random(value: str) -> bool:
    """Return whether a value looks random: long, with both cases and a digit."""
    return len(value) >= 16 and all(any(map(test, value)) for test in (str.islower, str.isupper, str.isdigit))


def _find_auth_headers(text: str, lower: str, name: str) -> Iterator[SecretMatch]:
    header = r"""\\*["']{0,2}\s{0,4}[:=]\s{0,4}\\*["']?(?:(?:token|apikey|api-key|bot|key)\s{1,4})?"""
    lead = header if name == "authorization" else r"[ \t:]{1,4}"
    pattern = _compile_pattern(lead + r"(?P<s>[\w.~+/=-]{8,}+)", re.IGNORECASE)
    at = lower.find(name)
    while at >= 0:
        after = at + len(name)
        if match := pattern.match(text, after):
            value, start, after = match["s"].rstrip("."), match.start("s"), match.end()
            in_header = name == "authorization" or "authorization" in lower[max(0, at - 24) : at]
            if name == "basic":
                if _looks_random(value) or (in_header and not value[1:].islower() and not _is_dummy_value(value)):
                    yield SecretMatch("basic-auth", start, start + len(value))
            elif _looks_secret(value, "secret" if in_header else "token"):
                yield SecretMatch("bearer-token", start, start + len(value))
        at = lower.find(name, after)
