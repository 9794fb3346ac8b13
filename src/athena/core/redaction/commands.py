"""Find passwords in command lines, and in files such as `.netrc`, `.pgpass` and `my.cnf`."""

import re
from collections.abc import Iterator
from functools import cache

from athena.core.redaction.values import SecretMatch, compile_pattern, is_dummy_value

# The command in lower case, and the option before the password.
_OPTION_TABLE = r"""
mysql               -p
mariadb             -p
login               -p[ =]{1,4}
sshpass             -p[ ]{0,4}
mongo               -p[ =]{1,4}
7z                  -p
unrar               -p
psexec              -p[ ]{1,4}
openssl             -(?:pass|passin|passout)[ ]{1,4}["']?pass:
zip                 -P[ ]{0,4}
sqlcmd              -P[ ]{0,4}
ipmitool            -P[ ]{0,4}
openssl             -[kK][ ]{1,4}
redis-cli           -a[ ]{1,4}
redis-cli           --pass[ ]{1,4}
http                (?:-a|--auth)[ =]{1,4}["']?[^\s:"']{1,64}:
curl                (?:-u|--user|--proxy-user|-U)[ =]{0,4}["']?[^\s:"']{1,64}:
curl                (?:-b|--cookie)[ ]{1,4}["']?[\w.-]{1,64}=
lftp                -u[ ]{1,4}["']?[^\s,"']{1,64},
smbclient           -U[ ]{1,4}["']?[^\s%"']{1,64}%
mosquitto           -P[ ]{0,4}
bcp                 -P[ ]{0,4}
isql                -P[ ]{0,4}
snmp                -[AX][ ]{0,4}
useradd             -p[ ]{1,4}
usermod             -p[ ]{1,4}
cqlsh               -p[ ]{0,4}
dump                -p[ =]?
restore             -p[ =]?
import              -p[ =]{1,4}
export              -p[ =]{1,4}
admin               -p[ =]?
plink               -pw[ ]{1,4}
pscp                -pw[ ]{1,4}
putty               -pw[ ]{1,4}
psftp               -pw[ ]{1,4}
winscp              -pw[ ]{1,4}
keytool             -(?:store|key|srcstore|deststore|srckey|destkey)pass[ ]{1,4}
jarsigner           -(?:store|key)pass[ ]{1,4}
evil-winrm          -p[ ]{1,4}
crackmapexec        -p[ ]{1,4}
netexec             -p[ ]{1,4}
nxc                 -p[ ]{1,4}
hydra               -p[ ]{1,4}
smbmap              -p[ ]{1,4}
rar                 -h?p
az                  -p[ ]{1,4}
ansible             -e[ ]["']?\w*pass\w*=
wget                --(?:http-|ftp-|proxy-)?password[ =]
cifs                -o[ ]\S{0,80}password=
secret              --(?:body|secret-string|value|data|plaintext)[ =]
parameter           --value[ =]
secret              -b[ ]{0,2}
ldap                -w[ ]{1,4}
generic-password    -w[ ]{1,4}
gpg                 --passphrase[ =]{1,4}
jenkins             -auth[ =]{1,4}["']?[^\s:"']{1,64}:
"""
# A gate, a literal in lower case, and what stands between it and the password; ~ in them is a space.
_PHRASE_TABLE = r"""
pass            htpasswd            [ ]{1,4}(?:-[A-Za-z]+[ ]+){0,6}-[A-Za-z]*b[A-Za-z]*[ ]+(?:[^\s-]\S*[ ]+){1,2}(?=\S+[ ]*(?:[\n|;&`"')]|\Z))
pass            nmcli               [^\n|;&]{1,160}?[ ]password[ ]{1,4}
pass            wpa_passphrase      [ ]{1,4}(?:"[^"\n]{1,32}"|\S{1,32})[ ]{1,4}
pass            requirepass         [ ]{1,4}
pass            change_password     [ ]{1,4}[\w.@-]{1,64}[ ]{1,4}(?!as\b|to\b|with\b)
pass            machine             \s{1,4}\S{1,255}\s{1,8}(?:(?:login|account)\s{1,4}\S{1,255}\s{1,8}){0,2}password\s{1,4}
pass            default             \s{1,8}login\s{1,4}\S{1,255}\s{1,8}password\s{1,4}
psk             psk                 [ ]{0,4}=[ ]{0,4}
/p:             freerdp             [^\n|;&]{1,160}?[ ]/p:
/user:          net~use             [ ][^\n]{1,120}?/user:\S{1,64}[ ]{1,4}
/user:          net~use             [ ](?:[A-Za-z*]:?[ ]{1,4})?\\\\[^\s\\]{1,80}\\\S{1,120}[ ]{1,4}(?=[^\s/]\S{2,127}[ ]{1,4}/user:)
http-basic      http-basic          \.\S{1,120}[ ]{1,4}[^\s-]\S{0,64}[ ]{1,4}
pass            --password-command  [ =]{1,4}["']?(?:echo|printf)[ ]{1,4}(?:-n[ ]{1,4})?
pass            set~password~for    [ ][^\n=]{1,80}=[ ]{0,4}(?:PASSWORD\()?
net~user        net~user            [ ][\w.-]{1,64}[ ]{1,4}(?!/)
masterauth      masterauth          [ ]{1,4}
add_user        add_user            [ ]{1,4}[\w.@-]{1,64}[ ]{1,4}(?!as\b|to\b|with\b)
--from-literal  --from-literal      [= ]["']?[\w.-]*(?:pass|secret|token|key|pwd)[\w.-]*=
jdbc:oracle     jdbc:oracle:thin:   [\w$#]{1,64}/(?=[^\s@]{1,128}@)
identified~by   identified~by       [ ]{1,4}(?:password[ ]{1,4})?(?=["'])
sqlplus         sqlplus             [ ]{1,4}(?:-\w+[ ]){0,3}["']?[\w$#.-]{1,64}/
rclone          rclone~obscure      [ ]{1,4}
unlock          bw~unlock           [ ]{1,4}
vault           vault~login         [ ]{1,4}(?:-\S+[ ]){0,4}
://             npm~config~set      [ ]\S{1,120}_(?:authToken|password)[ =]
wpa_            wpa_key_mgmt        [^\n]{0,80}psk=
secrets~set     secrets~set         [ ]["']?[A-Za-z_]\w{0,60}["']?=
secrets~set     secrets~set         [ ]["']?[\w.:-]*(?:pass|secret|token|key|pwd)[\w.:-]*["']?[ =]
|~              printf              [ ]{1,4}(?:["']?%s(?:\\n)?["']?[ ])?(?=["']?[^\s|]{3,128}[ ]{0,4}\|[ ]{0,4}\w{2,12}[ ][^\n]{0,60}(?:password-stdin|with-token|pass-stdin|-passin|--passphrase-fd|-S\b|--stdin))
btoa            btoa                \([ ]?b?["'][^\s:"']{1,64}:(?=[^"']{4,128}["'])
b64encode       b64encode           \([ ]?b?["'][^\s:"']{1,64}:(?=[^"']{4,128}["'])
base64          echo                [ ]{1,4}(?:-n[ ])?["']?[^\s:"'|]{1,64}:(?=[^\s|"']{3,128}["']?[ ]{0,4}\|[ ]{0,4}base64)
base64          echo                [ ]{1,4}(?:-n[ ])?(?=["']?(?=[^\s|]{0,127}\d)(?=[^\s|]{0,127}[A-Za-z])[^\s|"':]{6,128}["']?[ ]{0,4}\|[ ]{0,4}base64(?![ ]{1,4}(?:-d|-D|--decode)))
|~sudo          echo                [ ]{1,4}(?:-n[ ])?(?=[^\s|]{3,128}[ ]{0,4}\|[ ]{0,4}sudo[ ](?:-\w+[ ]){0,2}-\w*S)
|~              echo                [ ]{1,4}(?:-n[ ])?(?=[^\s|]{3,128}[ ]{0,4}\|[ ]{0,4}\w{2,12}[ ][^\n]{0,60}(?:password-stdin|with-token))
set             setenv              [ ]{1,4}\w{0,40}(?i:pass(?:word|wd|phrase)?|secret|token|(?:api|access|secret|private)_?key|_pwd)[ ]{1,4}(?![~./$])
set             setx                [ ]{1,4}(?:/\w[ ])?\w{0,40}(?i:pass(?:word|wd|phrase)?|secret|token|(?:api|access|secret|private)_?key|_pwd)[ ]{1,4}(?![~./$])
set             set~-               [a-zA-Z]{1,4}[ ]{1,4}\w{0,40}(?i:pass(?:word|wd|phrase)?|secret|token|(?:api|access|secret|private)_?key|_pwd)[ ]{1,4}(?![~./$])
pass            echo                [ ]{1,4}(?:-n[ ])?(?=[^\s|]{3,128}[ ]{0,4}\|[ ]{0,4}(?:sudo[ ])?passwd[ ])
pass            echo                [ ]{1,4}(?:-n[ ])?["']?[^\s:"'|]{1,64}:(?=[^\s|"']{3,128}["']?[ ]{0,4}\|[ ]{0,4}(?:sudo[ ])?chpasswd)
"""  # noqa: E501
# programs that read a password from a here-string
_READERS = ("cryptsetup", "passw", "kinit", "gpg", "login", "openssl", "sudo -s", "secret", "vault", "unlock", "token")
_HERE_STRING_PATTERN = (
    r"""<<<[ ]{0,4}(?:"(?P<double>[^"\n]{4,256})"|'(?P<single>[^'\n]{4,256})'|(?P<bare>[^\s"'`|;&<>()]{4,256}))"""
)
MAX_COMMAND_CHARS = 240  # before an option
_VALUE_PATTERN = r"""(?:"(?P<double>[^"\n]{1,256})"|'(?P<single>[^'\n]{1,256})'|(?P<bare>[^\s"'`|;&<>()]{1,256}))"""
_WORDS_TEXT = "a an and argument by flag for in is option or parameter switch the to with"
_WORDS = frozenset(_WORDS_TEXT.split())
# Fields with a colon between: host, port, database, user, password. The host has a letter, a dot or is `*`.
_PGPASS_PATTERN = (
    r"(?m)^(?P<host>[\w.*-]{1,255}):(?:\*|\d{2,5}):[\w.*-]{1,63}:[\w.@*-]{1,63}:(?P<s>(?:\\.|[^\s:\\]){3,128})$"
)
_INI_SECTION_PATTERN = r"(?m)^\[(?:client|mysql|mysqldump|mysqladmin|mariadb)[\w-]*\]$"
_INI_PASSWORD_PATTERN = (
    r"""(?mi)^\s{0,8}(?:password|pass)[ \t]{0,4}=[ \t]{0,4}"""
    r"""(?P<quote>["']?)(?P<s>[^\s"'#]{1,128})(?P=quote)[ \t]*(?:\#.*)?$"""
)


@cache
def _load_options() -> tuple[tuple[str, re.Pattern[str]], ...]:
    rows = [line.split(None, 1) for line in _OPTION_TABLE.strip().splitlines()]
    return tuple((name, compile_pattern(option + _VALUE_PATTERN)) for name, option in rows)


@cache
def _load_phrases() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    phrases: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for line in _PHRASE_TABLE.strip().splitlines():
        gate, name, rest = (part.replace("~", " ") for part in line.split(None, 2))
        pattern = compile_pattern(f"(?i:{re.escape(name)}){rest}{_VALUE_PATTERN}")
        phrases.setdefault(gate, []).append((name, pattern))
    return phrases


def find_in_commands(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find passwords in command lines and in files of passwords."""
    if " -" in text:
        yield from _find_options(text, lower)
    if "'-" in text or '"-' in text:
        yield from _find_in_argument_lists(text, lower)
    for gate, phrases in _load_phrases().items():
        for name, pattern in phrases if gate in lower else ():
            at = lower.find(name)
            while at >= 0:
                match = pattern.match(text, at)
                if match and (secret := _to_match(text, match)):
                    yield secret
                at = lower.find(name, match.end() if match else at + len(name))
    yield from _find_in_files(text, lower)


def _find_options(text: str, lower: str) -> Iterator[SecretMatch]:
    done, options = 0, _load_options()
    dashes = list(
        compile_pattern(
            r" -(?=[pPuUawkKbAXhseo]|-(?:pass|auth|user|proxy|cookie|body|secret|value|data|plain|http|ftp))"
        ).finditer(text)
    )
    if len(dashes) > len(text) // MAX_COMMAND_CHARS:  # one look for each command takes less than many
        options = tuple((name, pattern) for name, pattern in options if name in lower)
    for dash in dashes:
        at = dash.end() - 1
        if at < done:
            continue
        # the command stands before its options, on the same line and after the last one
        start = max(0, at - MAX_COMMAND_CHARS)
        command = lower[max(start, *(lower.rfind(mark, start, at) for mark in ("\n", "|", ";", "&"))) : at]
        for name, pattern in options:
            if name in command and (match := pattern.match(text, at)) and (secret := _to_match(text, match)):
                yield secret
                done = secret.end


_MARKS = str.maketrans("\"',", "   ")


def _find_in_argument_lists(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find passwords among the arguments of a command that stand in quotes, as in `["mysql", "-pX"]`."""
    for match in _find_options(text.translate(_MARKS), lower.translate(_MARKS)):
        # the argument begins with a quote, and goes on to the next one
        if quote := compile_pattern(r"""["'](?=[^\s"',]{0,80}\Z)""").search(
            text[max(0, match.start - 80) : match.start]
        ):
            end = text.find(quote[0], match.start, match.start + 256)
            yield SecretMatch(match.kind, match.start, max(end, match.end))


def _to_match(text: str, match: re.Match[str]) -> SecretMatch | None:
    start, end = match.span(match.lastgroup or 0)
    value = text[start:end]
    is_value = len(value) >= 3 and not is_dummy_value(value) and value.lower() not in _WORDS and value[0] not in "-\\"
    return SecretMatch("password", start, end) if is_value else None


def _find_in_files(text: str, lower: str) -> Iterator[SecretMatch]:
    if ":" in text and compile_pattern(r":(?:\*|\d{2,5}):[\w.*-]{1,63}:[\w.@*-]{1,63}:").search(text):
        for match in compile_pattern(_PGPASS_PATTERN).finditer(text):
            if not match["host"].isdigit() and not is_dummy_value(match["s"]):
                yield SecretMatch("password", *match.span("s"))
    for match in compile_pattern(_HERE_STRING_PATTERN).finditer(text) if "<<<" in text else ():
        command = lower[max(0, match.start() - MAX_COMMAND_CHARS) : match.start()]
        if any(name in command[command.rfind("\n") + 1 :] for name in _READERS) and (secret := _to_match(text, match)):
            yield secret
    if "[client" in lower or "[mysql" in lower or "[mariadb" in lower:
        for section in compile_pattern(_INI_SECTION_PATTERN).finditer(text):
            end = text.find("\n[", section.end())
            end = min(len(text) if end < 0 else end, section.end() + 2_000)
            for match in compile_pattern(_INI_PASSWORD_PATTERN).finditer(text, section.end(), end):
                if not is_dummy_value(match["s"]):
                    yield SecretMatch("password", *match.span("s"))
