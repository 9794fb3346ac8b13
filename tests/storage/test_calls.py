"""Keys of calls that happen elsewhere: taken first, then kept with the result or given back."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.call import Call
from athena.core.threads import drive
from athena.errors import Conflict
from athena.storage import calls


def test_of_many_who_begin_with_one_key_one_goes_on(app: App) -> None:
    database = app.store.database
    call = Call("far.away", "test", app.context("test", "test").scope, app.store.clock(), "the-key", "x")

    def begin(_: int = 0) -> Any:
        try:
            return drive(database.write(lambda tx: calls.begin(tx, call)))
        except Conflict:
            return "another"

    with ThreadPoolExecutor(4) as pool:
        assert sorted(map(str, pool.map(begin, range(4)))) == ["None", *["another"] * 3]
    drive(database.write(lambda tx: calls.abandon(tx, call)))
    assert begin() is None
    drive(database.write(lambda tx: calls.finish(tx, call, {"done": 1})))
    drive(database.write(lambda tx: calls.abandon(tx, call)))  # which is too late
    assert begin() == '{"done": 1}'
    with pytest.raises(Conflict, match="used for another"):
        drive(database.write(lambda tx: calls.begin(tx, call._replace(about="y"))))
