"""The modes boundary and strict: what models, programs, people, tools and the store get to see."""

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.approval import format_call_subject
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import AthenaError, Denied, InvalidInput, Misconfigured, NotFound
from athena.storage import vault_rows
from athena.storage.database import Transaction
from athena.storage.privacy_guard import PrivacyMode
from athena.storage.sqlite.store import Sqlite
from conftest import Engine
from person_tools import decide_run
from wait_tools import wait_until

EMAIL, PHONE, CARD = "ada.lovelace@example.com", "+1 415 555 2671", "4111 1111 1111 1111"
TEXT = f"Ada wrote from {EMAIL}, her phone is {PHONE}, the card {CARD}."
HIDDEN = "Ada wrote from [EMAIL_1], her phone is [PHONE_1], the card [CARD_1]."


@pytest.fixture(params=["boundary", "strict"])
def mode(request: pytest.FixtureRequest) -> PrivacyMode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def private(tmp_path: Path, engine: Engine, mode: PrivacyMode) -> Iterator[PrivateApp]:
    (tmp_path / "contacts.json").write_text(json.dumps([{"name": "Ada", "email": EMAIL, "phone": PHONE}]))
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, mode, names=("Grace Hopper",)) as app:
        yield app


def test_store_holds_tokens_and_people_read_values(private: PrivateApp) -> None:
    private.call("mcp", "remember", content=TEXT, tags=[EMAIL])
    private.call("cli", "remember", content=f"Second note of {EMAIL}")
    for value in (EMAIL, PHONE, CARD):
        assert value not in private.read_texts()
    seen = {hit.content for hit in private.call("mcp", "recall", query="what did Ada write from")}
    assert HIDDEN in seen
    for surface in ("cli", "python", "http"):
        contents = {hit.content for hit in private.call(surface, "recall", query="what did Ada write from")}
        assert TEXT in contents
    assert private.call("mcp", "list_tags")[0].tag == "[EMAIL_1]"


@pytest.mark.sqlite_only("PostgreSQL syncs every commit")
def test_token_is_durable_before_anybody_sees_it(private: PrivateApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the number of a token that was lost would be given to another value."""
    store = private.app.store.database
    assert isinstance(store, Sqlite)
    log, insert_rows, commits = store._log, vault_rows.insert_rows, list[int]()

    async def record(tx: Transaction, rows: Any) -> None:
        commits.append(log._unsynced_commits + 1)  # the number of this one
        await insert_rows(tx, rows)

    monkeypatch.setattr(vault_rows, "insert_rows", record)
    assert private.call("mcp", "tokenize", text=EMAIL).text == "[EMAIL_1]"
    assert log._synced_commits >= commits[-1]
    with pytest.raises(NotFound, match=r"\[PHONE_1\]"):
        private.call("mcp", "get_run", run_id=PHONE)
    assert log._synced_commits >= commits[-1]
    assert private.run(f"'{CARD}'").result == "[CARD_1]"
    assert log._synced_commits >= commits[-1]
    assert len(commits) >= 3


def test_search_by_address_finds_whatever_its_spelling(private: PrivateApp) -> None:
    for number in range(12):
        private.call("mcp", "remember", content=f"Note of user{number}@example.com about lamps")
    private.call("mcp", "remember", content=TEXT)
    for surface in ("mcp", "cli"):
        for query in (EMAIL, EMAIL.upper(), "[EMAIL_13]"):
            found = private.call(surface, "recall", query=query)
            assert found[0].content == (TEXT if surface == "cli" else HIDDEN.replace("EMAIL_1", "EMAIL_13"))


def test_program_result_output_and_error_hold_tokens(private: PrivateApp) -> None:
    for surface in ("mcp", "cli", "python"):
        done = private.run(f"print('{EMAIL}')\n{{'mail': '{EMAIL}', 'n': 2}}", surface)
        assert (done.output, done.result) == ("[EMAIL_1]\n", {"mail": "[EMAIL_1]", "n": 2})
        failed = private.run(f"raise ValueError('cannot reach {EMAIL}')", surface)
        assert failed.error.message == "cannot reach [EMAIL_1]"
    with pytest.raises(AthenaError) as caught:
        private.call("mcp", "get_memory", memory_id=f"{EMAIL} is no id")
    assert EMAIL not in f"{caught.value} {caught.value.hint}"
    long = private.run(f"['{EMAIL} and more'] * 3000")
    assert long.handle
    assert EMAIL not in str(long)
    assert private.call("mcp", "read_file", path=long.handle, limit=1) == ["[EMAIL_1] and more"]
    cut = private.run(f"print('x' * 65 + ' {EMAIL}' * 200_000)")
    assert "ada" not in cut.output


def test_programs_see_values_in_boundary_and_tokens_in_strict(private: PrivateApp, mode: PrivacyMode) -> None:
    private.call("mcp", "remember", content=TEXT)
    seen = private.run("len([m for m in memory.list_memories() if 'ada.lovelace' in m['content']])")
    assert seen.result == (1 if mode == "boundary" else 0)
    literal = private.run("'[EMAIL_1]'.startswith('ada')")  # a token that the model writes
    assert literal.result is (mode == "boundary")
    sliced = private.run("memory.list_memories()[0]['content'].split()[3][:3]")
    assert sliced.result == ("ada" if mode == "boundary" else "[EM")  # docs/privacy.md says so


def test_variables_and_paused_runs_hold_no_values(private: PrivateApp, mode: PrivacyMode) -> None:
    private.call("mcp", "remember", content=TEXT)
    private.run("notes = memory.list_memories()\nmails = [m['content'].split()[3] for m in notes]")
    assert private.run("mails[0].rstrip(',') == '[EMAIL_1]'").result is True  # a literal of the model, so equal in both
    assert EMAIL not in private.read_texts()
    assert (
        EMAIL.encode() not in (private.folder / "home.db").read_bytes()
        if (private.folder / "home.db").exists()
        else True
    )


def test_unknown_and_foreign_tokens_mean_nothing(private: PrivateApp) -> None:
    private.call("mcp", "remember", content=TEXT)
    private.call("mcp", "remember", project="other", content="Bob is at bob@example.org")
    text = "[EMAIL_1] [EMAIL_2] [EMAIL_99] [NOTHING_1] [EMAIL_0]"
    private.call("cli", "remember", project="other", content=f"tokens: {text}")
    contents = [memory.content for memory in private.call("cli", "list_memories", project="other")]
    assert f"tokens: {text.replace('[EMAIL_2]', 'bob@example.org')}" in contents
    done = private.run("'[EMAIL_99] [EMAIL_2]'")
    assert done.result == "[EMAIL_99] [EMAIL_2]"


def test_names_of_people_are_hidden_where_they_are_known(private: PrivateApp) -> None:
    entity = {"name": "Katherine Johnson", "entityType": "Person", "observations": ["likes numbers"]}
    private.call("mcp", "create_entities", entities=[entity])
    private.call("mcp", "remember", content="Katherine Johnson and Grace Hopper met Alan Turing.")
    assert private.call("mcp", "list_memories")[0].content == "[NAME_1] and [NAME_2] met Alan Turing."
    graph = private.call("mcp", "read_graph")
    assert [entity["name"] for entity in graph["entities"]] == ["[NAME_1]"]
    assert [entity["name"] for entity in private.call("cli", "read_graph")["entities"]] == ["Katherine Johnson"]
    assert private.call("cli", "open_nodes", names=["Katherine Johnson"])["entities"]


def test_date_that_was_told_as_birth_date_stays_hidden(private: PrivateApp) -> None:
    private.call("mcp", "remember", content="Ada: date of birth 1985-12-10")
    assert private.run("print('1985-12-10 1985-12-11')").output == "[BIRTH_DATE_1] 1985-12-11\n"


def test_number_that_only_its_field_told_stays_hidden(private: PrivateApp) -> None:
    contact = {"email": EMAIL, "mobile": "4155550123", "dob": "1985-12-10", "phone": 3_012_345_678.0}
    (private.folder / "contacts.json").write_text(json.dumps([contact]))
    private.add_server("crm")
    done = private.run(
        "c = crm.list_contacts()['contacts'][0]\nprint(c['mobile'], c['phone'])\n[c['dob'], [c['mobile']], c['phone']]"
    )
    assert done.error is None
    for digits in ("4155550123", "1985-12-10", "3012345678"):
        assert digits not in repr(done)
    echo = private.run("crm.add_contact(email='[EMAIL_1]', secret='4155550123')")
    assert echo.result.startswith("added [EMAIL_1] [PHONE_")


def test_numbers_and_keys_are_hidden(private: PrivateApp) -> None:
    done = private.run("n = int('41' + '1' * 14)\nprint(n, float(n))\n{str(n): [n, float(n), -n], 'n': 41}")
    assert done.output == "[CARD_1] [CARD_1].0\n"
    assert done.result == {"[CARD_1]": ["[CARD_1]", "[CARD_1]", "-[CARD_1]"], "n": 41}


def test_names_of_files_and_workspaces_hold_tokens(private: PrivateApp) -> None:
    private.call("mcp", "write_file", path=f"{EMAIL}.txt", content="x", workspace=EMAIL)
    assert [file.path for file in private.call("mcp", "list_files", workspace="[EMAIL_1]")] == ["[EMAIL_1].txt"]
    assert [file.path for file in private.call("cli", "list_files", workspace=EMAIL)] == [f"{EMAIL}.txt"]
    assert private.run("x = 5", workspace=EMAIL).error is None
    assert private.run("x", workspace="[EMAIL_1]").result == 5
    assert EMAIL not in private.read_texts()


def test_error_has_no_cause_that_a_traceback_would_show(private: PrivateApp) -> None:
    with pytest.raises(AthenaError) as caught:
        private.call("mcp", "get_memory", memory_id=f"{EMAIL} is no id")
    assert EMAIL not in "".join(traceback.format_exception(caught.value)).replace(f'{EMAIL} is no id")', "")


def test_tool_receives_values_and_model_sees_tokens(private: PrivateApp) -> None:
    target = private.add_server("crm")
    done = private.run("c = crm.list_contacts()['contacts'][0]\ncrm.add_contact(email=c['email'], phone=c['phone'])")
    assert done.error is None
    assert json.loads(target.read_text()) == {"email": EMAIL, "phone": PHONE}
    assert done.result == "added [EMAIL_1] "
    direct = private.call("mcp", "crm.add_contact", email="[EMAIL_1]")
    assert direct == "added [EMAIL_1] "
    assert json.loads(target.read_text().splitlines()[1]) == {"email": EMAIL}
    failed = private.run("crm.add_contact(email='broken@example.com')")
    assert "broken@" not in str(failed)
    found = private.call("mcp", "search_tools", query="contacts of the crm")
    assert "owner@contacts.example" not in str(found)
    assert EMAIL not in private.read_texts()


def test_repeated_call_of_tool_gives_the_same(private: PrivateApp) -> None:
    private.add_server("crm")
    first, second = (private.call("python", "crm.list_contacts", key="k") for _ in range(2))
    assert first["contacts"][0]["email"] == EMAIL
    assert EMAIL not in private.read_texts()
    assert second["contacts"][0]["email"] == (EMAIL if private.mode == "boundary" else "[EMAIL_1]")


def test_server_receives_only_its_kinds(private: PrivateApp) -> None:
    target = private.add_server("crm", receives=["PHONE"], receivesByTool={"list_contacts": []})
    refused = private.run(f"crm.add_contact(email='{EMAIL}', phone='{PHONE}')")
    assert refused.error.message.endswith("crm.add_contact may not receive EMAIL")
    assert not target.exists()


def test_disclosures_are_counted_without_values(private: PrivateApp) -> None:
    private.add_server("crm")
    private.run(f"for _ in range(3): crm.add_contact(email='{EMAIL}', phone='{PHONE}')")
    wanted = {("crm", "add_contact", "EMAIL"): 3, ("crm", "add_contact", "PHONE"): 3}

    def is_counted() -> bool:  # in the background
        report = private.call("cli", "privacy_report")
        return {(row.server, row.tool, row.kind): row.sent for row in report.received} == wanted

    wait_until(is_counted)
    report = private.call("mcp", "privacy_report")
    assert EMAIL not in repr(report)
    assert report.mode == private.mode


def test_secret_by_name_reaches_only_allowed_tools(private: PrivateApp) -> None:
    target = private.add_server("crm")
    run_sync(private.vault.put_secret(Scope("p"), "crm_key", "hunter2-very-Secret", []))
    code = "crm.add_contact(email='x@example.com', secret='[VAULT:crm_key]')"
    refused = private.run(code)
    assert "may not receive the secret crm_key" in refused.error.message
    run_sync(private.vault.allow_secret(Scope("p"), "crm_key", ["crm.add_contact"]))
    done = private.run(code)
    assert json.loads(target.read_text())["secret"] == "hunter2-very-Secret"
    assert done.result == "added [EMAIL_1] [VAULT:crm_key]"
    assert private.run("'[VAULT:crm_key]'").result == "[VAULT:crm_key]"
    assert "hunter2" not in private.read_texts()
    private.add_server("mail")
    with pytest.raises(Denied, match="may not receive the secret crm_key"):
        private.call("mcp", "mail.add_contact", email="x@example.com", secret="[VAULT:crm_key]")
    (private.folder / "contacts.json").write_text(json.dumps([{"note": "the key is hunter2-very-Secret"}]))
    private.app.guard.forget_rules()  # within seconds otherwise
    assert private.run("crm.list_contacts()").result == {"contacts": [{"note": "the key is [VAULT:crm_key]"}]}


def test_approval_is_for_the_arguments_that_the_person_saw(private: PrivateApp) -> None:
    """They have tokens and names of secrets, in whose place the tool gets the values."""
    key, target = "hunter2-very-Secret", private.add_server("crm", approval="always")
    run_sync(private.vault.put_secret(Scope("p"), "crm_key", key, ["crm.add_contact"]))
    private.call("mcp", "tokenize", text=EMAIL)
    seen = {"email": "[EMAIL_1]", "secret": "[VAULT:crm_key]"}

    def make_call(shown: dict[str, str], sent: dict[str, str]) -> None:
        [leave] = private.app.approver.grant([format_call_subject("crm.add_contact", shown)])
        context = private.app.create_context("p", "cli", approval=leave)
        run_sync(invoke(private.app.catalog, "crm.add_contact", sent, context))

    make_call(seen, seen)
    assert json.loads(target.read_text()) == {"email": EMAIL, "secret": key}
    for others in (seen | {"email": "[EMAIL_2]"}, {"email": EMAIL, "secret": key}):
        with pytest.raises(Denied, match="no person has agreed"):
            make_call(seen, others)
        with pytest.raises(Denied, match="no person has agreed"):
            make_call(others, seen)


@pytest.mark.parametrize("removed", [True, False])
def test_leave_to_receive_a_secret_is_for_the_server_that_a_person_saw(private: PrivateApp, removed: bool) -> None:
    first = private.add_server("crm")
    run_sync(private.vault.put_secret(Scope("p"), "crm_key", "hunter2-very-Secret", ["crm.add_contact"]))
    code = "crm.add_contact(email='x@example.com', secret='[VAULT:crm_key]')"
    assert private.run(code).error is None
    if removed:
        private.app.gateway.remove_server("crm")
        private.app.catalog.refresh()
    # another command under the same name, whose tools a person has approved
    private.add_server("crm", env={"OTHER": "1"})
    refused = private.run(code)
    assert "crm.add_contact may not receive the secret crm_key" in refused.error.message
    assert "athena vault allow crm_key crm.add_contact" in refused.error.hint
    assert len(first.read_text().splitlines()) == 1
    run_sync(private.vault.allow_secret(Scope("p"), "crm_key", ["crm"]))
    assert private.run(code).error is None


def test_leave_without_a_fingerprint_does_not_hold(private: PrivateApp) -> None:
    private.add_server("crm")
    run_sync(private.vault.put_secret(Scope("p"), "crm_key", "hunter2-very-Secret", ["crm"]))

    async def write_as_before(tx: Transaction) -> None:
        await tx.execute("UPDATE vault SET allowed = 'crm crm.add_contact'")

    run_sync(private.app.store.database.write(write_as_before))
    refused = private.run("crm.add_contact(email='x@example.com', secret='[VAULT:crm_key]')")
    assert "may not receive the secret crm_key" in refused.error.message
    [info] = [token for token in private.call("cli", "list_tokens") if token.token == "[VAULT:crm_key]"]
    assert info.allowed == ()


def test_leave_needs_a_server(private: PrivateApp) -> None:
    with pytest.raises(NotFound, match="there is no server 'crm'"):
        run_sync(private.vault.put_secret(Scope("p"), "crm_key", "hunter2-very-Secret", ["crm.add_contact"]))


def test_secret_is_not_in_the_error_of_a_tool(private: PrivateApp) -> None:
    private.add_server("crm")
    run_sync(private.vault.put_secret(Scope("p"), "login", "broken-hunter2", ["crm"]))
    failed = private.run("crm.add_contact(email='[VAULT:login]@x')")
    assert "cannot add [VAULT:login]@x" in failed.error.message
    with pytest.raises(AthenaError) as caught:
        private.call("python", "crm.add_contact", email="[VAULT:login]@x")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


def test_call_that_waits_for_a_person_gets_its_values(private: PrivateApp) -> None:
    target = private.add_server("crm", approval="always")
    waiting = private.run(f"crm.add_contact(email='{EMAIL}')")
    assert waiting.status == "needs_approval"
    assert EMAIL not in repr(waiting)
    assert EMAIL not in private.read_texts()
    done = decide_run(private.app, waiting.run_id, project="p")
    assert json.loads(target.read_text()) == {"email": EMAIL}
    assert EMAIL not in repr(done)


def test_skill_keeps_tokens_and_works(private: PrivateApp) -> None:
    code = f"def greet(name: str) -> str:\n    return name + ' <{EMAIL}>'"
    private.call("mcp", "save_skill", name="greet", code=code, description="Greet.", example="greet('x')")
    assert EMAIL not in private.read_texts()
    assert private.run("skills.greet('Ada')").result == "Ada <[EMAIL_1]>"
    assert private.call("mcp", "run_skill", name="greet", arguments={"name": EMAIL}).result == "[EMAIL_1] <[EMAIL_1]>"
    code = f"def list_both() -> list:\n    # of {EMAIL}\n    return [b'{EMAIL}'.decode(), 4111111111111111]"
    private.call("mcp", "save_skill", name="list_both", code=code, description="List.", example="list_both()")
    assert EMAIL not in private.read_texts()
    assert "4111111111111111" not in private.read_texts()
    assert private.run("skills.list_both()").result == ["[EMAIL_1]", "[CARD_1]"]


def test_forgetting_reaches_variables_and_waiting_programs(private: PrivateApp) -> None:
    private.add_server("crm", approval="always")
    private.call("mcp", "remember", content=TEXT)
    private.run("kept = '[EMAIL_1]'")
    waiting = private.run("crm.add_contact(email='[EMAIL_1]')")
    assert waiting.status == "needs_approval"
    run_sync(private.vault.forget(Scope("p"), "EMAIL_1"))
    assert private.run("kept").error.type == "NameError"
    with pytest.raises(AthenaError):
        decide_run(private.app, waiting.run_id, project="p")
    assert private.call("cli", "list_memories")[0].content.startswith("Ada wrote from [EMAIL_1]")


def test_document_and_its_path_hold_tokens(private: PrivateApp, tmp_path: Path) -> None:
    folder = tmp_path / "documents" / EMAIL
    folder.mkdir(parents=True)
    (folder / "people.md").write_text(f"# People\n\n{TEXT}\n")
    for new in (1, 0):
        assert private.call("cli", "ingest_document", path=str(folder)).new == new
    assert EMAIL not in private.read_texts()
    [piece] = private.call("cli", "get_document", source=str(folder / "people.md"))
    assert TEXT in piece
    [document] = private.call("mcp", "list_documents")
    assert document.source.endswith("/documents/[EMAIL_1]/people.md")
    assert HIDDEN in private.call("mcp", "get_document", source=document.source)[0]
    (folder / "people.md").unlink()
    assert private.call("cli", "ingest_document", path=str(folder)).withdrawn == 1
    assert private.call("mcp", "list_documents") == []


def test_off_changes_nothing(tmp_path: Path, engine: Engine) -> None:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as app:
        app.call("mcp", "remember", content=TEXT)
        assert app.call("mcp", "list_memories")[0].content == TEXT
        assert app.run(f"print('{EMAIL}')").output == f"{EMAIL}\n"
        assert not (tmp_path / "keys").exists()


def test_key_in_the_folder_of_the_database_is_refused(tmp_path: Path, engine: Engine) -> None:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "strict") as app:
        app.vault.keys.path = str(tmp_path / "home" / "keys")
        with pytest.raises(Misconfigured, match="in the folder of the database"):
            app.call("mcp", "remember", content=TEXT)
        assert EMAIL not in app.read_texts()


def test_bad_name_of_secret_is_refused(private: PrivateApp) -> None:
    with pytest.raises(InvalidInput, match="no name for a secret"):
        run_sync(private.vault.put_secret(Scope("p"), "a b", "x", []))
