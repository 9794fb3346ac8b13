"""The vault: stable tokens, encryption at rest, rotation of the key, forgetting, and several projects."""

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from privacy_tools import open_private_app

from athena.core.clock import system_clock
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import Conflict, Denied, Misconfigured, NotFound, Unavailable
from athena.storage import vault_rows
from athena.storage.database import Database, Transaction
from athena.storage.sqlite.store import Sqlite
from athena.storage.vault import Vault
from athena.storage.vault_keys import KeyFolder
from canary_tools import read_all_files
from conftest import Engine
from wait_tools import LONG

P, Q, USER = Scope("p"), Scope("q"), Scope("user")
ADA = ("EMAIL", "ada@example.com")


@pytest.fixture
def database(tmp_path: Path, engine: Engine) -> Iterator[Database]:
    database = engine.open(tmp_path / "store" / "athena.db")
    yield database
    database.close()


@pytest.fixture
def vault(database: Database, tmp_path: Path) -> Vault:
    return Vault(database, system_clock, KeyFolder(str(tmp_path / "keys"), str(tmp_path / "store")), str)


def assign(vault: Vault, scope: Scope, *values: tuple[str, str]) -> list[str]:
    tokens = run_sync(vault.assign_tokens(scope, values))
    return [tokens[value] for value in values]


def resolve(vault: Vault, scope: Scope, *tokens: tuple[str, int]) -> dict[str, str]:
    return run_sync(vault.resolve_tokens(scope, tokens))


def test_tokens_are_stable_and_numbered(vault: Vault) -> None:
    bob, phone = ("EMAIL", "bob@example.com"), ("PHONE", "+1 415 555 2671")
    assert assign(vault, P, ADA, bob, phone) == ["[EMAIL_1]", "[EMAIL_2]", "[PHONE_1]"]
    assert assign(vault, P, phone, ADA, ("EMAIL", "eve@example.com")) == ["[PHONE_1]", "[EMAIL_1]", "[EMAIL_3]"]
    assert resolve(vault, P, ("EMAIL", 2), ("EMAIL", 9), ("CARD", 1)) == {"[EMAIL_2]": "bob@example.com"}


def test_token_means_nothing_in_another_project(vault: Vault) -> None:
    assert assign(vault, P, ADA) == ["[EMAIL_1]"]
    assert assign(vault, Q, ADA) == ["[EMAIL_2]"]
    assert resolve(vault, Q, ("EMAIL", 1)) == {}
    assert resolve(vault, P, ("EMAIL", 2)) == {}
    shared = ("EMAIL", "all@example.com")
    assert assign(vault, USER, shared) == ["[EMAIL_3]"]
    assert assign(vault, P, shared) == ["[EMAIL_3]"]  # what is true everywhere is one token
    assert resolve(vault, Q, ("EMAIL", 3)) == {"[EMAIL_3]": "all@example.com"}


def test_spellings_are_found_together(vault: Vault) -> None:
    assign(vault, P, ADA, ("EMAIL", "ADA@example.com"), ("PHONE", "+1 415 555 2671"), ("PHONE", "+14155552671"))
    found = run_sync(vault.find_spellings(P, [("EMAIL", "Ada@Example.com"), ("PHONE", "+1 (415) 555-2671")]))
    assert found == {
        ("EMAIL", "Ada@Example.com"): ["[EMAIL_1]", "[EMAIL_2]"],
        ("PHONE", "+1 (415) 555-2671"): ["[PHONE_1]", "[PHONE_2]"],
    }


def test_key_is_private_and_elsewhere(vault: Vault, tmp_path: Path) -> None:
    assign(vault, P, ADA)
    [key] = (tmp_path / "keys").iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    key.chmod(0o644)
    with pytest.raises(Misconfigured, match="others can read the key"):
        assign(Vault(vault._database, system_clock, vault.keys, str), P, ADA)
    key.chmod(0o600)
    key.rename(tmp_path / "away")
    with pytest.raises(Misconfigured, match="missing or damaged"):
        assign(Vault(vault._database, system_clock, vault.keys, str), P, ADA)


def test_key_must_not_lie_beside_the_database(database: Database, tmp_path: Path) -> None:
    inside = tmp_path / "store" / "keys"
    os.makedirs(tmp_path / "store", exist_ok=True)
    with pytest.raises(Misconfigured, match="in the folder of the database"):
        assign(Vault(database, system_clock, KeyFolder(str(inside), str(tmp_path / "store")), str), P, ADA)


def test_rotation_keeps_values_and_removes_the_old_key(vault: Vault, tmp_path: Path) -> None:
    assign(vault, P, ADA)
    run_sync(vault.put_secret(P, "api", "s3cret", ["crm"]))
    [old] = (tmp_path / "keys").iterdir()
    assert run_sync(vault.rotate_key()) == 2
    [new] = (tmp_path / "keys").iterdir()
    assert new != old
    fresh = Vault(vault._database, system_clock, vault.keys, str)
    assert resolve(fresh, P, ("EMAIL", 1)) == {"[EMAIL_1]": ADA[1]}
    assert assign(fresh, P, ADA) == ["[EMAIL_1]"]
    assert run_sync(fresh.resolve_secrets(P, ["api"], "crm.send")) == {"[VAULT:api]": "s3cret"}


@pytest.mark.parametrize("writes_first", [True, False])
def test_rotation_keeps_what_another_process_stores_meanwhile(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes_first: bool
) -> None:
    assign(vault, P, ADA)
    phone, reached, go_on = ("PHONE", "+1 415 555 2671"), threading.Event(), threading.Event()  # first of its kind
    other = Vault(vault._database, system_clock, vault.keys, str)
    name = "insert_rows" if writes_first else "delete_other_keys"
    slow_step: Any = getattr(vault_rows, name)

    async def pause(tx: Transaction, value: Any) -> None:
        await slow_step(tx, value)
        reached.set()
        go_on.wait(LONG)

    monkeypatch.setattr(vault_rows, name, pause)
    with ThreadPoolExecutor(2) as pool:
        works = [lambda: assign(other, P, phone), lambda: run_sync(vault.rotate_key())]
        first, second = works if writes_first else works[::-1]
        done = [pool.submit(first)]
        assert reached.wait(LONG)
        monkeypatch.setattr(vault_rows, name, slow_step)
        done.append(pool.submit(second))
        wait(done, timeout=0.5)
        go_on.set()
        assert ["[PHONE_1]"] in [one.result() for one in done]
    assert len(list((tmp_path / "keys").iterdir())) == 1
    fresh = Vault(vault._database, system_clock, vault.keys, str)
    assert resolve(fresh, P, ("EMAIL", 1), ("PHONE", 1)) == {"[EMAIL_1]": ADA[1], "[PHONE_1]": phone[1]}
    assert assign(fresh, P, ADA, phone) == ["[EMAIL_1]", "[PHONE_1]"]


def test_key_is_durable_before_the_store_needs_it(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    link, fsync, insert_key = os.link, os.fsync, vault_rows.insert_key

    def record_link(*paths: str) -> None:
        steps.append("link")
        link(*paths)

    def record_sync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path / "keys")):
            steps.append("sync")
        fsync(descriptor)

    async def record_use(tx: Transaction, key: str, now: float) -> None:
        steps.append("use")
        await insert_key(tx, key, now)

    monkeypatch.setattr(os, "link", record_link)
    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(vault_rows, "insert_key", record_use)
    assign(vault, P, ADA)
    run_sync(vault.rotate_key())
    assert steps == ["link", "sync", "use", "link", "sync", "use", "sync"]  # the last one: the old key is gone


def test_failed_rotation_keeps_the_keys_that_are_needed(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assign(vault, P, ADA)
    [old] = (tmp_path / "keys").iterdir()
    database, write = vault._database, vault._database.write

    async def lose_answer(work: Any) -> Any:
        await write(work)
        raise Unavailable("the connection was lost: it may be stored or not")

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", lose_answer)
        with pytest.raises(Unavailable):
            run_sync(vault.rotate_key())
    assert resolve(Vault(database, system_clock, vault.keys, str), P, ("EMAIL", 1)) == {"[EMAIL_1]": ADA[1]}
    kept = sorted((tmp_path / "keys").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(vault, "_decrypt", lambda row: vault.keys.read("missing"))
        with pytest.raises(Misconfigured):
            run_sync(vault.rotate_key())
    assert old in kept
    assert sorted((tmp_path / "keys").iterdir()) == kept  # without the key that nothing was written with


def test_forgotten_value_is_gone_and_its_number_is_not_used_again(vault: Vault) -> None:
    assign(vault, P, ADA)
    assert run_sync(vault.forget(P, "EMAIL_1")) == "[EMAIL_1]"
    assert resolve(vault, P, ("EMAIL", 1)) == {}
    with pytest.raises(NotFound):
        run_sync(vault.forget(P, "[EMAIL_1]"))
    assert assign(vault, P, ADA) == ["[EMAIL_2]"]
    with pytest.raises(NotFound):
        run_sync(vault.forget(Q, "[EMAIL_2]"))
    row = run_sync(vault._database.read(lambda tx: vault_rows.find_by_token(tx, [1], [("EMAIL", 1)])))[0]
    assert (row.lookup, row.spelling, row.value) == (None, None, None)


@pytest.mark.sqlite_only("it reads the files of the store")
def test_nothing_of_a_forgotten_value_is_left_in_the_files(vault: Vault, tmp_path: Path) -> None:
    assign(vault, P, ADA, ("EMAIL", "bob@example.com"))
    row = run_sync(vault._database.read(lambda tx: vault_rows.find_by_token(tx, [1], [("EMAIL", 1)])))[0]
    traces = [trace for trace in (row.value, row.lookup, row.spelling) if trace is not None]
    assert len(traces) == 3
    assert traces[0] in read_all_files(tmp_path / "store")  # encrypted, in the file or its log
    run_sync(vault.forget(P, "EMAIL_1"))
    data = read_all_files(tmp_path / "store")
    assert [trace for trace in traces if trace in data] == []
    assert resolve(vault, P, ("EMAIL", 2)) == {"[EMAIL_2]": "bob@example.com"}


@pytest.mark.sqlite_only("it copies the file of the store")
def test_backup_of_before_a_rotation_cannot_be_read(vault: Vault, tmp_path: Path) -> None:
    assign(vault, P, ADA)
    with sqlite3.connect(tmp_path / "store" / "athena.db") as live, sqlite3.connect(tmp_path / "old.db") as backup:
        live.backup(backup)
    with closing(Sqlite(tmp_path / "old.db")) as database:
        old = Vault(database, system_clock, KeyFolder(vault.keys.path, None), str)
        assert resolve(old, P, ("EMAIL", 1)) == {"[EMAIL_1]": ADA[1]}  # whoever has the key
    run_sync(vault.forget(P, "EMAIL_1"))
    run_sync(vault.rotate_key())
    with closing(Sqlite(tmp_path / "old.db")) as database:
        old = Vault(database, system_clock, KeyFolder(vault.keys.path, None), str)
        with pytest.raises(Misconfigured, match="missing or damaged"):
            resolve(old, P, ("EMAIL", 1))


def test_row_that_was_moved_to_another_token_is_refused(vault: Vault) -> None:
    assign(vault, P, ADA, ("EMAIL", "bob@example.com"))

    async def swap(tx: Transaction) -> None:
        first, second = await vault_rows.find_by_token(tx, [1], [("EMAIL", 1), ("EMAIL", 2)])
        await vault_rows.update_row(tx, first._replace(value=second.value))

    run_sync(vault._database.write(swap))
    with pytest.raises(Misconfigured, match="was changed"):
        resolve(vault, P, ("EMAIL", 1))


def test_secret_needs_leave(vault: Vault) -> None:
    run_sync(vault.put_secret(P, "api", "s3cret", []))
    with pytest.raises(Denied, match=r"crm\.send may not receive the secret api"):
        run_sync(vault.resolve_secrets(P, ["api"], "crm.send"))
    run_sync(vault.allow_secret(P, "api", ["crm.send"]))
    assert run_sync(vault.resolve_secrets(P, ["api", "other"], "crm.send")) == {"[VAULT:api]": "s3cret"}
    with pytest.raises(Denied):
        run_sync(vault.resolve_secrets(P, ["api"], "crm.list"))
    assert run_sync(vault.resolve_secrets(Q, ["api"], "crm.send")) == {}
    assert resolve(vault, P, ("SECRET", 1)) == {}  # only by its name
    [info] = run_sync(vault.list_tokens(P))
    assert (info.token, info.allowed) == ("[VAULT:api]", ("crm.send",))
    assert run_sync(vault.forget(P, "api")) == "[VAULT:api]"
    assert run_sync(vault.resolve_secrets(P, ["api"], "crm.send")) == {}


def test_leave_of_a_removed_server_is_withdrawn(vault: Vault) -> None:
    run_sync(vault.put_secret(P, "api", "s3cret", ["crm.send", "mail", "crm", "crm2.send"]))
    run_sync(vault.put_secret(Q, "api", "other", ["crm"]))
    run_sync(vault.withdraw_leave("crm"))
    [kept], [gone] = (run_sync(vault.list_tokens(scope)) for scope in (P, Q))
    assert (kept.allowed, gone.allowed) == (("mail", "crm2.send"), ())
    assert run_sync(vault.resolve_secrets(P, ["api"], "mail.send")) == {"[VAULT:api]": "s3cret"}
    with pytest.raises(Denied):
        run_sync(vault.resolve_secrets(P, ["api"], "crm.send"))


def test_rename_leaves_no_values_behind(tmp_path: Path, engine: Engine) -> None:
    """A project without memories may have values: a rename to its name would make them unreachable."""
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "strict") as private:
        private.call("cli", "remember", project="old", content="Deploys run on Fridays")
        run_sync(private.vault.put_secret(Scope("new"), "mail_key", "walnut-orbit-9917", []))
        with pytest.raises(Conflict, match="the vault has values of a project 'new'") as caught:
            private.call("cli", "rename_project", name="old", to="new")
        assert "athena vault --project NAME" in str(caught.value.hint)
        assert run_sync(private.vault.show(Scope("new"), "mail_key")) == "walnut-orbit-9917"
        run_sync(private.vault.forget(Scope("new"), "mail_key"))
        assert private.call("cli", "rename_project", name="old", to="new").name == "new"
