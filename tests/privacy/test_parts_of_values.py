"""No part of a value that a call may only pass on comes back: errors are cut, and a part is not recognized."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.threads import run_sync
from athena.core.values import Scope
from conftest import Engine

SECRET = "zK9xQw77mortarHeron42"
TWO_LINES = "pQ8vTnm31cedarRaven\n\nuW5yBgk64walnutFinch"
CARD = "4111 1111 1111 1111"
ASK = """
def ask(**arguments):
    try:
        return "fine: " + str(crm.add_contact(**arguments))
    except ToolError as error:
        return str(error)
"""


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Iterator[PrivateApp]:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as app:
        add_secrets(app)
        yield app


def add_secrets(app: PrivateApp) -> None:
    (app.folder / "contacts.json").write_text("[]")
    app.add_server("crm")
    for name, secret in {"key": SECRET, "lines": TWO_LINES}.items():
        run_sync(app.vault.put_secret(Scope("p"), name, secret, ["crm.add_contact"]))


def ask(app: PrivateApp, code: str) -> list[str]:
    run = app.run(ASK + code, engine="python")
    assert run.error is None, run.error
    answers: list[str] = run.result if not run.handle else app.call("mcp", "read_file", path=run.handle)
    return answers


def list_parts(text: str, value: str, size: int = 4) -> list[str]:
    """Return the parts of a value that a text holds."""
    parts = [value[i : i + size] for i in range(len(value) - size + 1)]
    return [part for part in parts if part in text]


def assert_nothing_shown(answers: list[str], *values: str) -> None:
    for answer in answers:
        assert [list_parts(answer, value) for value in values] == [[] for _ in values], answer


def test_refused_argument_is_quoted_with_its_token(app: PrivateApp) -> None:
    answers = ask(app, '[ask(email="a@b.example", level="p" * n + "[VAULT:key]") for n in range(0, 41)]')
    assert_nothing_shown(answers, SECRET)
    assert "fine" in answers[0]  # the server decides what a value is worth of which we see only the token


def test_secret_that_is_guessed_is_not_told_apart(app: PrivateApp) -> None:
    right, wrong = ask(app, f'[ask(email="a@b.example", level=x) for x in ("{SECRET}", "{SECRET[:-1]}3")]')
    assert right.replace(SECRET, "") == wrong.replace(f"{SECRET[:-1]}3", "")


def test_limits_hold_for_what_has_no_token(app: PrivateApp) -> None:
    fits, short = ask(app, '[ask(email="a@b.example", pin=x) for x in ("[VAULT:key]", "x" * 19)]')
    assert fits.startswith("fine")
    assert "pin has a length of 19" in short


def test_keys_are_sent_as_they_are(app: PrivateApp) -> None:
    code = """
[ask(email="a@b.example", strict={"k" * n + "[VAULT:key]": "x"}) for n in range(0, 61, 3)] + [
    ask(**{"email": "a@b.example", "k" * n + "[VAULT:key]": "x"}) for n in range(0, 61, 3)] + [
    ask(email="a@b.example", more={"[VAULT:key]": "[VAULT:key]", "": "[VAULT:key]"})]
"""
    assert_nothing_shown(ask(app, code), SECRET)
    [sent] = [json.loads(line) for line in (app.folder / "crm.jsonl").read_text().splitlines()]
    assert sent["more"]["[VAULT:key]"] == SECRET


@pytest.mark.parametrize(
    ("email", "lengths"),
    # three crashes in a row, and there is a delay
    [("refuse", (285, 290)), ("crash", (160, 165)), ("noise", (185, 190)), ("garble", (48, 60)), ("flood", (165,))],
)
def test_words_of_a_server_are_cut_after_secrets_are_hidden(app: PrivateApp, email: str, lengths: list[int]) -> None:
    texts = [f'"y" * {length} + "[VAULT:key]" + "y" * 12' for length in lengths]
    lines = [f'ask(email="{email}@x.example", secret={text})' for text in (*texts, '"[VAULT:lines]"')]
    assert_nothing_shown(ask(app, f"[{', '.join(lines)}]"), SECRET, *TWO_LINES.split())


def test_failure_of_a_tool_is_cut_after_secrets_are_hidden(app: PrivateApp) -> None:
    code = '[ask(email="broken" + "y" * n + "[VAULT:key]@x.example") for n in (10, *range(955, 990, 3))]'
    answers = ask(app, code)
    assert_nothing_shown(answers, SECRET)
    assert "[VAULT:key]@x.example" in answers[0]


@pytest.mark.parametrize("count", [1, 3_500])
def test_end_of_a_very_long_failure_is_not_shown(app: PrivateApp, count: int) -> None:
    code = f'[ask(email="broken" + "y" * n + "[VAULT:key]" * {count}) for n in (65_500, 65_510, 500, 510, 520)]'
    assert_nothing_shown(ask(app, code), SECRET)


@pytest.fixture
def strict(tmp_path: Path, engine: Engine) -> Iterator[PrivateApp]:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "strict", names=["Ada Lovelace"]) as app:
        yield app


def test_personal_value_in_the_words_of_a_server_is_hidden_before_the_cut(strict: PrivateApp) -> None:
    add_secrets(strict)
    strict.call("cli", "remember", content=f"card {CARD}")
    [token] = [row.token for row in strict.call("cli", "list_tokens") if "CARD" in row.token]
    code = f'[ask(email="broken" + "y" * n + "{token}77@x.example") for n in (10, *range(955, 990, 3))]'
    assert_nothing_shown(ask(strict, code), CARD)
