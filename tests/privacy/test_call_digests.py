"""What the store keeps of a call's arguments, to tell a repeated call from another one with the same key."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import Conflict
from athena.storage.database import Transaction
from athena.storage.privacy_guard import PrivacyMode
from conftest import Engine

EMAIL, SECRET = "ada.lovelace@example.com", "hunter2-very-Secret"
PIN = "My door code: the PIN is 493817"


@pytest.fixture(params=["off", "boundary", "strict"])
def mode(request: pytest.FixtureRequest) -> PrivacyMode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def private(tmp_path: Path, engine: Engine, mode: PrivacyMode) -> Iterator[PrivateApp]:
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, mode) as app:
        yield app


def read_digests(private: PrivateApp) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        return [row[0] for table in ("receipts", "runs") for row in await tx.fetch(f"SELECT fingerprint FROM {table}")]

    return run_sync(private.app.store.database.read(read))


def guess(**arguments: Any) -> str:
    """Return what the digest would be if whoever has the store could compute it."""
    return hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()


def test_digests_do_not_tell_what_arguments_were(private: PrivateApp) -> None:
    target = private.add_server("crm")
    run_sync(private.vault.put_secret(Scope("p"), "crm_key", SECRET, ["crm.add_contact"]))
    (private.folder / "home" / "pin.md").write_text(PIN)
    private.call("http", "remember", key="client-1", content=PIN)
    private.call("http", "execute_code", key="client-2", code=f"'{PIN}'")
    private.call("http", "crm.add_contact", key="client-3", email=EMAIL, secret="[VAULT:crm_key]")
    assert json.loads(target.read_text()) == {"email": EMAIL, "secret": SECRET}
    (private.folder / "pin.md").write_text("salary 73500")
    private.call("http", "ingest_document", key="client-4", path=str(private.folder / "pin.md"))
    digests = read_digests(private)
    assert len(digests) == 4
    piece = hashlib.sha256(hashlib.sha256(b"salary 73500").hexdigest().encode()).hexdigest()
    guesses = {guess(content=PIN), guess(code=f"'{PIN}'"), piece}
    guesses |= {guess(email=EMAIL, secret=secret) for secret in (SECRET, "[VAULT:crm_key]")}
    assert not {part for digest in digests for part in digest.split(":")} & guesses


def test_key_of_another_call_is_refused_in_every_process(private: PrivateApp, engine: Engine) -> None:
    first = private.call("http", "remember", key="k", content="one")
    run = private.call("http", "execute_code", key="r", code="1")
    with open_private_app(engine.open(private.folder / "home.db"), private.folder, private.mode) as other:
        assert other.call("http", "remember", key="k", content="one").id == first.id
        assert other.call("http", "execute_code", key="r", code="1") == run
        with pytest.raises(Conflict, match="used for another remember"):
            other.call("http", "remember", key="k", content="two")
        with pytest.raises(Conflict, match="used for another program"):
            other.call("http", "execute_code", key="r", code="2")


def test_retry_gets_its_answer_where_the_key_of_digests_is_gone(private: PrivateApp, engine: Engine) -> None:
    """Also on another machine, which has a key of its own: nobody can tell there whether the arguments are the same."""
    first = private.call("http", "write_file", key="k", path="a.txt", content="one")
    run = private.call("http", "execute_code", key="r", code="memory.remember(content='once')\n1")
    (private.folder / "keys" / "receipts.key").unlink()
    with open_private_app(engine.open(private.folder / "home.db"), private.folder, private.mode) as other:
        other.call("http", "write_file", path="a.txt", content="two")
        assert other.call("http", "write_file", key="k", path="a.txt", content="one") == first
        assert other.call("http", "read_file", path="a.txt") == "two"  # it was not done again
        assert other.call("http", "execute_code", key="r", code="memory.remember(content='once')\n1") == run
        with pytest.raises(Conflict, match="used for another write_file"):
            other.call("http", "remember", key="k", content="one")


def test_calls_do_not_fail_for_want_of_a_key_file(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "keys").write_text("no folder")
    with open_private_app(engine.open(tmp_path / "home.db"), tmp_path, "off") as private:
        first = private.call("http", "remember", key="k", content="one")
        assert private.call("http", "remember", key="k", content="one").id == first.id
        with pytest.raises(Conflict, match="used for another"):
            private.call("http", "remember", key="k", content="two")


def test_new_key_of_the_vault_brings_a_new_key_of_digests(private: PrivateApp) -> None:
    private.call("http", "remember", key="k", content=f"write to {EMAIL}")
    file = private.folder / "keys" / "receipts.key"
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_text()
    run_sync(private.vault.rotate_key())
    assert not file.exists()
    private.call("http", "remember", key="l", content=f"write to {EMAIL}")
    assert file.read_text() != before
    assert len({digest.partition(":")[0] for digest in read_digests(private)}) == 2


def test_retry_is_the_same_call_once_a_name_got_known(private: PrivateApp) -> None:
    """What a call says does not change with what the vault learns meanwhile, also from the call itself."""
    code = "graph.create_entity(name='Bob Barker', entity_type='person')\n'Bob Barker paid'"
    first = private.call("http", "execute_code", key="a", code=code)
    private.app.guard.forget_rules()  # within seconds otherwise
    assert private.call("http", "execute_code", key="a", code=code).run_id == first.run_id
    note = private.call("http", "remember", key="b", content="Hilde Horn pays on Fridays")
    private.call("http", "create_entity", name="Hilde Horn", entity_type="person")
    private.app.guard.forget_rules()
    assert private.call("http", "remember", key="b", content="Hilde Horn pays on Fridays").id == note.id
