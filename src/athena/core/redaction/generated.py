"""Find keys of unknown services: values that a machine made at random, with a prefix or beside a word for a key."""

# ruff: noqa: E501 - tables of words and patterns

import re
from collections.abc import Iterator

from athena.core.redaction.values import SecretMatch, compile_pattern, count_changes, is_dummy_value, looks_generated
from athena.core.threads import check_stopped

# A run does not begin inside another one, so that each is read once.
_RUN_PATTERN = r"(?<![A-Za-z0-9+/_.~%-])[A-Za-z0-9+][A-Za-z0-9+/_.~-]{14,1023}[A-Za-z0-9_-]={0,2}"
_PREFIX_PATTERN = r"(?P<prefix>[A-Za-z][A-Za-z0-9]{0,11}(?:[-_.:][a-z0-9]{1,8}){0,3}[-_.:])(?P<body>[\w-]{20,}={0,2})"
# what stands before the value: its name, and the sign between them
_NAME_PATTERN = (
    r"""(?P<name>[^\W\d][\w.-]{0,63})\\*["'`\]]{0,3}[ \t]{0,4}(?:=>|->|→|[:=]{1,2}|["'`][ \t]{0,2},)[ \t]{0,4}"""
    r"""\\*["'`(\[]{0,2}\Z"""
)
_BETWEEN_CHARS = " \t\\\"'`[](=>-→:,"  # of all of it but the name, which begins with none of them
_CALL_PATTERN = r"""(?:new[ ])?(?P<call>[A-Za-z_][\w.]{0,63})\([ ]?(?:["'`][\w.@:/-]{0,64}["'`],[ ]{0,2}){0,2}["'`]\Z"""
_SUBWORD_PATTERN = r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+"
_KEY_WORDS_TEXT = """
key keys apikey authkey token tokens secret secrets credential credentials creds auth authorization authtoken password
passwd pwd pass passphrase signature sig hmac webhook psk privatekey private license licence pat jwt bearer
schlüssel zugangsschlüssel geheimnis clé jeton clave llave secreto chave segredo chiave segreto sleutel geheim klucz
klíč nyckel nyckeln nøgle nøglen nøkkel nøkkelen avain ключ токен секрет anahtar anahtarı cheie cheia kulcs kulcsot
κλειδί
"""
_KEY_WORDS = frozenset(_KEY_WORDS_TEXT.split())
_CJK_KEY_WORDS = ("キー", "トークン", "密钥", "密鑰", "令牌", "키", "토큰", "비밀")
# the last word of a name that says what the value is instead
_OTHER_NAMES_TEXT = """
id ids sid sids sha sha1 sha256 sha512 md5 hash hashes digest checksum integrity etag uuid guid commit rev revision version ref
kid fingerprint thumbprint cert certificate certs path file url uri host name arn type algorithm alg size count
version date time created expires nonce salt cursor page next index prefix suffix format model user username email
challenge recipient image tag build trace span request
"""
_OTHER_NAMES = frozenset(_OTHER_NAMES_TEXT.split())
_PUBLIC_WORDS_TEXT = """
public pub publishable site sitekey öffentlichen öffentlicher öffentliche publique pública pubblica publieke primary
foreign partition sort cache dedup dedupe deduplication lookup group content lock build idempotency object row cursor page continuation known_hosts authorized
"""
PUBLIC_WORDS = frozenset(_PUBLIC_WORDS_TEXT.split())
# prefixes of names that services give to things that are no secret
_ID_PREFIXES_TEXT = """
pk pub price prod cus acct evt pi sub in ch si seti txn req msg run file asst thread org proj chatcmpl toolu call ws
id user client sha1 sha256 sha384 sha512 md5 i vpc sg subnet ami eni vol snap rtb igw arn app usr team wh cm card src
tok batch resp item step vs rzp_live rzp_test ed25519 x25519 age1 h1 go pod job task node build img ver rev commit
disk volume image container layer bucket cluster instance host server function queue topic
event order invoice payment customer product object asset chunk blob
trace span session gid uid page doc obj ref
"""
_ID_PREFIXES = frozenset(_ID_PREFIXES_TEXT.split())
_OPENINGS_OF_DATA = ("AAAA", "MII", "iVBOR", "/9j/", "R0lGOD", "PHN2", "UEsD", "age1")
_FILE_PATTERN = (
    r"(?i).*\.(?:m?[jt]sx?|css|map|png|jpe?g|gif|svg|html?|json|ya?ml|py|rb|go|rs|java|zip|t?gz|whl|jar|pdf)"
)
_CALL_WORDS = ("client", "auth", "login", "connect", "credential", "sdk", "api", "search", "init", "configure", "key")
UNKNOWN_KEY = "unknown-key"  # becomes "api-key" unless another finder knows more
MAX_WORDS_BEFORE = 6
MAX_WORDS_AFTER = 4


def find_generated_keys(text: str) -> Iterator[SecretMatch]:
    """Find values that look random, and that a prefix, a name or a word beside them calls a key."""
    for run in compile_pattern(_RUN_PATTERN).finditer(text):
        check_stopped()
        value = run[0]
        if looks_generated(value) and not _is_other_data(text, run.start(), value) and _is_key(text, run):
            yield SecretMatch(UNKNOWN_KEY, *run.span())


def find_keys_in_urls(text: str) -> Iterator[SecretMatch]:
    """Find a key that is the user of a URL, or a part of the path of a webhook."""
    at = text.find("://")
    while at >= 0:
        match = compile_pattern(r"://(?P<s>[\w.~+-]{16,255})(?::x-oauth-basic|:)?@").match(text, at)
        if match and looks_generated(match["s"]):
            yield SecretMatch("token", *match.span("s"))
        match = compile_pattern(r"://[^\s\"'<>`|]{4,300}").match(text, at)
        if match and "hook" in match[0].lower():
            for part in compile_pattern(r"(?<=[/=])[\w-]{16,255}").finditer(text, at, match.end()):
                if looks_generated(part[0]) and not compile_pattern(r"[0-9a-f-]{32,36}").fullmatch(part[0]):
                    yield SecretMatch("webhook", *part.span())
        at = text.find("://", at + 3)


def _is_other_data(text: str, start: int, value: str) -> bool:
    """Return whether a value is a public key, a picture, a file or a placeholder."""
    if value.startswith(_OPENINGS_OF_DATA) or is_dummy_value(value) or "..." in value:
        return True
    before = text[max(0, start - 8) : start].lower()
    return before.endswith(("base64,", "sha256:", "sha1:", "sha512:", "md5:", "/", "\\", "@", "%")) or (
        "." in value and compile_pattern(_FILE_PATTERN).fullmatch(value) is not None
    )


def _is_key(text: str, run: re.Match[str]) -> bool:
    start, end = run.span()
    before = text[max(0, start - 96) : start]
    line_start = before.rfind("\n", 0, len(before.rstrip())) + 1  # a value may stand alone under its name
    before = before[line_start:]
    is_hex = compile_pattern(r"[0-9a-fA-F-]+").fullmatch(run[0]) is not None
    if name := _find_name(before):
        words = _split_name(name["name"])
        previous = before[: name.start()].split()[-1:]
        if words[-2:] == ["consumer", "key"] or not PUBLIC_WORDS.isdisjoint(word.lower() for word in previous):
            return False
        if words[-3:] == ["access", "key", "id"]:
            return True
        if is_session_name(name["name"].lower()) and "=" in name[0] and not is_hex_id(run[0]):
            return "sessid" in name["name"].lower() or "cookie" in text[max(0, start - 120) : end + 40].lower()
        if words and words[-1] in _OTHER_NAMES and words[-2:] != ["secret", "id"]:
            return False
        if not PUBLIC_WORDS.isdisjoint(words):
            return False
        if not _KEY_WORDS.isdisjoint(words) or (words == ["code"] and not is_hex and before[-6:-5] in "?&"):
            return True
        if words[-1:] == ["api"] and words[:1] == ["x"]:  # a header
            return True
    if not is_hex and _has_key_prefix(run[0]):
        return True
    if name and "=" in name[0]:
        return False  # the name says what it is
    words = [word.strip("\"'`(),.:;*[]{}<>=→").lower() for word in before.split()][-MAX_WORDS_BEFORE:]
    after = text[end : end + 40].partition("\n")[0]
    if not PUBLIC_WORDS.isdisjoint(words) or not _OTHER_NAMES.isdisjoint(words[-2:]):
        return False
    if call := before.endswith(('"', "'", "`")) and compile_pattern(_CALL_PATTERN).search(before):
        is_id = compile_pattern(r"""["'`][ ]?,[ ]{0,2}["'`]""").match(text, end)  # the key comes after it
        called = call["call"].lower()
        return not is_id and (call[0].startswith("new") or any(word in called for word in _CALL_WORDS))
    if not before.isascii() and any(word in before[-24:] for word in _CJK_KEY_WORDS):
        return True
    subwords = [part for word in words for part in re.split(r"[^\w]+|_", word)]
    if is_hex:
        if subwords[-1:] == ["in"]:  # where it leaked
            return False
        return len(run[0]) >= 32 and not _KEY_WORDS.isdisjoint(subwords[-3:]) and "-" not in run[0]
    nearby = [*subwords, *(word.strip("\"'`(),.:;").lower() for word in after.split()[:MAX_WORDS_AFTER])]
    return not _KEY_WORDS.isdisjoint(nearby) and "/" not in run[0][:2]


def _find_name(before: str) -> re.Match[str] | None:
    """Find the name of a value at the end of what stands before it.

    The search begins at the word that the name has to be in: from every word before it would take as long as all else.
    """
    flags = 0 if before.isascii() else re.UNICODE
    head = before.rstrip(_BETWEEN_CHARS)
    word = compile_pattern(r"[\w.-]{1,64}", flags).match(head[::-1])
    return word and compile_pattern(_NAME_PATTERN, flags).search(before, len(head) - word.end())


def is_session_name(name: str) -> bool:
    """Return whether a name is one of those that servers give to the cookie of a session."""
    return name.replace("_", "").replace(".", "").endswith(("sessionid", "sessid", "session", "connectsid", "sid"))


def is_hex_id(value: str) -> bool:
    return compile_pattern(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch(value) is not None


def _split_name(name: str) -> list[str]:
    return [word.lower() for word in re.findall(_SUBWORD_PATTERN, name)]


def _has_key_prefix(value: str) -> bool:
    """Return whether a value has a short name before a long random part, as the keys of most services do."""
    match = compile_pattern(_PREFIX_PATTERN).fullmatch(value)
    if not match or match["prefix"][:-1].lower() in _ID_PREFIXES:
        return False
    prefix, body = match["prefix"], match["body"]
    if prefix.partition("_")[0].partition("-")[0].lower() in _ID_PREFIXES or count_changes(prefix) > 2:
        return False
    has_all = all(any(map(test, body)) for test in (str.islower, str.isupper, str.isdigit))
    return has_all and len(body) >= 24 and looks_generated(body)
