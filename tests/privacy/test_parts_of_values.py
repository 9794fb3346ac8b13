"""No part of a value that a call may only pass on comes back: errors are cut, and a part is not recognized."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def create_project(folder: Path) -> str:
    root = folder / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return str(root)


@pytest.fixture
def strict(tmp_path: Path, engine: Engine) -> Iterator[PrivateApp]:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "strict", names=["Ada Lovelace"]) as app:
        yield app


FORMS = """
forms = ["{0}", "{0}77", "q{0}q", "/zz/{0}", "zz/{0}77", "'\\"{0}"] + ["k" * n + "/{0}" for n in range(170, 200, 5)]
answers = []
for form in forms:
    for call in (
        lambda: documents.ingest_document(path=form),
        lambda: documents.get_document(source=form),
        lambda: documents.delete_document(source=form),
    ):
        try:
            answers.append("fine: " + str(call()))
        except ToolError as error:
            answers.append(str(error))
answers
"""


@pytest.mark.parametrize("value", [CARD, "ada@example.com", "Ada Lovelace", "+14155552671"])
def test_paths_of_documents_are_quoted_with_their_tokens(strict: PrivateApp, tmp_path: Path, value: str) -> None:
    project = create_project(tmp_path)
    strict.call("cli", "remember", project=project, content=f"the card, mail, name or phone is {value}")
    [token] = [row.token for row in strict.call("cli", "list_tokens", project=project)]
    run = strict.run(FORMS.replace("{0}", token), project=project, engine="python")
    assert run.error is None, run.error
    answers = run.result if not run.handle else strict.call("mcp", "read_file", project=project, path=run.handle)
    assert_nothing_shown(answers, value)
    assert any(f"{token}77" in answer for answer in answers)


def test_document_is_found_by_the_tokens_in_its_path(strict: PrivateApp, tmp_path: Path) -> None:
    project = create_project(tmp_path)
    folder = Path(project) / "ada@example.com"
    folder.mkdir()
    (folder / "plan-for-bob@example.com.md").write_text("# Plan\n\nWalls first.\n")
    strict.call("mcp", "ingest_document", project=project, path=".")
    [document] = strict.call("mcp", "list_documents", project=project)
    name = document.source.removeprefix(f"{Path(project).resolve()}/")
    assert "@" not in name
    for source in (document.source, name):
        assert "Walls" in strict.call("mcp", "get_document", project=project, source=source)[0]
    again: Any = strict.call("mcp", "ingest_document", project=project, path=name.partition("/")[0])
    assert (again.new, again.unchanged) == (0, 1)
    assert strict.call("mcp", "delete_document", project=project, source=name) == 1


def test_personal_value_in_the_words_of_a_server_is_hidden_before_the_cut(strict: PrivateApp) -> None:
    add_secrets(strict)
    strict.call("cli", "remember", content=f"card {CARD}")
    [token] = [row.token for row in strict.call("cli", "list_tokens") if "CARD" in row.token]
    code = f'[ask(email="broken" + "y" * n + "{token}77@x.example") for n in (10, *range(955, 990, 3))]'
    assert_nothing_shown(ask(strict, code), CARD)


def test_answer_that_repeats_a_value_beside_other_letters_shows_its_token(strict: PrivateApp) -> None:
    add_secrets(strict)
    strict.call("cli", "remember", content=f"card {CARD}")
    [token] = [row.token for row in strict.call("cli", "list_tokens") if "CARD" in row.token]
    answers = ask(strict, f'[ask(email="a@b.example", secret=x) for x in ("{token}", "{token}77", "q{token}q")]')
    assert_nothing_shown(answers, CARD)
    assert f"{token}77" in answers[1]
