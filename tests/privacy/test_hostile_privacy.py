"""The vault and the rules of privacy, from programs that fill them, ask them, and carry private text through them."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.redaction.personal import PersonalRules, find_personal
from athena.core.redaction.texts import list_encodings
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.storage import vault
from athena.storage.database import Transaction
from conftest import Engine

DOCUMENT = "Globex closes on Tuesday"


@pytest.fixture
def open_app(tmp_path: Path, engine: Engine) -> Iterator[PrivateApp]:
    """An app of the mode `off`, whose project is a repository with a document."""
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as app:
        yield app


@pytest.fixture
def strict(tmp_path: Path, engine: Engine) -> Iterator[PrivateApp]:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "strict") as app:
        yield app


@pytest.fixture
def project(tmp_path: Path) -> str:
    root = tmp_path / "project"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / "plan.md").write_text(DOCUMENT)
    return str(root)


def fetch_marks(app: PrivateApp, workspace: str) -> str:
    async def read(tx: Transaction) -> Any:
        return await tx.fetch("SELECT private FROM runs WHERE workspace = :name ORDER BY id", name=workspace)

    return " ".join(row[0] for row in run_sync(app.app.store.database.read(read)))


def run_in(app: PrivateApp, project: str, workspace: str, code: str) -> Any:
    done = app.run(code, project=project, workspace=workspace)
    assert done.error is None, done.error
    return done.result


READ = 'documents.ingest_document(path="plan.md")\ntext = documents.get_document(source="plan.md")[0]\n'


def test_values_of_a_marked_run_mark_whoever_finds_them(open_app: PrivateApp, project: str) -> None:
    words = '" ".join(f"q{i}v{ord(c)}@leak.example" for i, c in enumerate(text))'
    run_in(open_app, project, "a", f"{READ}privacy.tokenize(text={words})['kinds']")
    found = 'privacy.tokenize(text="q0v71@leak.example")'
    for asked in ("len(privacy.list_tokens())", "privacy.privacy_report()['tokens']", found):
        name = f"b{len(asked)}"
        run_in(open_app, project, name, f"x = {asked}")
        assert fetch_marks(open_app, name) == "files", asked
    run_in(open_app, project, "c", 'x = privacy.tokenize(text="other@leak.example")')
    assert fetch_marks(open_app, "c") == ""


def test_names_of_a_marked_run_mark_whoever_finds_them(open_app: PrivateApp, project: str) -> None:
    people = '[{"name": f"zq{i} {ord(c)}zz", "entityType": "person", "observations": []} for i, c in enumerate(text)]'
    run_in(open_app, project, "a", f"{READ}x = graph.create_entities(entities={people})")
    open_app.app.guard.forget_rules()
    found = run_in(open_app, project, "b", 'privacy.detect_pii(text="it is zq0 71zz")')
    assert [match["kind"] for match in found] == ["NAME"]
    assert fetch_marks(open_app, "b") == "files"
    assert run_in(open_app, project, "c", 'privacy.detect_pii(text="it is zq0 72zz")') == []
    assert fetch_marks(open_app, "c") == ""


def test_value_of_a_document_marks_the_run_that_reads_it_back(tmp_path: Path, engine: Engine, project: str) -> None:
    (Path(project) / "plan.md").write_text("Write to ada@example.com")
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "boundary") as app:
        app.call("cli", "ingest_document", project=project, path=f"{project}/plan.md")
        code = 'm = memory.remember("token [EMAIL" + "_1]")\nmemory.get_memory(m["id"])["content"][6:10] == "ada" + "@"'
        assert run_in(app, project, "b", code) is True
        assert "files" in fetch_marks(app, "b")


def test_no_service_of_a_program_has_an_unwatched_database(open_app: PrivateApp) -> None:
    from athena.storage.privacy import PrivateReads, WatchedDatabase

    context = open_app.app.create_context("p", "mcp").for_program("r", "w", bool, PrivateReads())
    assert context.guard is not None
    for database in (context.database, context.guard.vault._database):
        assert isinstance(database, WatchedDatabase)


def test_guessed_numbers_get_tokens_of_their_own(strict: PrivateApp, monkeypatch: pytest.MonkeyPatch) -> None:
    strict.call("cli", "remember", content="Customer Ada was born 1984-07-23, phone +1 415 555 2671")
    seen = strict.call("mcp", "list_memories")[0].content
    tokens = [word.strip(",.") for word in seen.split() if word.startswith("[")]
    assert len(tokens) == 2
    guess = '"born 1984" + "-07-23, phone +1 415 555" + " 2671"'
    for text in (strict.run(f'privacy.tokenize(text={guess})["text"]').result, strict.run(guess).result):
        assert "1984" not in text
        assert not any(token in text for token in tokens)
    assert strict.run('privacy.detect_pii(text="on 1985" + "-07-23")').result == []


ECHOES = (
    "{}",
    "print({})",
    "raise ValueError({})",
    "memory.get_memory({})",
    "memory.remember({})",
    "workspace.write_file('a.txt', {})\nworkspace.read_file('a.txt')",
    "workspace.write_file('b.json', [{}])\nworkspace.read_file('b.json')",
    "mail.add_contact(email='x', secret={})",
)


@pytest.mark.parametrize("guesses", ['"1984-07-22 1984-07-23"', '" ".join(["14155552671", "14155552672"])'])
def test_bare_guesses_in_strict_tell_nothing(strict: PrivateApp, guesses: str) -> None:
    strict.call("cli", "remember", content="Customer Ada was born 1984-07-23, phone +1 415 555 2671")
    strict.add_server("mail", receives=[])
    for ask in ECHOES:
        done = strict.run(ask.format(guesses))
        assert not any(kind in repr(done) for kind in ("BIRTH", "PHONE")) or "mail" in ask, ask
        assert "may not receive" not in repr(done)
    assert strict.call("mcp", "remember", content=eval(guesses)).content == eval(guesses)


def test_guesses_put_together_in_the_store_tell_nothing(strict: PrivateApp) -> None:
    strict.call("cli", "remember", content="Ada was born 1984-07-23, write to ada@example.com")
    seen = strict.call("mcp", "list_memories")[0].content
    for text, start in (("xborn 1984-07-23", 1), ("https://ada@example.com", 8)):
        code = f"workspace.write_file('a.txt', {text!r})\nworkspace.read_file('a.txt', offset={start})"
        done = strict.run(code)
        assert done.error is None
        token = done.result[done.result.index("[") :]
        assert token not in seen
        assert strict.run(code).result == done.result


def test_strict_programs_try_few_values_an_hour(strict: PrivateApp) -> None:
    days = (
        '"\\n".join(f"born {y}-{m:02d}-{d:02d}" for y in range(1980, 1990) for m in range(1, 9) for d in range(1, 9))'
    )
    assert "may say 200 new personal values" in strict.run(f"privacy.tokenize(text={days})").error.message
    assert "may say 200 new" in strict.run(f"memory.recall({days})").error.message
    assert strict.run('privacy.tokenize(text="born 1984" + "-07-23")["kinds"]').result == {"BIRTH_DATE": 1}


def test_programs_add_a_bounded_number_of_values(open_app: PrivateApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "MAX_SAID_PER_HOUR", 20)
    code = 'privacy.tokenize(text=" ".join(f"a{i}@example.com" for i in range(15)))["kinds"]'
    assert open_app.run(code).result == {"EMAIL": 15}
    assert open_app.run(code).result == {"EMAIL": 15}  # the same values again
    assert "may say 20 new" in open_app.run(code.replace("a{i}", "b{i}")).error.message
    assert open_app.call("cli", "tokenize", text="me@example.com").kinds == {"EMAIL": 1}


def test_rules_do_not_grow_with_the_store(open_app: PrivateApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault, "MAX_PEOPLE", 5)
    people = [{"name": f"Person{i} Example", "entityType": "person", "observations": []} for i in range(9)]
    open_app.call("mcp", "create_entities", entities=people)
    open_app.call("cli", "tokenize", text="\n".join(f"born 19{i}-01-01" for i in range(10, 60)))
    names = run_sync(open_app.app.guard._load_rules(Scope("p"))).rules
    assert (len(names.names), dict(names.known)) == (5, {})
    found = open_app.call("cli", "detect_pii", text="on 1915-01-01 and 2015-01-01")
    assert [(match.kind, match.start) for match in found] == [("BIRTH_DATE", 3)]


def test_work_for_names_is_bounded_by_the_text() -> None:
    names = frozenset(f"{'ab'[i % 2]}{i} " + "a" * 60 for i in range(9_000)) | {"a b c e"}
    text = "a b c d " * 500
    assert find_personal(text, PersonalRules(names)) == []
    [match] = find_personal(text + "A  B_C.e", PersonalRules(names))
    assert (match.start, match.end) == (len(text), len(text) + 8)


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_encodings_of_a_secret_are_known(before: str) -> None:
    secret = 'zK/9"x+Qw77=mortar'
    forms = list_encodings(secret)
    for text in (
        json.dumps({"k": before + secret}),
        f"https://x/?k={quote(before + secret, safe='')}",
        quote(secret, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d"),
        secret.encode().hex(),
        base64.b64encode(f"{before}{secret}tail".encode()).decode(),
        base64.urlsafe_b64encode(f"{before}{secret}".encode()).decode().rstrip("="),
    ):
        assert any(form in text for form in forms), text


def test_secret_is_hidden_in_the_next_answer_and_encoded(tmp_path: Path, engine: Engine) -> None:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as app:
        run_sync(app.vault.put_secret(Scope("p"), "crm_key", 'zK/9"x+Qw77=mortar', ["crm"]))
        quoted, encoded = quote('zK/9"x+Qw77=mortar', safe=""), base64.b64encode(b'zK/9"x+Qw77=mortar').decode()
        contacts = [{"name": f"401 for https://api/x?key={quoted}", "email": 'zK/9"x+Qw77=mortar', "phone": encoded}]
        (tmp_path / "contacts.json").write_text(json.dumps(contacts))
        app.add_server("crm")
        [contact] = app.run("crm.list_contacts()['contacts']").result
        assert contact == {
            "name": "401 for https://api/x?key=[VAULT:crm_key]",
            "email": "[VAULT:crm_key]",
            "phone": "[VAULT:crm_key]",
        }
