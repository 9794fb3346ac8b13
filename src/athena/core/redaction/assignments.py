"""Find the values of settings, parameters and headers whose name says that they are secret: `password = ...`."""

import base64
import re
from collections.abc import Iterator
from itertools import pairwise

from athena.core.redaction.values import (
    CODE_PATTERN,
    COMMON_WORDS,
    SYMBOLS,
    SecretMatch,
    compile_pattern,
    is_dummy_value,
    looks_generated,
    looks_random,
    looks_secret,
)

# The last word of a name decides.
_SECRET_NAMES = ("password", "passwd", "passphrase", "pass", "pwd", "secret", "token", "key")
_KEY_QUALIFIERS = ("api", "access", "secret", "private", "auth", "encryption", "signing", "account", "master")
_HARMLESS_TOKEN_QUALIFIERS = (
    "page", "next", "continuation", "cursor", "starting", "request", "lock", "change", "publickey",
)  # fmt: skip
# A group that must not be tried again is atomic, `(?>(...)*)`: Python before 3.11.5 matches `(...)*+` wrongly.
_ASSIGNMENT_PATTERN = r"""
(?: _? (?: \d{1,2} | prod | production | staging | dev | test | local | old | new ) )? \\*+ (?: ["'`] \]? )?
(?: \ \[ [^\]\n]{0,24} \] (?=:) )?
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


def find_assignments(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find the values whose name says that they are secret; `lower` is the text in lower case."""
    for name in _SECRET_NAMES:
        if name in lower:
            yield from _find_assigned_values(text, lower, name)


def _find_assigned_values(text: str, lower: str, name: str) -> Iterator[SecretMatch]:
    # most uses of a name have no value; what may follow is compared here first, in the search itself
    search = compile_pattern(rf"{name}(?=[\s:=>\"'`\\_\d-]|prod|staging|dev|test|local|old|new)").search
    pattern = compile_pattern(_ASSIGNMENT_PATTERN, re.VERBOSE | re.IGNORECASE)
    use = search(lower)
    while use:
        at, after = use.span()
        kind = None if text.startswith("[SECRET:", at - 1) else _classify_name(lower, name, at)
        if kind and (match := pattern.match(text, after)):
            secret = _match_assigned_value(text, at, match, kind)
            if secret:
                yield secret
            # a rejected value may hold another name, but a long one is not scanned twice
            if secret or match.end() - after > 256:
                after = match.end()
        use = search(lower, after)


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
    if not compile_pattern(lead).search(before):
        return None
    start, end = match.span(match.lastgroup or 0)
    value, name, prose = text[start:end], text[at : match.start()], match["prose"] is not None
    # a setting must start its line within 48 characters, so that only one value of a line is read to its end
    line = before[before.rfind("\n") + 1 :] if at <= 48 or "\n" in before else "?"
    if match["bare"] is None:
        real = looks_secret(value, kind, quoted=True, prose=prose)
    elif match["sep"] == "=" and compile_pattern(r"\s*(?:(?:export|set|ENV)\s+)?[A-Z0-9_]+").fullmatch(line + name):
        # the value of a setting ends at white space
        value = compile_pattern(r"\S*").match(text, start)[0].rstrip(",;\"'")  # type: ignore[index]
        is_plain = kind in ("password", "secret") and len(value) >= 6 and value.isalnum()
        real = not is_dummy_value(value) if is_plain else looks_secret(value, kind)
    else:
        value = value.rstrip(".:)]}")
        real = looks_secret(value, kind, prose=prose) and _is_literal(text, match, value, start + len(value))
    return SecretMatch(kind, start, start + len(value)) if real else None


def _is_literal(text: str, match: re.Match[str], value: str, end: int) -> bool:
    """Return whether a bare value is no variable, type, call, or next word of a sentence."""
    is_code = compile_pattern(CODE_PATTERN, re.DOTALL).fullmatch(value) and not value.isidentifier()
    parts = [part.strip("0123456789") for part in value.lower().split("_")]
    is_name = len(parts) > 1 and not COMMON_WORDS.isdisjoint(parts)
    if is_name or (is_code and ("(" in value or not looks_random(value))) or re.search(r"=\w*[.{]|\}\)", value):
        return False
    if any(c.isdigit() or c in SYMBOLS for c in value):
        return True
    following = text[end : end + 2]
    if match["gap"]:
        return following[:1] in "\n\r\"'`|;&." or following in (" -", " |", " \\")
    if "_" in value or not value.islower() or len(value) < 6:
        return False
    if "=" in match["sep"]:
        return match["sep"] == "=" and (not following or following[0] not in ",).([")
    return following[:1] in "\n\r\"'`.,;)}]"


_HEADER_PATTERN = r"""\\*["']{0,2}\s{0,4}[:=,]\s{0,4}\\*["']?"""
_SCHEME_PATTERN = r"(?P<scheme>[A-Za-z][\w-]{1,24})[ \t]{1,4}(?![=:])"
# the parameters of a scheme such as Digest, OAuth, Hawk or AWS4-HMAC-SHA256 that hold the proof
_PROOF_PATTERN = (
    r"""(?i)(?<![\w])(?:response|signature|oauth_token|oauth_signature|oauth_verifier|mac|auth|token|password|key|sig)"""
    r"""\s?=\s?\\*["']?(?P<s>[\w.~+/%=-]{8,512})"""
)
_COOKIE_PATTERN = r"""(?P<name>[\w!#$%&*+.^|~-]{1,64})=(?P<s>[^;\s"'\\,]{1,4096})"""
_COOKIE_NAMES = (
    "sess", "sid", "auth", "token", "csrf", "xsrf", "jwt", "remember", "login", "secret", "identity", "ticket",
)  # fmt: skip
_COOKIE_ATTRIBUTES = frozenset({"path", "domain", "expires", "max-age", "samesite", "secure", "httponly", "version"})


def find_headers(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find what proves who somebody is in the headers of HTTP: Authorization of each scheme, and cookies."""
    for name in ("bearer", "basic", "authorization"):
        if name in lower:
            yield from _find_auth_headers(text, lower, name)
    if '"auth' in lower or "_auth" in lower:
        yield from _find_docker_auth(text)
    if "cookie" in lower:
        yield from _find_cookies(text, lower)


def _find_auth_headers(text: str, lower: str, name: str) -> Iterator[SecretMatch]:
    lead = _HEADER_PATTERN + f"(?:{_SCHEME_PATTERN})?" if name == "authorization" else r"[ \t:]{1,4}"
    pattern = compile_pattern(lead + r"(?P<s>[\w.~+/=:-]{8,4096}+)", re.IGNORECASE)
    at = lower.find(name)
    while at >= 0:
        after = at + len(name)
        match = pattern.match(text, after)
        is_parameter = match is not None and match["s"][-1] == "=" and text[match.end() : match.end() + 1] in ('"', "'")
        if match and not is_parameter and "=" not in match["s"].rstrip("="):
            value, start = match["s"].rstrip(".:"), match.start("s")
            in_header = name == "authorization" or "authorization" in lower[max(0, at - 24) : at]
            scheme = match["scheme"].lower() if name == "authorization" and match["scheme"] else ""
            if name == "basic" or scheme == "basic":
                if looks_random(value) or (in_header and not value[1:].islower() and not is_dummy_value(value)):
                    yield SecretMatch("basic-auth", start, start + len(value))
                    after = match.end()
            elif looks_secret(value, "secret" if in_header else "token") or (
                in_header and (looks_random(value) or _has_mixed_case(value))
            ):
                yield SecretMatch("bearer-token", start, start + len(value))
                after = match.end()
        if name == "authorization":
            line_end = text.find("\n", at, at + 2_000)
            line_end = at + 2_000 if line_end < 0 else line_end
            for proof in compile_pattern(_PROOF_PATTERN).finditer(text, after, line_end):
                if looks_secret(proof["s"], "secret"):
                    yield SecretMatch("bearer-token", *proof.span("s"))
            after = max(after, line_end if "=" in text[after:line_end] else after)
        at = lower.find(name, after)


def _has_mixed_case(value: str) -> bool:
    """Return whether a long value mixes small and capital letters, as random letters without a digit do."""
    changes = sum(first.islower() != second.islower() for first, second in pairwise(value))
    return len(value) >= 20 and changes >= len(value) // 5 and not is_dummy_value(value)


def _find_docker_auth(text: str) -> Iterator[SecretMatch]:
    """Find a user and a password in base64, as in the settings of Docker and npm."""
    pattern = compile_pattern(
        r"""(?:"auth\\*+"\s{0,4}:\s{0,4}\\*+"|_auth\s{0,4}=\s{0,4}"?)(?P<s>[A-Za-z0-9+/]{8,512}={0,2})"""
    )
    for match in pattern.finditer(text):
        try:
            pair = base64.b64decode(match["s"] + "=" * (-len(match["s"]) % 4)).decode()
        except ValueError:
            continue
        if ":" in pair and pair.isprintable():
            yield SecretMatch("basic-auth", *match.span("s"))


def _find_cookies(text: str, lower: str) -> Iterator[SecretMatch]:
    head = compile_pattern(r"""s?2?\\*["']{0,2}[ \t]{0,4}[:=, ][ \t]{0,4}\\*["']?(?=[\w!#$%&*+.^|~-]{1,64}=)""")
    at = lower.find("cookie")
    while at >= 0:
        after = at + len("cookie")
        if match := head.match(text, after):
            ends = [end for mark in "\n\"'" if (end := text.find(mark, match.end(), match.end() + 8_192)) >= 0]
            after = min(ends, default=min(len(text), match.end() + 8_192))
            for pair in compile_pattern(_COOKIE_PATTERN).finditer(text, match.end(), after):
                if _is_secret_cookie(pair["name"].lower(), pair["s"]):
                    yield SecretMatch("cookie", *pair.span("s"))
        at = lower.find("cookie", after)


def _is_secret_cookie(name: str, value: str) -> bool:
    if name in _COOKIE_ATTRIBUTES or is_dummy_value(value):
        return False
    has_digit = any(map(str.isdigit, value))
    if any(part in name for part in _COOKIE_NAMES):
        return len(value) >= 6 and (has_digit or len(value) >= 16)
    return looks_generated(value) and name.startswith(
        ("__host-", "__secure-", ".aspnet", "aws", "_oauth", "access", "refresh")
    )
