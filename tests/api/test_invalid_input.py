"""Invalid arguments raise an error that names the argument, or get a correct answer; nothing is half-written."""

import math
import reprlib
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple

import pytest

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import AthenaError, InvalidInput, NotFound
from athena.memory.values import MAX_CONTENT_BYTES

untyped: Any = api
NAN, INF = math.nan, math.inf


def operation(name: str, **arguments: Any) -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, None, "python").call(name, arguments)).data


@pytest.fixture
def unchanged_store(isolated: App) -> Generator[Callable[[], None]]:
    """Yield a store with two memories, and assert at the end that neither changed."""
    api.store("Deploys run on Fridays", tags="deploy", metadata={"a": 1})
    api.store("The cat sleeps")
    before = operation("list_memories")

    def check() -> None:
        assert operation("list_memories") == before
        assert api.health().count == 2

    yield check
    check()
    found = operation("verify")
    assert found["ok"], found


def nest_dict(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(depth):
        made = {"a": made}
    return made


class Row(NamedTuple):
    """An attempt with one invalid value, and the argument that the error must name."""

    function: str
    name: str
    value: Any
    attempt: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.function}-{self.name}-{reprlib.repr(self.value)}"


def invalid_rows(function: str, name: str, values: Iterable[Any], *, said: str = "", **others: Any) -> list[Row]:
    """Return one row per invalid value; `said` is what the error names, where that differs from the argument."""

    def attempt(value: Any) -> Callable[[], object]:
        def call() -> object:
            done = getattr(untyped, function)(**{name: value, **others})
            return list(done) if function == "search_iter" else done

        return call

    return [Row(function, said or name, value, attempt(value)) for value in values]


TEXTS = ["", " ", "\n\t\u2003", "\0", "\0 \0", None, 5, 1.5, NAN, True, b"x", ["x"], {"a": 1}]
TAGS = [5, 1.5, True, b"x", [1], [None], ["a", b"b"], [["a"]], {"a": 1}, ["x" * 1_000_000], "y" * 1_000_000]
LIMITS = [0, -1, 10**9, 10**30, True, "5", None, 1.5, NAN, [5]]
TIMES = ["gibberish", "", " ", NAN, INF, -INF, True, [1], b"x", {"a": 1}, 10**400, "99999-99-99", "\0"]
REFERENCES = ["", " ", "not a hash", "\0", "é", None, 1.5, True, b"ab12", ["ab12"], "f" * 65]
LISTS = [None, 5, 1.5, "12", b"12"]
METADATA = [
    *(5, "x", [1], [("a", 1)], True),
    *({"a": object}, {"a": {1, 2}}, {"a": b"x"}, {"a": NAN}, {"a": [INF]}, {"a": "x" * 1_000_000}),
    *({1: "x"}, {0: "x"}, {None: "x"}),
    *({"date": "gibberish"}, {"date": True}, {"date": [1]}, {"date": 1e300}, {"date": 10**400}),
    *(nest_dict(600), nest_dict(1_000), nest_dict(100_000)),
]
NEW: dict[str, Any] = {"content": "something new"}

TABLE = [
    *invalid_rows("store", "content", [*TEXTS, "x" * 5_000_000, "é" * (MAX_CONTENT_BYTES // 2) + "x"]),
    *invalid_rows("store", "tags", [*TAGS, [f"t{i}" for i in range(10_000)]], **NEW),
    *invalid_rows("store", "memory_type", [*TEXTS, "x" * 1_000], **NEW),
    *invalid_rows("store", "metadata", METADATA, **NEW),
    *invalid_rows("store", "project", [" ", 5, b"x", True, ["x"], "x" * 2_000, "a\0b", "\udcff"], **NEW),
    *invalid_rows("search", "query", [*TEXTS, "x" * 20_001]),
    *invalid_rows("search", "limit", LIMITS, query="cat"),
    *invalid_rows("search", "tags", TAGS, query="cat"),
    *invalid_rows("search", "memory_type", ["", " ", 5, b"x", ["x"], "x" * 1_000], query="cat"),
    *invalid_rows("search", "since", TIMES, query="cat"),
    *invalid_rows("search", "until", TIMES, query="cat"),
    *invalid_rows("search", "min_score", [-0.1, 1.1, NAN, INF, "0.5", True, [1], 10**400], query="cat"),
    *invalid_rows("recall", "phrase", ["", None, "\0"]),
    *invalid_rows("recall", "limit", LIMITS, phrase="cat"),
    *invalid_rows("search_by_tag", "tags", [*TAGS, None, "", [], ",", [""], "\0"]),
    *invalid_rows("search_by_tag", "limit", LIMITS, tags="deploy"),
    *invalid_rows("search_by_tag", "match", ["some", None, "", 1, True, ["any"]], tags="deploy"),
    *invalid_rows("search_iter", "batch_size", [0, True, "5"], query="cat"),
    *invalid_rows("search_iter", "query", TEXTS),
    *invalid_rows("search_batch", "queries", LISTS),
    *invalid_rows("search_batch", "queries", [["cat", value] for value in TEXTS], said="quer"),
    *invalid_rows("search_batch", "limit", LIMITS, queries=["cat"]),
    *invalid_rows("store_batch", "items", LISTS),
    *invalid_rows(
        "store_batch", "items", [["fine", v] for v in ("", 5, None, ["x"], b"x", {}, {"tags": "a"})], said="items[1]"
    ),
    *invalid_rows("store_batch", "items", [["fine", {"content": value}] for value in TEXTS], said="items[1]"),
    *invalid_rows("store_batch", "items", [["fine", NEW | {"tags": value}] for value in TAGS], said="items[1]"),
    *invalid_rows("store_batch", "items", [["fine", NEW | {"metadata": value}] for value in METADATA], said="items[1]"),
    *invalid_rows("store_batch", "items", [["fine", NEW | {"colour": "red"}]], said="colour"),
    *(row for function in ("get", "delete", "restore") for row in invalid_rows(function, "hash", REFERENCES)),
    *invalid_rows("update", "hash", REFERENCES, content="changed"),
    *invalid_rows("update", "content", [value for value in TEXTS if value is not None], hash=1),
    *invalid_rows("update", "content", [None], hash=1),
    *invalid_rows("update", "tags", TAGS, hash=1),
    *invalid_rows("update", "memory_type", ["", 5, b"x"], hash=1),
    *invalid_rows("update", "metadata", METADATA, hash=1),
    *invalid_rows("delete_batch", "hashes", LISTS),
    *invalid_rows(
        "delete_batch", "hashes", [[1, value] for value in ("", "not a hash", None, 1.5, b"ab12")], said="hash"
    ),
    *invalid_rows("delete_by_tag", "tags", [*TAGS, None, "", [], [""]], expect=1),
    *invalid_rows("delete_by_tag", "expect", [-1, True, "1", 1.5, [1]], tags="deploy"),
    *invalid_rows("ingest", "path", ["", "a\0b", None, 5, b"x", ["x"], "x" * 5_000]),
    *invalid_rows("ingest", "tags", TAGS, path=__file__),
    *invalid_rows("consolidate", "strategy", ["greedy", None, "", 5, True, ["speed"]]),
    *invalid_rows("consolidate", "days_back", [-1, NAN, INF, "7", None, True, 10**400, 1e9]),
    *invalid_rows("consolidate", "dry_run", ["yes", None, 1, 0.0]),
]


@pytest.mark.parametrize(("function", "name"), dict.fromkeys((row.function, row.name) for row in TABLE))
def test_invalid_input_error_names_argument(unchanged_store: Callable[[], None], function: str, name: str) -> None:
    for row in TABLE:
        if (row.function, row.name) == (function, name):
            print(row)  # pytest prints it on failure
            with pytest.raises(InvalidInput) as caught:
                row.attempt()
            assert isinstance(caught.value, ValueError)
            assert row.name in str(caught.value)
            assert len(str(caught.value)) < 500
            unchanged_store()


@pytest.mark.parametrize("function", ["get", "update", "delete", "restore"])
def test_unknown_hash_raises_not_found(unchanged_store: Callable[[], None], function: str) -> None:
    arguments = {"content": "changed"} if function == "update" else {}
    for value in ("deadbeef", "0" * 64, 99, 0, -1, 2**63, -(2**63) - 1, 10**30, "99", str(10**30)):
        print(value)  # pytest prints it on failure
        if function == "delete":
            assert untyped.delete(value) is False
        else:
            with pytest.raises(NotFound, match="no memory"):
                getattr(untyped, function)(value, **arguments)
        unchanged_store()


def test_unknown_argument_raises_error(unchanged_store: Callable[[], None]) -> None:
    for name in ("colour", "ctx", "self", "k"):
        with pytest.raises((TypeError, AthenaError)):
            list(untyped.search_iter("cat", **{name: 1}))
        with pytest.raises(AthenaError):
            operation("stats", **{name: 1})
