"""The vault and the rules of privacy, from programs that fill them, ask them, and carry private text through them."""

import asyncio
import base64
import html
import json
import re
import secrets
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from privacy_tools import PrivateApp, open_private_app

from athena.core.redaction.personal import PersonalRules, find_personal
from athena.core.redaction.texts import SecretForms, _replace_across_gaps
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


SECRETS = ('zK/9"x+Qw77=mortar', "tr'ee \"house(9)!kettle", "a<b>&\\c/`d'e\"fé\ng")


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "x" * 50])
@pytest.mark.parametrize("secret", SECRETS)
def test_encodings_of_a_secret_are_hidden(before: str, secret: str) -> None:
    forms = SecretForms({secret: "[VAULT:key]"})
    as_json, quoted = json.dumps(before + secret), quote(before + secret, safe="")
    html_text = html.escape(before + secret, quote=False)
    encoded = base64.b64encode(f"{before}{secret}tail".encode()).decode()
    for text in (
        as_json,
        f"https://x/?k={quoted}",
        re.sub("%..", lambda match: match[0].lower(), quoted),
        quote(secret, safe="!*'()"),  # encodeURIComponent
        quote(secret, safe="!*'();,/?:@&=+$#"),  # encodeURI
        html.escape(before + secret),
        html_text.replace("'", "&#39;").replace('"', "&#34;"),  # Jinja, Go
        html_text.replace("'", "&#039;").replace('"', "&quot;"),  # PHP
        as_json.replace("'", "\\u0027"),
        re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", as_json),  # Go
        re.sub("[<>&'+`]|\\\\\"", lambda match: f"\\u{ord(match[0][-1]):04X}", as_json[1:-1]).replace(
            "00e9", "00E9"
        ),  # .NET
        as_json.replace("/", "\\/"),  # PHP
        json.dumps(as_json),
        json.dumps(json.dumps({"k": secret}, ensure_ascii=False)),
        secret.encode().hex(),
        encoded,
        base64.urlsafe_b64encode(f"{before}{secret}".encode()).decode().rstrip("="),
        base64.encodebytes(f"{before}{secret}{'y' * 80}".encode()).decode(),
        json.dumps(base64.encodebytes(f"{before}{secret}".encode()).decode().replace("\n", "\r\n")),
        textwrap.indent("\n".join(textwrap.wrap(encoded, 20)), "    "),
    ):
        hidden = forms.hide_in({"a": ["b", text]})["a"][1]
        assert hidden.count("[VAULT:key]") == 1, text
        assert len(hidden) < len(text) + 20


def test_token_of_a_hidden_secret_stays_whole() -> None:
    forms = SecretForms({"github": "[VAULT:a]", "walrus1": "[VAULT:github]", "0.1234": "[VAULT:c]"})
    texts = ["walrus1", "github walrus11234", "1", "0", "0.1234"]
    assert forms.hide_in(texts) == ["[VAULT:github]", "[VAULT:a] [VAULT:github]1234", "1", "0", "[VAULT:c]"]


def read_contact(app: PrivateApp, contact: Any) -> Any:
    (app.folder / "contacts.json").write_text(json.dumps([contact]))
    app.app.guard.forget_rules()
    return app.run("crm.list_contacts()['contacts'][0]").result


def test_secret_that_is_a_number_is_hidden(open_app: PrivateApp) -> None:
    open_app.add_server("crm")
    run_sync(open_app.vault.put_secret(Scope("p"), "pin", "482913", ["crm"]))
    answer = read_contact(open_app, {"a": 482913, "b": [482913.0, 14829135, 4.829131], "c": [7, 1.5, True, None]})
    assert answer == {"a": "[VAULT:pin]", "b": ["[VAULT:pin]", "1[VAULT:pin]5", 4.829131], "c": [7, 1.5, True, None]}


def test_short_secret_does_not_spoil_the_token_of_another() -> None:
    forms = SecretForms({"0": "[VAULT:pin]", "long-secret-1": "[VAULT:key]"})
    assert forms.hide_in("ok 0 and long-secret-1") == "ok [VAULT:pin] and [VAULT:key]"


def test_base64_with_wide_gaps_is_hidden() -> None:
    encoded = base64.b64encode(b"hunter22-and-more").decode()
    text = f"{encoded[:9]}{' ' * 500}{encoded[9:]}"
    assert SecretForms({"hunter22-and-more": "[VAULT:key]"}).hide_in(text) == "[VAULT:key]"


def test_secrets_of_one_name_are_both_hidden(open_app: PrivateApp) -> None:
    open_app.add_server("crm")
    run_sync(open_app.vault.put_secret(Scope("user"), "key", "heron-lantern-417", ["crm"]))
    run_sync(open_app.vault.put_secret(Scope("p"), "key", "otter-granite-802", ["crm"]))
    assert read_contact(open_app, "heron-lantern-417 otter-granite-802") == "[VAULT:key] [VAULT:key]"


@pytest.mark.parametrize("kind", ["letters", "broken letters"])
def test_long_answer_stops_no_other_thread(open_app: PrivateApp, kind: str) -> None:
    open_app.add_server("crm")
    for number in range(40):
        run_sync(open_app.vault.put_secret(Scope("p"), f"k{number}", secrets.token_urlsafe(24), ["crm"]))
    known = "hunter22-and-more"
    run_sync(open_app.vault.put_secret(Scope("p"), "known", known, ["crm"]))
    encoded, hidden = base64.b64encode(known.encode()).decode(), "[VAULT:known]"
    text, expected = {
        "letters": (secrets.token_urlsafe(3_000) * 1_000 + known, len(hidden) - len(known)),
        "broken letters": (f"{encoded[0]}\n" * 1_000_000 + encoded, len(hidden) - len(encoded)),
    }[kind]
    stalls, is_over = [0.0], threading.Event()

    def measure_stalls() -> None:
        while not is_over.is_set():
            began = time.perf_counter()
            time.sleep(0.005)
            stalls.append(time.perf_counter() - began)

    measuring = threading.Thread(target=measure_stalls)
    measuring.start()
    (open_app.folder / "contacts.json").write_text(json.dumps([text]))
    assert open_app.run("len(crm.list_contacts()['contacts'][0])").result == len(text) + expected
    is_over.set()
    measuring.join()
    assert max(stalls) < 1.5


@given(st.text("ab= \n\\nr", max_size=40), st.text("ab", min_size=1, max_size=4))
def test_forms_across_gaps_are_replaced_as_by_a_pattern(text: str, form: str) -> None:
    pattern = r"(?:[ \t\r\n]|\\[rn])*+".join(form)
    assert _replace_across_gaps(text, form, "#") == re.sub(pattern, "#", text)


def test_long_answer_is_searched_beside_the_event_loop(open_app: PrivateApp, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(SecretForms, "hide_in", lambda *_: threads.append(threading.current_thread()))
    for text in ("short", "long " * 10_000):
        asyncio.run(open_app.app.guard.hide_known(text, SecretForms({"heron-lantern-417": "[VAULT:key]"})))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_secret_is_hidden_in_the_next_answer_and_encoded(tmp_path: Path, engine: Engine) -> None:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as app:
        app.add_server("crm")
        run_sync(app.vault.put_secret(Scope("p"), "crm_key", 'zK/9"x+Qw77=mortar', ["crm"]))
        quoted, encoded = quote('zK/9"x+Qw77=mortar', safe=""), base64.b64encode(b'zK/9"x+Qw77=mortar').decode()
        contacts = [{"name": f"401 for https://api/x?key={quoted}", "email": 'zK/9"x+Qw77=mortar', "phone": encoded}]
        (tmp_path / "contacts.json").write_text(json.dumps(contacts))
        [contact] = app.run("crm.list_contacts()['contacts']").result
        assert contact == {
            "name": "401 for https://api/x?key=[VAULT:crm_key]",
            "email": "[VAULT:crm_key]",
            "phone": "[VAULT:crm_key]",
        }
