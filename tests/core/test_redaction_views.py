"""Redaction of secrets that are encoded, broken, or said in a sentence, and its measured recall and precision."""

import base64
import json

import pytest
from evaluate_redaction import FOLDER, measure_labels, read_labels
from test_redaction import FOUND, mixed_chars

from athena.core.redaction import RedactedText, find_secrets, redact

# the keys that need no name before them
KEYS = [(kind, secret) for before, kind, secret, after in FOUND if not before and "\n" not in secret]
TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
PASSWORD = "hunter2" + "-Secret99"
HIDDEN = "[SECRET:github-token]"

ENCODINGS = {
    "json": lambda text: json.dumps({"out": f"first\n{text}\nlast"}),
    "json in json": lambda text: json.dumps(json.dumps({"out": f"first\t{text}\n"})),
    "colour": lambda text: f"\x1b[1;31m{text}\x1b[0m",
    "colour in json": lambda text: json.dumps(f"\x1b[31m{text}\x1b[0m"),
    "url": lambda text: f"https://example.org/?next=%2Fa%3Fx%3D{text}%26y%3D1",
    "html": lambda text: f"<a title=&quot;{text}&quot;>",
    "html number": lambda text: f"a&#61;{text}&#10;b",
    "bidi": lambda text: f"a\u202e{text}\u202c b",
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS.keys())
@pytest.mark.parametrize(("kind", "secret"), KEYS, ids=[secret[:8] for _, secret in KEYS])
def test_encoded_text_loses_key(encode: object, kind: str, secret: str) -> None:
    text = encode(secret)  # type: ignore[operator]
    assert redact(text) == RedactedText(text.replace(secret, f"[SECRET:{kind}]"), (kind,))


@pytest.mark.parametrize(
    "char", ["\u200b", "\u200d", "\ufeff", "\u00ad", "\x1b[0m", "\\\n", "\n", "=\n", "\r\n    ", "\n> "]
)
@pytest.mark.parametrize("at", [8, 16, 30])
def test_broken_key_is_replaced(char: str, at: int) -> None:
    assert redact(f"key:\n{TOKEN[:at]}{char}{TOKEN[at:]}\nend").text == f"key:\n{HIDDEN}\nend"


def test_complete_key_at_end_of_line_leaves_next_line() -> None:
    assert redact(f"{TOKEN}\nabc123DEF then").text == f"{HIDDEN}\nabc123DEF then"


@pytest.mark.parametrize(
    "text", [f"token={TOKEN}", f'{{"password": "{PASSWORD}"}}', f"export DB_PASSWORD={PASSWORD}\n"]
)
def test_blob_with_secret_is_replaced(text: str) -> None:
    for blob in (
        base64.b64encode(text.encode()).decode(),
        base64.urlsafe_b64encode(text.encode()).decode(),
        text.encode().hex(),
    ):
        redacted = redact(f"data: {blob} end")
        assert redacted.text.startswith("data: [SECRET:")
        assert redacted.text.endswith(" end")
        assert blob[:16] not in redacted.text


def test_blob_of_several_lines_is_replaced() -> None:
    lines = base64.encodebytes((f"password={PASSWORD}\n" * 8).encode()).decode()
    assert redact(f"body:\n{lines}").text == "body:\n[SECRET:password]\n"


def test_json_of_redacted_text_is_still_json() -> None:
    text = json.dumps({"log": f'a "quoted" {TOKEN}\n', "password": PASSWORD, "n": 1})
    assert json.loads(redact(text).text) == {"log": f'a "quoted" {HIDDEN}\n', "password": "[SECRET:password]", "n": 1}


SAID = [
    "my password for staging is {}",
    "the wifi password's {}",
    "log in with admin / {}",
    "pw: {}",
    "use {} as the passphrase",
    "the root password was changed to {} today",
    "mein Passwort lautet {}",
    "le mot de passe est {}",
    "la contraseña es {}",
    "het wachtwoord is {}",
    "machine example.org login bob password {}",
    "db.example.org:5432:shop:bob:{}",
    "[client]\nuser=root\npassword={}\n",
    "mysql -u root -p{} shop",
    "docker login -u bob -p {} registry",
    "sshpass -p {} ssh host",
    "redis-cli -a {} ping",
    "htpasswd -b .htpasswd bob {}",
    "curl --user bob:{} https://example.org",
]
NOT_SAID = [
    "the password is stored in the vault",
    "password reset is broken",
    "the token is expired",
    "passwords must have 12 characters",
    "the PIN has 4 digits",
    "error code is 4821",
    "mysql -u root -p shop",
    "docker run -p 8080:80 nginx",
    "curl -u bob:$PASS https://example.org",
    "Cookie: lang=en; theme=dark",
    f"integrity sha512-{mixed_chars(86)}==",
]


@pytest.mark.parametrize("sentence", SAID)
def test_said_password_is_replaced(sentence: str) -> None:
    assert redact(sentence.format(PASSWORD)).text == sentence.format("[SECRET:password]")


@pytest.mark.parametrize("sentence", NOT_SAID)
def test_talk_of_passwords_stays(sentence: str) -> None:
    assert find_secrets(sentence) == []


@pytest.mark.parametrize("said", ["my PIN is 4821", "the alarm code is 4821", "OTP: 482913"])
def test_said_number_is_replaced(said: str) -> None:
    assert redact(said).kinds == ("pin",)


def test_cookie_and_digest_are_replaced() -> None:
    value = mixed_chars(24)
    assert redact(f"Cookie: theme=dark; session={value}").text == "Cookie: theme=dark; session=[SECRET:cookie]"
    header = f'Authorization: Digest username="bob", uri="/", response="{value}"'
    assert redact(header).text == header.replace(value, "[SECRET:bearer-token]")


@pytest.mark.parametrize("name", ["own.jsonl", "other.jsonl"])
def test_recall_and_precision_on_labelled_texts(name: str) -> None:
    if not (FOLDER / name).exists():
        pytest.skip(f"{name} is not there")
    labels = list(read_labels(FOLDER / name))
    assert len(labels) >= 1000
    assert sum(not label["secrets"] for label in labels) >= 0.3 * len(labels)
    total, _ = measure_labels(labels)
    assert total.recall >= 0.97, total.misses[:5]
    assert total.precision >= 0.97, total.misses[:5]
