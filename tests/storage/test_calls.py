"""Idempotency keys of calls to other servers: reserved first, then stored with the result or released."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Call
from athena.errors import Conflict
from athena.storage import calls


def test_concurrent_key_begins_once(app: App) -> None:
    database = app.store.database
    call = Call("far.away", "test", app.create_context("test", "python").scope, app.store.clock(), "the-key", "x")

    def begin(_: int = 0) -> Any:
        try:
            return run_sync(database.write(lambda tx: calls.begin_call(tx, call)))
        except Conflict:
            return "another"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(map(str, pool.map(begin, range(4)))) == ["None", *["another"] * 3]
    run_sync(database.write(lambda tx: calls.abandon_call(tx, call)))
    assert begin() is None
    run_sync(database.write(lambda tx: calls.finish_call(tx, call, {"done": 1})))
    run_sync(database.write(lambda tx: calls.abandon_call(tx, call)))  # too late, since the call is finished
    assert begin() == '{"done": 1}'
    with pytest.raises(Conflict, match="used for another"):
        run_sync(database.write(lambda tx: calls.begin_call(tx, call._replace(arguments_digest="y"))))
