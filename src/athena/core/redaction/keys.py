"""Find keys by their form: a prefix that a service gives them, a name of a service near them, a URL, a PEM block."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from athena.core.redaction.generated import find_keys_in_urls
from athena.core.redaction.values import SecretMatch, compile_pattern, is_dummy_value, looks_random
from athena.core.redaction.views import has_long_run

# Kind, literals that start it, the pattern after them. The group `s` is the secret, or without it the whole match.
_PREFIX_TABLE = r"""
age-key             AGE-SECRET-KEY-                 1[A-Z0-9]{40,70}+
anthropic-key       sk-ant-                         [\w-]{20,}+
alibaba-key         LTAI                            [A-Za-z0-9]{12,32}+
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
sentry-token        sntryu_ sntrys_                 [\w=-]{32,}+
service-token       pul- sgp_ lsv2_pt_ lsv2_sk_ xkeysib- rnd_ PMAK- pnu_ dt0c01. cfut_ zpka_       [\w.=-]{32,}+
service-token       ATATT3 NRAK- bkua_ figd_ glc_ glsa_ gsk_ r8_ sbp_ xai-       [\w=-]{27,}+
shopify-token       shpat_ shpca_ shppa_ shpss_     [0-9a-fA-F]{32,}+
slack-token         xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe. xapp-   [\w.-]{10,}+
slack-webhook       hooks.slack.com/                (?:services|workflows|triggers)/(?P<s>[\w/]{20,}+)
square-token        sq0atp- sq0csp-                 [\w-]{22,}+
square-token        EAAA                            [\w-]{56,64}(?![\w-])
facebook-token      EAA                             [A-Za-z0-9]{80,}+
stripe-key          sk_live_ sk_test_ rk_live_ rk_test_ whsec_      [A-Za-z0-9+/=]{10,}+
tencent-key         AKID                            [A-Za-z0-9]{32}
vault-token         hvs. hvb. hvr.                  [\w-]{24,}+
"""
# Kind, the service's name in lower case, the secret somewhere after it on the line.
_CONTEXT_TABLE = r"""
cloudflare-token    cloudflare  (?P<s>(?=[\w-]{0,39}\d)(?![0-9a-f]{40}\b)[\w-]{40}|[0-9a-f]{37})(?!\w)
heroku-key          heroku      (?P<s>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})(?!\w)
mailgun-key         mailgun     (?P<s>[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8})(?!\w)
twilio-key          twilio      (?<!(?i:sid)[=:])(?P<s>SK[0-9a-f]{32})(?!\w)
"""
# How long the keys with a prefix are, where the service has settled it: how far to read over the end of a line.
_KEY_CHARS = {
    "ghp_": 40, "gho_": 40, "ghu_": 40, "ghs_": 40, "ghr_": 40, "github_pat_": 93, "glpat-": 26, "AKIA": 20, "ASIA": 20,
    "AIza": 39, "npm_": 40, "hf_": 37, "SG.": 69, "dop_v1_": 71, "dapi": 36, "shpat_": 38, "key-": 36, "dckr_pat_": 36,
    "lin_api_": 48, "sq0atp-": 29, "sk_live_": 32, "sk_test_": 32, "AGE-SECRET-KEY-": 74,
}  # fmt: skip
MAX_WRAPPED_LINES = 12
# the end of a line inside a key: a soft break of mail, a continued line of a shell, a quoting mark, a diff
_WRAP_PATTERN = (
    r"[=\\]?\r?\n[ \t]{0,16}(?:[>|#*+][>|#*+ \t]{0,8})?"
    r"""|["'][ \t]{0,4}[+.\\]?[ \t]{0,4}\r?\n[ \t]{0,16}[+.]?[ \t]{0,4}["']"""  # parts of a string in code
)
_AWS_SECRET_PATTERN = r"(?<![\w+/=-])[A-Za-z0-9+/]{40}(?![\w+/=-])"
_TELEGRAM_TOKEN_PATTERN = r"(?:(?<!\w)|(?<=/bot))\d{8,10}:AA[\w-]{33}(?![\w-])"
_DEEPL_KEY_PATTERN = r"(?<![\w-])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}:fx(?![\w-])"
_AIRTABLE_TOKEN_PATTERN = r"(?<![\w-])pat[A-Za-z0-9]{14}\.[0-9a-f]{64}(?![\w-])"
# The first part is a decimal id in base64, which leaves few letters possible.
_DISCORD_TOKEN_PATTERN = r"[MNO](?<![\w-].)[DTjz][AEIMQUYcgk][w-z0-5][\w-]{14,24}\.[\w-]{6}\.[\w-]{27,45}(?![\w-])"
_PASSWORD_WORDS = frozenset({"pass", "passwd", "password", "pw", "pwd", "token"})
_SecretPattern = tuple[str, str, re.Pattern[str]]


def find_keys(text: str, lower: str) -> Iterator[SecretMatch]:
    """Find the secrets that have a form of their own; `lower` is the text in lower case."""
    # a key has a long run of letters and digits, which is quicker to look for than the prefixes
    has_run = has_long_run(text)
    for gate, patterns in _load_prefix_patterns().items() if has_run else ():
        if compile_pattern(gate).search(text):
            for pattern in patterns:
                yield from _find_by_trigger(text, text, *pattern)
    for pattern in _load_context_patterns():
        if pattern[0] in lower:
            yield from _find_by_trigger(text, lower, *pattern)
    if "://" in text:
        yield from _find_in_urls(text)
        if has_run:
            yield from find_keys_in_urls(text)
    if "PRIVATE KEY" in text:
        yield from _find_private_keys(text)
    if ":AA" in text:
        matches = compile_pattern(_TELEGRAM_TOKEN_PATTERN).finditer(text)
        yield from (SecretMatch("telegram-token", *match.span()) for match in matches)
    if ":fx" in text:
        matches = compile_pattern(_DEEPL_KEY_PATTERN).finditer(text)
        yield from (SecretMatch("deepl-key", *match.span()) for match in matches)
    if has_run and compile_pattern(r"\.[0-9a-f]{64}").search(text):
        matches = compile_pattern(_AIRTABLE_TOKEN_PATTERN).finditer(text)
        yield from (SecretMatch("airtable-token", *match.span()) for match in matches)
    if compile_pattern(r"\.[\w-]{6}\.[\w-]{27}").search(text):
        matches = compile_pattern(_DISCORD_TOKEN_PATTERN).finditer(text)
        yield from (SecretMatch("discord-token", *match.span()) for match in matches)


@cache
def _load_prefix_patterns() -> dict[str, list[_SecretPattern]]:
    """Group the patterns by a short expression that is quick to search for and rare in prose."""
    groups: dict[str, list[_SecretPattern]] = {}
    for line in _PREFIX_TABLE.strip().splitlines():
        kind, *triggers, rest = line.split()
        for trigger in triggers:
            pattern = compile_pattern(rf"(?<![A-Za-z0-9]){re.escape(trigger)}{rest}(?![A-Za-z0-9])")
            end = re.escape(trigger[-1])
            gate = trigger if trigger[-1].isalnum() else rf"{end}(?:[\w+/=%.-]{{10}}|[\w+/%.-]{{0,9}}[=\\]?\r?\n)"
            groups.setdefault(gate, []).append((trigger, kind, pattern))
    return groups


@cache
def _load_context_patterns() -> list[_SecretPattern]:
    rows = [line.split() for line in _CONTEXT_TABLE.strip().splitlines()]
    return [(name, kind, compile_pattern(rf"(?i:{name})[^\n]{{0,48}}?(?<![\w-]){rest}")) for kind, name, rest in rows]


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
                    nearby = compile_pattern(_AWS_SECRET_PATTERN).finditer(text, end, end + 120)
                    yield from (SecretMatch("aws-secret-key", *m.span()) for m in nearby if looks_random(m[0]))
            after = match.end()
        if where is text and (wrapped := _match_wrapped_key(text, at, trigger, kind, pattern)):
            yield wrapped
            after = wrapped.end
        at = where.find(trigger, after)


def _match_wrapped_key(text: str, at: int, trigger: str, kind: str, pattern: re.Pattern[str]) -> SecretMatch | None:
    """Match a key that the end of a line breaks in two or more."""
    run = compile_pattern(r"[\w.+/%-]{4,256}")
    part = run.match(text, at)
    wrap = compile_pattern(_WRAP_PATTERN).match(text, part.end()) if part else None
    if part is None or wrap is None:
        return None
    expected = _KEY_CHARS.get(trigger, 0)
    key, ends = part[0], [part.end()]
    if len(key) >= expected > 0:
        return None
    lengths = [len(key)]
    while (
        wrap is not None
        and len(ends) < MAX_WRAPPED_LINES
        and (part := compile_pattern(r"[\w.+/%=-]{1,256}").match(text, wrap.end()))
    ):
        # a mark says that the line goes on; without one, the part must look like one, or complete the key
        if wrap[0][0] not in "=\\" and len(key) + len(part[0]) != expected and not _is_key_part(part[0]):
            break
        key += part[0]
        ends.append(part.end())
        lengths.append(len(key))
        wrap = None if len(key) == expected else compile_pattern(_WRAP_PATTERN).match(text, part.end())
    before = text[max(0, at - 1) : at]
    match = pattern.match(before + key, len(before)) if len(ends) > 1 else None
    if not match or match.end() - len(before) <= lengths[0] or (kind == "jwt" and "." not in match[0]):
        return None
    if len(set(key[len(trigger) :])) < 2:
        return None
    # where the match ends among the lines
    length = match.end() - len(before)
    line = next(i for i, end in enumerate(lengths) if end >= length)
    return SecretMatch(kind, at, ends[line] - (lengths[line] - length))


def _is_key_part(part: str) -> bool:
    """Return whether the beginning of a line looks like the rest of a key, and not like a word."""
    part = part.rstrip("=.")
    has_digit, has_letter = any(map(str.isdigit, part)), any(map(str.isalpha, part))
    is_mixed = not part.islower() and not part.isupper() and not part.istitle()
    return len(part) >= 4 and has_digit and has_letter and (len(part) >= 12 or is_mixed or part.isalnum())


def _find_in_urls(text: str) -> Iterator[SecretMatch]:
    # a password holds no `//`, so that the matches of two `://` cannot overlap and the work stays linear
    pattern = compile_pattern(
        r"""(?<=[A-Za-z0-9])://(?P<user>[^\s/:@"'`<>\[]{0,255}):"""
        r"""(?:(?P<s>[^\s/"'`<>]{1,512})|(?P<slashed>(?:[^\s/"'`<>@]|/(?!/)){1,512}))@(?=[^\s/@:?#])"""
    )
    at = text.find("://")
    while at >= 0:
        if match := pattern.match(text, at):
            user, password = match["user"], match["s"] or match["slashed"]
            port = compile_pattern(r"\d{1,5}(?:[/?#].*)?").fullmatch(password)
            is_host = port and (not password.isdigit() or "." in user or user == "localhost")
            if not is_host and not is_dummy_value(password, _PASSWORD_WORDS):
                yield SecretMatch("password", *match.span("s" if match["s"] else "slashed"))
        at = text.find("://", at + 3)


def _find_private_keys(text: str) -> Iterator[SecretMatch]:
    marker = compile_pattern(r"-{4,5} ?(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
    # a key without its end: header lines, long base64 lines, and a shorter one that fills its line
    cut_short = compile_pattern(
        r"(?:(?:\s|\\+[nr]){1,4}[\w-]{1,30}: [^\n\\]{1,200}(?=\n|\\)){0,6}"
        r"(?>(?:(?:\s|\\+[nr]){0,8}[A-Za-z0-9+/=]{16,}+)+)"
        r"""(?:(?:\r?\n|\\+n)[ \t]{0,8}[A-Za-z0-9+/=]{1,15}(?=[ \t]{0,8}(?:[\r\n\\"'`]|\Z)))?"""
    )
    for mark, following in pairwise([*marker.finditer(text), None]):
        if mark is None or mark[1] == "END":
            continue
        if following and following[1] == "END" and following.start() - mark.end() < 100_000:
            if compile_pattern(r"[A-Za-z0-9+/=]{16}").search(text, mark.end(), following.start()):
                yield SecretMatch("private-key", mark.start(), following.end())
        elif body := cut_short.match(text, mark.end()):
            yield SecretMatch("private-key", mark.start(), body.end())
