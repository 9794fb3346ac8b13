"""Redaction of secrets. The tests build every secret at run time, so that no scanner reports this file."""

import ast
import base64
import importlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from athena.core import redaction
from athena.core.redaction import RedactedText, SecretMatch, redact
from athena.core.redaction.generated import find_generated_keys
from conftest import rounds, sample
from linear_time import is_time_linear


def mixed_chars(length: int) -> str:
    return ("a1B2c3D4e5F6g7H8j9K0" * 20)[:length]


def hex_chars(length: int) -> str:
    return (("0f1e2d3c" + "4b5a6978") * 20)[:length]


def upper_chars(length: int) -> str:
    return ("A2B3C4D5E6F7G2H3" * 10)[:length]


def pem(label: str, body: str, newline: str = "\n") -> str:
    dashes = "-" * 5
    return newline.join([f"{dashes}BEGIN {label}{dashes}", body, f"{dashes}END {label}{dashes}"])


UUID = "-".join((hex_chars(8), hex_chars(4), hex_chars(4), hex_chars(4), hex_chars(12)))
JWT = ".".join(("eyJ" + mixed_chars(30), "eyJ" + mixed_chars(60), mixed_chars(43)))
AWS_OTHER_HALF = "wJal/" + mixed_chars(30) + "+x9Zq"
SNOWFLAKE = base64.b64encode(b"123456789012345678").decode()
KEY_LINES = "\n".join([mixed_chars(64)] * 4 + ["Zm9v=="])

# text before, kind, secret, text after
FOUND: list[tuple[str, str, str, str]] = [
    ("INSERT INTO users (name, password) VALUES ('bob', '", "password", "hunter2!x", "'), ('al', NULL);"),
    ("insert into t (a, api_token) values (now(), '", "secret", mixed_chars(24), "')"),
    ("password for the panel: ", "password", "Zurek_zBialaKielbasa4", ""),
    ("key id ", "aws-key", "AKIA" + upper_chars(16), " in use"),
    ("", "aws-key", "ASIA" + upper_chars(16), ""),
    ("aws_secret_access_key = ", "aws-secret-key", AWS_OTHER_HALF, "\nregion = eu-west-1"),
    ("export AWS_SECRET_ACCESS_KEY=", "aws-secret-key", AWS_OTHER_HALF, "\n"),
    ('"SecretAccessKey": "', "aws-secret-key", AWS_OTHER_HALF, '",'),
    ("AWS_SESSION_TOKEN=", "aws-session-token", "IQoJb3JpZ2luX2VjE" + mixed_chars(120) + "/+==", "\n"),
    *[("use ", "github-token", f"gh{letter}_" + mixed_chars(36), " for the clone") for letter in "pousr"],
    ("", "github-token", "github_pat_" + mixed_chars(22) + "_" + mixed_chars(59), "."),
    ("remote: ", "github-token", "ghp_" + "a1B2" * 9, ""),
    ("", "gitlab-token", "glpat-" + mixed_chars(20), ", expires in May"),
    ("", "gitlab-token", "gldt-" + mixed_chars(20), ""),
    ("", "slack-token", "xoxb-" + "123456789012-" + mixed_chars(24), ""),
    ("", "slack-token", "xoxp-" + mixed_chars(40), ""),
    ("", "slack-token", "xapp-1-" + upper_chars(10) + "-123-" + hex_chars(32), ""),
    (
        "https://hooks.slack.com/services/",
        "slack-webhook",
        f"T{upper_chars(8)}/B{upper_chars(8)}/{mixed_chars(24)}",
        " posts",
    ),
    ("", "stripe-key", "sk_live_" + mixed_chars(24), ""),
    ("", "stripe-key", "rk_live_" + mixed_chars(24), ""),
    ("", "stripe-key", "sk_test_" + mixed_chars(24), ""),
    ("", "stripe-key", "whsec_" + mixed_chars(32), ""),
    ("", "openai-key", "sk-" + mixed_chars(48), ""),
    ("", "openai-key", "sk-proj-" + mixed_chars(40) + "_" + mixed_chars(40) + "-x", ""),
    ("", "anthropic-key", "sk-ant-" + "api03-" + mixed_chars(80) + "-AA", ""),
    ("maps?key=", "google-api-key", "AIza" + mixed_chars(35), "&v=3"),
    ("", "google-oauth", "GOCSPX-" + mixed_chars(28), ""),
    ("", "google-oauth", "ya29." + mixed_chars(60), ""),
    ("AccountName=x;AccountKey=", "azure-key", mixed_chars(86) + "==", ";EndpointSuffix=core.windows.net"),
    ("Endpoint=sb://x/;SharedAccessKey=", "azure-key", mixed_chars(43) + "=", ";EntityPath=y"),
    ("https://x.blob.core.windows.net/c?sv=2022-11-02&sig=", "azure-sas", mixed_chars(43) + "%3D", "&se=2030"),
    ("", "sendgrid-key", "SG." + mixed_chars(22) + "." + mixed_chars(43), ""),
    ("twilio: ", "twilio-key", "SK" + hex_chars(32), ""),
    ("", "mailgun-key", "key-" + hex_chars(32), ""),
    ("Mailgun sends with ", "mailgun-key", f"{hex_chars(32)}-{hex_chars(8)}-{hex_chars(8)}", ""),
    ("//registry.example.org/:_authToken=", "npm-token", "npm_" + mixed_chars(36), "\n"),
    ("", "pypi-token", "pypi-AgE" + "IcHlwaS5vcmc" + mixed_chars(100), ""),
    ("docker login with ", "docker-token", "dckr_pat_" + mixed_chars(27), ""),
    ("", "hugging-face-token", "hf_" + mixed_chars(34), ""),
    ("", "digitalocean-token", "dop_v1_" + hex_chars(64), ""),
    ("HEROKU_API_KEY=", "heroku-key", UUID, ""),
    ("heroku auth: ", "heroku-key", UUID, " works"),
    ("Cloudflare token ", "cloudflare-token", mixed_chars(19) + "_" + mixed_chars(20), ""),
    ("", "databricks-token", "dapi" + hex_chars(32), ""),
    ("", "linear-key", "lin_api_" + mixed_chars(40), ""),
    ("", "notion-token", "secret_" + mixed_chars(43), ""),
    ("", "notion-token", "ntn_" + mixed_chars(46), ""),
    ("bot ", "telegram-token", "1234567890" + ":AA" + mixed_chars(33), " runs"),
    ("client.login('", "discord-token", f"{SNOWFLAKE}.{mixed_chars(6)}.{mixed_chars(38)}", "')"),
    ("https://discord.com/api/webhooks/", "discord-webhook", "123456789012345678/" + mixed_chars(68), ""),
    ("", "shopify-token", "shpat_" + hex_chars(32), ""),
    ("", "square-token", "sq0atp-" + mixed_chars(22), ""),
    ("", "vault-token", "hvs." + mixed_chars(90), ""),
    ("", "age-key", "AGE-SECRET-KEY-" + "1" + upper_chars(58), ""),
    ("", "onepassword-token", "ops_" + "eyJ" + mixed_chars(300), ""),
    ("", "service-token", "glsa_" + mixed_chars(32) + "_" + hex_chars(8), ""),
    ("cookie ", "jwt", JWT, " ends"),
    ("Authorization: Bearer ", "jwt", JWT, "\r\nAccept: */*"),
    ("before\n", "private-key", pem("RSA PRIVATE KEY", KEY_LINES), "\nafter"),
    ("", "private-key", pem("OPENSSH PRIVATE KEY", KEY_LINES), ""),
    ("", "private-key", pem("EC PRIVATE KEY", mixed_chars(64)), ""),
    ("", "private-key", pem("ENCRYPTED PRIVATE KEY", KEY_LINES), ""),
    ("", "private-key", pem("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2\n\n" + KEY_LINES), ""),
    (
        '{"type": "service_account", "private_key": "',
        "private-key",
        pem("PRIVATE KEY", mixed_chars(200), "\\n"),
        '"}',
    ),
    ("cut: ", "private-key", pem("RSA PRIVATE KEY", KEY_LINES).rpartition("\n")[0], "\n\nand so on"),
    (
        "cut: ",
        "private-key",
        pem("PRIVATE KEY", mixed_chars(64) + "\n" + mixed_chars(64)).rpartition("\n")[0],
        "\nthe rest",
    ),
    ("Private-Lines: 4", "putty-key", f"\n{KEY_LINES}\nPrivate-MAC: {hex_chars(40)}", "\n"),
    ("postgres://bob:", "password", "s3cr3t", "@host/db"),
    ("redis://:", "password", "p4ssw0rd", "@localhost:6379/0"),
    ("mongodb+srv://app:", "password", "p@ss:word", "@cluster0.example.net/x?retry=1"),
    ("https://bob:", "password", "ab/cd9", "@example.com"),
    ("git clone https://x:", "github-token", "ghp_" + mixed_chars(36), "@github.com/a/b.git"),
    ("https://u:", "password", "hunter2", "@host/a@b"),
    ("amqp://guest:", "password", "guest", "@mq:5672"),
    ("Authorization: Bearer ", "bearer-token", mixed_chars(24), ""),
    ("curl -H 'Authorization: Bearer ", "bearer-token", hex_chars(40), "' https://x"),
    ("authorization: Basic ", "basic-auth", base64.b64encode(b"bob:hunter2").decode(), "\n"),
    ('"Authorization": "token ', "bearer-token", hex_chars(40), '"'),
    ("sent with Bearer ", "bearer-token", mixed_chars(40), " yesterday"),
    ('PASSWORD="', "password", "hunter2xyz", '"'),
    ("password: ", "password", "correcthorse", ""),
    ("password: ", "password", "correcthorse", "\nuser: bob"),
    ('{"user": "bob", "password": "', "password", "correct horse 9", '"}'),
    ('{\\"password\\": \\"', "password", "hunter2xyz", '\\"}'),
    ("DB_PASSWORD=", "password", "a&b;c,9(x)", "\nDB_USER=bob"),
    ("DB_PASS=", "password", "hunter2xyz", ""),
    ("MYSQL_PWD=", "password", "correcthorse", ""),
    ("export PGPASSWORD=", "password", "Tr0ub4dor&3", " && psql"),
    ("mysql --password ", "password", "foo", ""),
    ("mysql --password=", "password", "hunter2", " -u bob"),
    ("tool --api-key ", "api-key", mixed_chars(20), " --verbose"),
    ("passwd = '", "password", "it\\'s4me", "'"),
    ("?user=bob&password=", "password", "hunter2xyz", "&next=/home"),
    ("Server=db;Password=", "password", "S3cure!pw", ";Database=x"),
    ("connect(password='", "password", "hunter2", "', user='bob')"),
    ('password: str = "', "password", "hunter2xyz", '"'),
    ("config['password'] = '", "password", "hunter2xyz", "'"),
    ("<password>", "password", "hunter2xyz", "</password>"),
    ("The wifi password is ", "password", "hunter2xyz", ", by the way."),
    ("CREATE USER bob WITH PASSWORD '", "password", "hunter2xyz", "'"),
    ("dbPassword: ", "password", "Tr0ub4dor&3", ""),
    ("(password: ", "password", "hunter2xyz", ")."),
    ("пароль тут → password: ", "password", "пароль123", " — конец"),
    ("Set `password` to `", "password", "hunter2", "`."),
    ("PASSWORD_PROD=", "password", "hunter2xyz", ""),
    ("password1: ", "password", "hunter2xyz", ""),
    ("auth: {user: 'a', pass: '", "password", "b1234567", "'}"),
    ("curl -s -u bob:", "password", "hunter2", " https://x"),
    ("api_key=", "api-key", mixed_chars(32), ""),
    ("apikey: '", "api-key", hex_chars(32), "'"),
    ("X-Api-Key: ", "api-key", mixed_chars(24), "\n"),
    ('"apiKey" : "', "api-key", mixed_chars(24), '"'),
    ("client_secret=", "secret", mixed_chars(32), "&grant_type=x"),
    ('SECRET_KEY = "', "api-key", "django-insecure-" + "x9!k" * 8, '"'),
    ("secret: ", "secret", hex_chars(40), ""),
    ("access_token=", "token", mixed_chars(40), "&x=1"),
    ('"auth_token": "', "token", hex_chars(32), '"'),
    ("private_key: ", "private-key", "0x" + hex_chars(64), ""),
    # forms that a review found missing
    ("net use Z: \\\\srv\\share ", "password", "Tr0mbone-x7", " /user:shop"),
    ("java -jar jenkins-cli.jar -s http://ci:8080 -auth me:", "password", "Tr0mbone-x7", " build"),
    ("composer config http-basic.repo.example.org me ", "password", "Tr0mbone-x7", ""),
    ("fly secrets set A=", "password", "Tr0mbone-x7", ""),
    ("echo -n ", "password", "Tr0mbone-x7", " | base64"),
    ('restic --password-command "echo ', "password", "Tr0mbone-x7", '" snapshots'),
    ("airtable ", "airtable-token", "pat" + mixed_chars(14) + "." + hex_chars(64), ""),
    ("", "service-token", "bkua_" + hex_chars(40), ""),
    ("DeepL: ", "deepl-key", UUID + ":fx", ""),
    ("", "facebook-token", "EAAB" + mixed_chars(150), ""),
    ("", "square-token", "EAAA" + mixed_chars(56) + "_-Zq", ""),
    ("the password is ", "password", "correct horse battery staple", ""),
    ("The admin password was ", "password", "correct horse battery staple", ". Change it"),
]

UNTOUCHED = [
    "",
    "The quick brown fox jumps over the lazy dog.",
    "commit " + hex_chars(40),
    "fixed in " + hex_chars(7),
    "id " + UUID,
    "sha256:" + hex_chars(64),
    hex_chars(64) + "  dist/athena.whl",
    "sha512-" + mixed_chars(86) + "==",
    "data:image/png;base64," + "iVBORw0KGgo" + mixed_chars(300),
    base64.b64encode(bytes(range(256)) * 8).decode(),
    "color: #ff00aa; background: #FFF",
    "def login(user: str, password: str) -> bool:",
    "def login(user, password=None, token=None):",
    'password = os.environ["X"]',
    'password = os.getenv("DB_PASSWORD")',
    "password = config.db.password",
    "const password = process.env.PASSWORD;",
    "password=self.password,",
    "login(user=user, password=password)",
    "login(user=user, password=pw)",
    "password = new_password",
    "password: Optional[str] = None",
    "password: SecretStr",
    "password: string;",
    "password: &str,",
    "password: z.string().min(8)",
    "password = get_password(user1)",
    "password = input('Password: ')",
    "PASSWORD=${PASSWORD}",
    "PASSWORD=$DB_PASSWORD",
    "password: {{ vault_password }}",
    "password: <your-token>",
    "token: <your-token>",
    "password=***",
    "password=********",
    "password: [hidden]",
    "password=xxxxxxxx",
    "password=%s",
    'password = "%(password)s"',
    "password: changeme",
    'api_key="' + 'YOUR_API_KEY"',
    "api_key=your-api-key-here",
    "the password is stored in the vault",
    "the password is hashed with argon2id before it is saved",
    "The password is 12-character at least",
    "Password: required",
    "Password must be at least 8 characters",
    '"password": ' + '"Password"',
    '"password": ' + '"Enter your password"',
    "password reset: see the wiki",
    "Forgot password? Click here",
    "password_hash = bcrypt",
    "PWD=/home/bob/project",
    "OLDPWD=/srv/main",
    "token=...",
    "token = tokens[i]",
    "token: identifier",
    "max_tokens=20000",
    "next_page_token=" + mixed_chars(32),
    "the tokens: 4096, cost: 12",
    "sk-learn",
    "scikit-learn and sk-learn-extensions-for-everything",
    "task-1234567890abcdef1234567890abcdef",
    "disk-" + mixed_chars(30),
    "eyJ",
    "eyJ.eyJ.eyJ",
    "eyJhbGciOi alone",
    "AKIA",
    "AKIA is the prefix of a key id",
    "ghp_ is the prefix",
    "ghp_" + "x" * 36,
    "xoxb-",
    "npm_config_registry=https://registry.example.org",
    "hf_hub_download(repo_id)",
    "https://bob@example.com/x",
    "ssh://git@github.com/a/b.git",
    "git@github.com:a/b.git",
    "bob@example.com, alice+news@example.org",
    "http://localhost:3000@",
    "http://localhost:3000/@scope/package",
    "http://127.0.0.1:8080/users/@me",
    "https://example.com:8443/mail?to=bob@example.com",
    "postgres://user:password" + "@localhost/db",
    "postgres://${USER}:${PASS}" + "@localhost/db",
    "postgres://user:<password>" + "@localhost/db",
    "http://[::1]:8080/x@y",
    "curl -u bob:$PASS https://x",
    "docker run -u 1000:1000 image",
    "secret = secrets.token_hex(32)",
    "SecretId: arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf",
    "private key: ~/.ssh/id_ed25519",
    "secret santa: 2024-12-24 dinner",
    "password: !vault |",
    "Send a Bearer token in the header",
    "Authorization: Bearer <token>",
    "Authorization: Bearer $TOKEN",
    "Authorization: Basic authentication",
    "Basic understanding of networks",
    "secret: false",
    "secret: my-app-tls-v2",
    "secretName: db-credentials",
    "client_secret: null",
    "api_key: required",
    "api_key: str = Field(...)",
    "private_key: /etc/ssl/private/server.key",
    'private_key_id: "' + hex_chars(12) + '"',
    "primary_key=user_id12345",
    "public_key: " + mixed_chars(43),
    "Use " + pem("PRIVATE KEY", "and", " ") + " as markers",
    pem("PUBLIC KEY", mixed_chars(200)),
    pem("CERTIFICATE", mixed_chars(200)),
    "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAA" + mixed_chars(44) + " bob@host",
    "[SECRET:github-token]",
    "password=[SECRET:password] and postgres://bob:[SECRET:password]" + "@host/db",
    "the secret: it was the butler",
    "pass --password to the command",
    "use the --token flag",
    "!function(e,t){var n=e.key,r=t.token;n.secret=r,t.password=n.value}(a,b);",
    "t.Token=n={})).create=function(e),(e.ProgressToken=e.createMessageConnection1=e.Null)",
    "private_key = Ed25519PrivateKey.generate()",
    "encryptionKey: arn:aws:kms:us-west-2:123456789012:alias/aws/s3",
    "filters = {'bandpass': 'bandpass'}",
    "12:34:56 and 2024-01-02T03:04:05Z",
    "SK" + hex_chars(32),
    "cache-key-" + hex_chars(32),
    "echo hello | base64",
    "echo -n ZGVt0Gljb24= | base64 -d",
    "net use Z: \\\\srv\\share /user:shop",
    "the password is stored somewhere quite safe",
    "The password was changed yesterday by support staff",
    "the password is case sensitive everywhere",
    "path.to.pattern and patch notes",
    "tests pass: 1200, fail: 3",
]


def redacted(before: str, kind: str, after: str) -> str:
    return f"{before}[SECRET:{kind}]{after}"


def test_tables_are_long_enough() -> None:
    assert len(FOUND) >= 70
    assert len(UNTOUCHED) >= 70


@pytest.mark.parametrize(("before", "kind", "secret", "after"), FOUND)
def test_secret_alone_is_replaced(before: str, kind: str, secret: str, after: str) -> None:
    assert redact(before + secret + after) == RedactedText(redacted(before, kind, after), (kind,))


@pytest.mark.parametrize("text", UNTOUCHED)
def test_lookalike_is_left_alone(text: str) -> None:
    assert redact(text) == RedactedText(text, ())


def test_secret_is_replaced_each_time() -> None:
    text = f"token ghp_{mixed_chars(36)} and more"
    assert [redact(text).kinds for _ in range(2)] == [("github-token",)] * 2
    assert text not in redaction._clean_texts


def test_few_clean_texts_are_remembered() -> None:
    for number in range(redaction.MAX_CLEAN_TEXTS + 10):
        assert redact(f"entity {number}") == (f"entity {number}", ())
    assert len(redaction._clean_texts) <= redaction.MAX_CLEAN_TEXTS
    assert f"entity {redaction.MAX_CLEAN_TEXTS + 9}" in redaction._clean_texts
    redact(long := "word " * redaction.MAX_CLEAN_CHARS)
    assert long not in redaction._clean_texts


def test_kinds_are_listed_in_order() -> None:
    github, stripe = "ghp_" + mixed_chars(36), "sk_live_" + mixed_chars(24)
    text = f"{stripe} then {github}, then {stripe}; password=hunter2xyz"
    assert redact(text).kinds == ("stripe-key", "github-token", "stripe-key", "password")


def test_pasted_aws_key_pair_is_replaced() -> None:
    text = "Access key ID,Secret access key\n" + "AKIA" + upper_chars(16) + "," + AWS_OTHER_HALF
    assert redact(text).text == "Access key ID,Secret access key\n[SECRET:aws-key],[SECRET:aws-secret-key]"


def test_commit_beside_aws_key_stays() -> None:
    text = "AKIA" + upper_chars(16) + " leaked in " + hex_chars(40)
    assert redact(text).text == "[SECRET:aws-key] leaked in " + hex_chars(40)


def test_overlapping_findings_merge_to_precise_kind() -> None:
    token = "ghp_" + mixed_chars(36)
    assert redact(f'password = "{token}"') == RedactedText('password = "[SECRET:github-token]"', ("github-token",))
    assert redact(f"token=abc-{token}-def9").text == "token=[SECRET:github-token]"


def test_replaced_secret_may_complete_neighbour_once() -> None:
    text = "AIza" + mixed_chars(34) + "-" + "ghp_" + mixed_chars(36)
    once = redact(text)
    assert redact(once.text) == RedactedText(once.text, ())


# the signs between a name and its value, each of their characters alone at some place
SIGNS = ["=", " => '", " -> `", " → ", "  := ", "\\': \\\"", "', '", "'] = ", "`: [", " = ('", "\t=\t", '" , "']


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("name", ["myLicenseKey", "my.licenseKey", "x-licenseKey", "moй.Ключ"])
def test_key_is_found_by_its_name(name: str, sign: str) -> None:
    value = mixed_chars(24)
    before = f"{'call of the third one ' * 9}\n{name}{sign}"
    keys = list(find_generated_keys(f"{before}{value}"))
    assert keys == [("unknown-key", len(before), len(before) + len(value))]


@pytest.mark.parametrize("lines", [1, 500])
def test_password_among_many_options_is_found(lines: int) -> None:
    text = "ls -a -p -u one -P two -e three -o four\n" * lines
    assert redact(f"{text}mysql -uroot -phunter2x") == (f"{text}mysql -uroot -p[SECRET:password]", ("password",))


def test_each_url_loses_its_password() -> None:
    shape = "http://a:{}@h1,http://b:{}@h2 http://c:{}@h3/x"
    hidden = "[SECRET:password]"
    assert redact(shape.format("one1", "two2", "three3")).text == shape.format(hidden, hidden, hidden)


def test_two_keys_are_two_secrets() -> None:
    key = pem("RSA PRIVATE KEY", KEY_LINES)
    assert redact(f"{key}\nand\n{key}").text == "[SECRET:private-key]\nand\n[SECRET:private-key]"


def test_dotted_i_does_not_shift_offsets() -> None:
    assert redact("İİİ password=hunter2xyz İ").text == "İİİ password=[SECRET:password] İ"


@pytest.mark.parametrize("char", ["\U000e0041", "\U000e0100", "\U0001d173", "\ufff0"])
def test_invisible_character_hides_no_key(char: str) -> None:
    key = "ghp_aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW3xY5"
    assert redact(f"{key[:10]}{char}{key[10:]}").text == "[SECRET:github-token]"


PIECES = st.one_of(
    st.text(max_size=12),
    st.sampled_from([secret for _, _, secret, _ in FOUND]),
    st.sampled_from([before + secret + after for before, _, secret, after in FOUND]),
    st.sampled_from([before for before, _, _, _ in FOUND] + [after for _, _, _, after in FOUND]),
    st.sampled_from(UNTOUCHED),
    st.sampled_from(["-----BEGIN ", "PRIVATE KEY-----", "://", ":", "@", "=", '"', "\\", "[SECRET:", "jwt]", "_", "-"]),
)


VALUE = "Zq04" + "vT7-kLm9Xw"
JSON_VALUES: list[tuple[Any, Any]] = [
    ({"passwords": [VALUE, "x"]}, VALUE),
    ({"password": {"staging": VALUE}}, VALUE),
    ({"args": ["mysql", "-u", "root", "-p" + VALUE]}, VALUE),
    ({"args": ["--password", VALUE]}, VALUE),
    ([["Authorization", "Basic " + VALUE]], VALUE),
    ([["user", "password"], ["bob", VALUE]], VALUE),
    ({"env": [{"name": "DB_PASSWORD", "value": VALUE}]}, VALUE),
    ([{"Value": VALUE, "Id": 1, "Name": "DB_PASSWORD"}], VALUE),
    ({"key": "api_key", "value": VALUE}, VALUE),
    ({"password": {"x": 'a"b\\' + VALUE}}, VALUE),
    (["password", VALUE], VALUE),
    ({"pin": 4711}, 4711),
    ({"pin": {"home": 4711}}, 4711),
    ({"name": "otp", "value": 123456}, 123456),
]


@pytest.mark.parametrize(("value", "secret"), JSON_VALUES)
def test_secret_in_another_field_than_its_name_is_removed(value: Any, secret: Any) -> None:
    before = json.dumps(value)
    safe, [kind] = redaction.redact_json(value)
    assert str(secret) not in json.dumps(safe)
    assert json.dumps(safe).count(f"[SECRET:{kind}]") == 1
    assert (redaction.redact_json(safe), json.dumps(value)) == ((safe, ()), before)


@pytest.mark.parametrize(
    "value",
    [
        {"text": "enter your pin", "id": 4711},
        {"pin": None, "total": 998877, "year": 1987},
        {"otp_enabled": True, "user_id": 123456},
        {"password_policy": {"min": 12, "max": 1024}},
        {"passwords": {"user_1": "", "user_2": None}},
        ["password", "staging"],
        {"name": "max_tokens", "value": 4096},
        {"password": None, "port": 5432, "text": "a\nb" * 500, '"': [{}, []]},
    ],
)
def test_value_beside_a_word_for_a_secret_stays(value: Any) -> None:
    assert redaction.redact_json(value) == (value, ())


@settings(max_examples=rounds(60, 500), deadline=None)
@given(
    st.recursive(
        st.one_of(PIECES, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(PIECES, inner, max_size=4)),
    )
)
def test_json_keeps_its_shape(value: Any) -> None:
    def count(item: Any) -> int:
        parts = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        return 1 + sum(map(count, parts))

    safe, kinds = redaction.redact_json(value)
    assert kinds or safe == value
    assert count(safe) == count(value) or kinds  # two names that hold a secret may become one


def test_finding_has_offsets() -> None:
    assert SecretMatch("jwt", 1, 4) == ("jwt", 1, 4)


@settings(max_examples=rounds(60, 500), deadline=None)
@example("ghp_a1B2c3D4e5F6g7H8j9K0a1B2c3D4e5F6g7H8" + base64.b64encode(bytes(range(256)) * 16).decode())  # many keys
@given(st.lists(PIECES, max_size=8).map("".join))
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once.text) == RedactedText(once.text, ())
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", kind) for kind in once.kinds)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=300))
def test_any_text_is_accepted(text: str) -> None:
    assert isinstance(redact(text).text, str)


WORDS = st.lists(st.text(alphabet="bcdfghjlmnqrvz", min_size=1, max_size=9), max_size=20).map(" ".join)


@settings(max_examples=rounds(50, 300), deadline=None)
@given(WORDS, st.sampled_from(FOUND), WORDS)
def test_planted_secret_alone_is_removed(left: str, found: tuple[str, str, str, str], right: str) -> None:
    before, kind, secret, after = found
    result = redact(f"{left}\n{before}{secret}{after}\n\n{right}")
    assert result.text == f"{left}\n{redacted(before, kind, after)}\n\n{right}"
    assert result.kinds == (kind,)
    assert secret not in result.text or secret in before + after


REPEATED = [
    "the quick brown fox, ",
    "a",
    "password=",
    "password= ",
    'password="',
    "password='\"",
    'password=\\"',
    "password is ",
    "password)",
    "password=)",
    "A" * 48 + "PASSWORD=x1,",
    "--password ",
    "<password>",
    "key=",
    "api_key:",
    "secret: x ",
    "[SECRET:jwt]",
    "eyJ",
    "-eyJ",
    "eyJaaaaaaaaab.",
    "://",
    "a://b:",
    "a://b:c@",
    "a://b:/c",
    pem("PRIVATE KEY", "").partition("\n")[0],
    pem("PRIVATE KEY", mixed_chars(24)).rpartition("\n")[0] + "\n",
    "-",
    "sk-",
    "xoxb-",
    "sig=",
    "heroku",
    "cloudflare ",
    "bearer ",
    "authorization: ",
    "MTAw",
    "Private-Lines: 1\nA\n",
    "\\",
    mixed_chars(40),
]
# values of unknown form, and names in many syntaxes and languages
REPEATED_NAMES = [
    "insert into a (b, password) values ('",
    "insert into a (b, password) values ('a', 'x1y2z3w4'), ",
    "('a', 'b'), (",
    "token " + mixed_chars(24) + " ",
    "re_" + mixed_chars(28),
    "a.",
    "hook://" + mixed_chars(20) + "/",
    "Client('",
    "Client('a', '",
    "password_",
    "password('a', ",
    "password', '",
    'password" value="',
    "password: |\n  ",
    "password\ninput_value=",
    "password>",
    "password|",
    "Passwort ist ",
    "passwort:",
    "пароль ",
    "パスワード",
    "パスワードは",
    "it's x1 now password ",
    "password one: ",
    "login with a and ",
    "login a / ",
    "user:Ab1!xyz9 ",
    "Monday2026* login ",
    "pin 1 ",
    "code 482 ",
    "code: 482-913 ",
    "recovery codes:\n",
    "recovery codes: ab12-cd34 ",
    "123456 is your code ",
    " -p ",
    "snmp -A ",
    "sudo -S <<< ",
    "btoa('a:",
    "echo a:b | base64 ",
    "sessionid=",
    "cookie: a=b; ",
    "auth=('a', '",
    "user,password\n",
    "user,password\nbob,x",
    "password|a|",
    "a\tpassword\tb\n",
    "passwords:\n- ",
    'passwords = ["',
    "\n- passwords: abc",
    "'mysql', '-p', ",
    "setenv PASSWORD ",
    "passphrase: correct horse ",
    "ｐａｓｓ＝",
    "\\075",
]


@pytest.mark.parametrize("unit", sample(REPEATED, len(REPEATED) // 2))
def test_redaction_time_is_linear(unit: str) -> None:
    assert is_time_linear(redact, "password=", unit, rounds(5_000, 40_000))


@pytest.mark.parametrize("unit", sample(REPEATED_NAMES, len(REPEATED_NAMES) // 2))
def test_time_of_names_is_linear(unit: str) -> None:
    assert is_time_linear(redact, "password=", unit, rounds(2_500, 40_000))


FOLDER = Path(redaction.__file__).parent
TREES = {
    path: ast.parse(path.read_text("utf-8")) for path in sorted((*FOLDER.glob("*.py"), FOLDER.parent / "private.py"))
}


def list_gate_words() -> str:
    """Return every word for which a text is searched, alone, in quotes and as the end of a name, and their marks."""
    texts = {
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    words = {word for text in texts for word in re.findall(r"[^\W\d_]{3,20}", text)}
    marks = {text for text in texts if len(text) < 20 and text.isascii() and not text.isalpha()}
    return "\n".join([*sorted(words), *(f'"{word} _{word}' for word in sorted(words)), *sorted(marks)])


GATE_WORDS = list_gate_words()
RUNS = [
    *"\\ \t\n\"'-=:a1A.,_/<([{$%+@&;*|~#é",
    *('\\"', ' "', "\n ", "a ", "A1", "=a", ": ", "-a", "a\n", "\r\n", "\\'", "| ", "x.", "/a", "a@", "a=b; ", "0 "),
]


@pytest.mark.parametrize("unit", ["\\", *sample(RUNS[1:], len(RUNS) // 5)])
def test_time_after_every_gate_word_is_linear(unit: str) -> None:
    assert len(GATE_WORDS) > 20_000
    assert is_time_linear(redaction.find_secrets, GATE_WORDS, unit, 25_000)


@pytest.mark.parametrize("start", ['password="a1!', "password: a1!", "Authorization: Bearer " + mixed_chars(24)])
def test_time_of_secret_with_backslashes_is_linear(start: str) -> None:
    assert is_time_linear(lambda text: redact(text + 'x2!"'), start, "\\", 5_000)


def test_no_search_begins_with_endless_repetition() -> None:
    """A search tries each place of a long run, and reads the run to its end at each."""
    patterns = {(path.name, pattern) for path, pattern in iter_searched_patterns()}
    assert len(patterns) > 50
    assert [(name, pattern) for name, pattern in patterns if begins_without_end(parse_pattern(pattern))] == []
    assert begins_without_end(parse_pattern(r'(?:\\*"a|b)'))
    assert not begins_without_end(parse_pattern(r'(?:"a\\*"|b\\*)'))


def iter_searched_patterns() -> Iterator[tuple[Path, str]]:
    """Yield the patterns of calls such as `compile_pattern(...).search(...)`, as far as a module defines them."""
    for path, tree in TREES.items():
        parts = path.relative_to(FOLDER.parents[2]).with_suffix("").parts
        module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
        for function in ast.walk(tree):
            nodes = list(ast.walk(function)) if isinstance(function, ast.FunctionDef) else []
            named = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
            values = {ast.dump(node.targets[0]).replace("Store", "Load"): node.value for node in named}
            for node in nodes:
                if isinstance(node, ast.Attribute) and node.attr in ("search", "finditer", "findall", "sub", "split"):
                    call = values.get(ast.dump(node.value), node.value)
                    if isinstance(call, ast.Call) and "compile_pattern" in ast.dump(call.func) and call.args:
                        with suppress(NameError):  # some are put together in a function
                            yield path, eval(compile(ast.Expression(call.args[0]), "", "eval"), vars(module))


def parse_pattern(pattern: str) -> list[Any]:
    return list(re._parser.parse(pattern, re.VERBOSE if "\n" in pattern else 0))  # type: ignore[attr-defined]


MAX_REPEAT = re._constants.MAXREPEAT  # type: ignore[attr-defined]


def begins_without_end(parts: list[Any]) -> bool:
    """Return whether a parsed pattern begins with a repetition without end that something must follow."""
    name, value = str(parts[0][0]), parts[0][1]
    if "REPEAT" in name:
        follows = [kind for kind, details in parts[1:] if not (str(kind).endswith("REPEAT") and details[0] == 0)]
        return value[1] == MAX_REPEAT and bool(follows)
    if name == "BRANCH":
        return any(begins_without_end([*branch, *parts[1:]]) for branch in value[1] if [*branch, *parts[1:]])
    return name == "SUBPATTERN" and begins_without_end([*value[3], *parts[1:]])


def test_no_possessive_group() -> None:
    """Python before 3.11.5 matches a possessive repetition of a group wrongly, and secrets would stay."""
    source = "".join(path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py")))
    assert "(?>" in source
    assert re.findall(r"\)\s?(?:[*+?]|\{\d+,?\d*\})\+(?=\s|$|[)(|])", source, re.MULTILINE) == []
