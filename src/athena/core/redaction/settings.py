"""Find the values of secret settings in the syntaxes of programs and files: calls, XML, lists of pairs, tables.

One grammar serves them all: a name with a word for a secret in it, one of the separators, a value.
"""

# ruff: noqa: E501 - tables of words and patterns

import re
from collections.abc import Iterator

from athena.core.redaction.generated import PUBLIC_WORDS
from athena.core.redaction.nearby import is_chosen
from athena.core.redaction.values import SecretMatch, compile_pattern, is_dummy_value, looks_generated, looks_secret
from athena.core.threads import check_stopped

_STEMS = (
    "pass", "pwd", "secret", "token", "key", "pw", "psk", "cred", "senha", "contrase", "clave", "kennwort", "wachtwoord",
    "haslo", "heslo", "parola", "sifre", "salasana", "losenord", "signature", "securestring", "auth", "login",
)  # fmt: skip
_OTHER_STEMS = ("hasło", "şifre", "jelszó", "lösenord", "парол", "κωδικ", "パスワード", "密码", "密碼", "비밀번호")
_PASSWORD_WORDS_TEXT = """
password passwd pwd pass passphrase passcode pw rootpw bindpw userpw adminpw dbpw psk wpapsk senha contrasena contraseña
clave kennwort passwort wachtwoord haslo hasło heslo parola sifre şifre salasana losenord lösenord jelszo jelszó passord
passe mdp пароль κωδικός パスワード 密码 密碼 비밀번호 storepass keypass storepassword keypassword userpassword
dbpassword rootpassword adminpassword dbpass securestring smtppass mypassword pswd passwrd passkey
"""
_PASSWORD_WORDS = frozenset(_PASSWORD_WORDS_TEXT.split())
_KEY_WORDS_TEXT = """
secret token key apikey authtoken accesstoken secretkey accesskey privatekey clientsecret credential credentials
signature presharedkey salt apitoken apisecret appsecret authkey
"""
_KEY_WORDS = frozenset(_KEY_WORDS_TEXT.split())
# a name that ends so is about a secret, or calls for one
_OTHER_ENDINGS_TEXT = """
id sid name length len min max policy file path url uri hash hint field label type count age days expires expiry expired
reset required regex pattern strength manager provider encoder hasher validator version ref arn enabled rotation prompt
env var exists limit usage size column header location dir error input form placeholder title text message command
"""
_OTHER_ENDINGS = frozenset(_OTHER_ENDINGS_TEXT.split())
_OTHER_WORDS_TEXT = """
public publishable primary foreign partition sort cache idempotency next page cursor continuation csrf xsrf consumer get fetch
read load find has is check validate verify reset forgot delete lookup describe print log count max min hash bypass
compass passenger passed passes passing passive keyboard keyword
"""
_OTHER_WORDS = frozenset(_OTHER_WORDS_TEXT.split())
_OTHER_LEADS = (
    "public", "primary", "foreign", "publishable", "öffentlicher", "publique", "pública", "next", "page", "cache",
    "consumer",
)  # fmt: skip
_LOGIN_PATTERN = r"""(?i)\w{0,24}\s{0,2}=?\s{0,2}\(\s{0,4}["'](?P<user>[^"'\n]{1,64})["']\s{0,4},\s{0,4}["'](?P<s>[^"'\n]{4,128})["']\s{0,4}[,)]"""
_QUOTED = r"""(?:@?"(?P<{0}d>[^"\n]{{3,256}})"|@?'(?P<{0}s>[^'\n]{{3,256}})')"""
_VALUE_PATTERN = rf"""(?x)
    (?: \\*+["']? [,]? \s{{0,16}} \\*+["']? (?i:value) \\*+["']? \s{{0,4}} [:=] \s{{0,4}} (?: {_QUOTED.format("item")} | (?P<itemb>[^\s"',;<>{{}}]{{4,256}}) )
      | \\*+["'`\]]{{1,3}} \s{{0,4}} , \s{{0,4}} {_QUOTED.format("pair")}
      | \(\s{{0,4}} (?: (?:["'][^"'\n]{{0,64}}["'] | [\w.]{{1,40}}) \s{{0,2}} , \s{{0,4}} ){{0,2}} {_QUOTED.format("call")} \s{{0,4}} [,)]
      | : [ \t]{{0,4}} [|>]-? [ \t]{{0,4}} \n [ \t]{{1,16}} (?P<block>[^\s"'`,;<>|(){{}}\[\]]{{4,256}}) [ \t]{{0,8}} (?=\n|\Z)
      | \n [^\n]{{0,120}} input_value= {_QUOTED.format("input")}
      | </key> \s{{0,16}} <string> (?P<plist>[^<>\n]{{3,256}}) </
      | ["']? \s{{0,2}} > \s{{0,8}} (?: <(?:value|string)> )? (?: <!\[CDATA\[ )? (?P<tag>[^<>\n\]]{{3,256}}) (?: \]\]> )? \s{{0,8}} </
      | ["'`\])]{{0,2}} [ \t]{{0,8}} (?: => | := | -> | → | ： | [:=|] ) [ \t]{{0,8}}
        (?: {_QUOTED.format("set")} | `(?P<back>[^`\n]{{3,256}})` | (?P<bare>[^\s"'`,;<>|(){{}}\[\]]{{4,256}}) )
      | [ \t]{{1,8}} (?: {_QUOTED.format("arg")} | (?P<word>[^\s"'`,;<>|(){{}}\[\]]{{5,256}}) (?=[ \t]{{0,8}}(?:\n|\r|\Z)) )
    )
"""


def find_settings(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find the values of settings with a secret name; `lower` is the text in lower case."""
    if compile_pattern(r"""[=:>|"'\n_(→]""").search(text) is None and "pw" not in lower:
        return
    stems = [stem for stem in _STEMS if stem in lower]
    if not text.isascii():
        stems += [stem for stem in _OTHER_STEMS if stem in lower]
    for stem in stems:
        done, at = 0, lower.find(stem)
        while at >= 0:
            check_stopped()
            is_login = stem in ("auth", "login", "cred")
            pair = compile_pattern(_LOGIN_PATTERN).match(text, at) if is_login else None
            if pair and is_chosen(pair["s"], 5, loose=True):
                yield SecretMatch("password", *pair.span("s"))
            start, end = _widen_name(text, at, at + len(stem))
            kind = classify_name(text[start:end])
            match = compile_pattern(_VALUE_PATTERN, re.UNICODE).match(text, end) if kind and start >= done else None
            if match and (secret := _to_match(text, start, match, kind or "")):
                yield secret
                done = end = secret.end
            at = lower.find(stem, max(end, at + 1))


def _widen_name(text: str, start: int, end: int) -> tuple[int, int]:
    limit = max(0, start - 48)
    while start > limit and (text[start - 1].isalnum() or text[start - 1] in "_-."):
        start -= 1
    limit = min(len(text), end + 32)
    while end < limit and (text[end].isalnum() or text[end] in "_-."):
        end += 1
    while text[end - 1] in "-.":
        end -= 1
    return start, end


def classify_name(name: str) -> str | None:
    """Return what kind of secret the value of a name is: "password" or "secret"; None if it is none."""
    words = [
        word.lower()
        for part in re.split(r"[\W_\d]+", name)
        for word in re.findall(r"[A-Z]{2,}(?![a-z])|.[^A-Z]*", part)
    ]
    if not words or words[-1] in _OTHER_ENDINGS or not (_OTHER_WORDS | PUBLIC_WORDS).isdisjoint(words):
        return None
    whole = "".join(words[-2:])
    if words[-1] in _PASSWORD_WORDS or whole in _PASSWORD_WORDS or not _PASSWORD_WORDS.isdisjoint(words[-2:]):
        return "password"
    return "secret" if not _KEY_WORDS.isdisjoint([*words[-2:], whole]) else None


def is_secret_word(name: str) -> bool:
    """Return whether the last word of a name is one for a secret."""
    word = re.split(r"[\W_]|(?<=[a-z])(?=[A-Z])", name)[-1].lower()
    return word in _PASSWORD_WORDS or word in _KEY_WORDS


def _to_match(text: str, at: int, match: re.Match[str], kind: str) -> SecretMatch | None:
    group = match.lastgroup or ""
    if text[max(0, at - 24) : at].lower().rstrip("_- ").endswith(_OTHER_LEADS):
        return None
    start, end = match.span(group)
    value = text[start:end]
    if group in ("bare", "word", "itemb", "block"):
        value = value.rstrip(".:")
        value = compile_pattern(r"&[\w.-]{1,40}=").split(value)[0]
    if group[:4] in ("pair", "call") and not is_secret_word(text[at : match.start()]):
        return None
    if is_dummy_value(value) or compile_pattern(r"[\w.]+\(.*|[\w-]+\.[\w.-]*[a-z]{3,}").fullmatch(value):
        return None
    if group in ("word", "argd", "args"):
        # a directive begins its line; the first word of a quoted argument may follow an option or a command
        line = text[max(0, at - 40) : at]
        is_first = not line[line.rfind("\n") + 1 :].strip(" \t+>$-")
        is_named = is_first and is_chosen(value, 5, loose=True)
        if not is_named and not (group != "word" and is_chosen(value, 5, loose=True)):
            return None
        return SecretMatch(kind, start, start + len(value)) if kind == "password" or looks_generated(value) else None
    if kind == "password":
        is_bare = group in ("bare", "itemb", "block")
        is_item = group in ("paird", "pairs")  # a list of words has the form of pairs
        real = is_chosen(value, 4, loose=True) if is_bare or is_item else looks_secret(value, kind, quoted=True)
    else:
        real = looks_generated(value) or (group != "bare" and looks_secret(value, kind) and is_chosen(value, 8))
    return SecretMatch(kind, start, start + len(value)) if real else None
