"""The same names on every surface: operations, parameters, and what an unknown name leads to."""

import asyncio
import inspect
import pickle
from typing import Any

import click
import pytest
from click.testing import CliRunner

import athena
from athena import AsyncAthenaClient, AthenaClient, api
from athena.app import connect
from athena.app.compose import App
from athena.cli.commands import athena as command_line
from athena.core.threads import run_sync
from athena.errors import InvalidInput
from athena.operations import CATALOG

pytestmark = [pytest.mark.sqlite_only("names know no engine"), pytest.mark.both_ways]
untyped: Any = api
ONE_OPERATION = {
    "remember": ("store", "memory.store"),
    "recall": ("search", "memory.search"),
    "get_memory": ("get", "memory.get"),
    "update_memory": ("update", "memory.update"),
    "forget": ("delete", "memory.delete"),
}


def call(name: str, **arguments: Any) -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, None, "python").call(name, arguments)).data


def run_line(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(command_line, words)
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return code, click.unstyle(result.output)


@pytest.mark.parametrize(("name", "aliases"), ONE_OPERATION.items())
def test_catalog_knows_other_names(name: str, aliases: tuple[str, ...]) -> None:
    assert {CATALOG.get_operation(alias).name for alias in aliases} == {name}
    assert [operation.name for operation in CATALOG].count(name) == 1
    assert aliases[0] not in [operation.name for operation in CATALOG]


def test_api_has_both_vocabularies(isolated: App) -> None:
    key = api.remember("Deploys run on Fridays at 15:00", tags="deploy")
    assert key == api.store("Deploys run on Fridays at 15:00")
    assert api.recall("deploys", k=1)[0].hash == api.search("deploys", limit=1)[0].hash == key
    assert api.recall(query="deploys")[0].hash == api.recall(phrase="deploys")[0].hash == key
    assert api.recall("deploys", tags="deploy", memory_type="note", min_score=0)
    assert not api.recall("deploys", tags="other")
    assert api.get(key).content == "Deploys run on Fridays at 15:00"
    assert api.forget(key)
    assert api.restore(key)
    assert api.delete(key)
    keys = api.remember_batch(["one thing", "another thing"])
    assert api.forget_batch(keys) == 2
    api.store_batch([{"content": "a third thing", "tags": ["x"]}])
    assert api.forget_by_tag("x", expect=1) == 1


def test_async_api_has_both_vocabularies(isolated: App) -> None:
    async def main() -> None:
        async with athena.open() as memory:
            key = await memory.remember("Deploys run on Fridays at 15:00")
            assert (await memory.recall("deploys", k=1))[0].hash == key
            assert await memory.forget(key)
            with pytest.raises(AttributeError, match="did you mean 'recall'"):
                memory.find  # type: ignore[attr-defined]  # noqa: B018

    asyncio.run(main())


@pytest.mark.parametrize(("wrong", "right"), [("limit", "k"), ("k", "limit"), ("max_results", "limit")])
def test_error_names_the_argument_of_the_caller(isolated: App, wrong: str, right: str) -> None:
    with pytest.raises((InvalidInput, TypeError)) as caught:
        api.search("deploys", **{wrong: "five"})  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"{wrong} must be a whole number") or right in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parameter"), [("recall", "limit"), ("recall_events", "k"), ("search_graph", "limit"), ("list_tasks", "k")]
)
def test_every_operation_takes_limit_and_k(isolated: App, name: str, parameter: str) -> None:
    query = {"query": "deploys"} if "query" in CATALOG.get_operation(name).parameter_names else {}
    assert call(name, **query, **{parameter: 3}) == []
    with pytest.raises(InvalidInput, match=f"^{name}: {parameter} must be a whole number, not str"):
        call(name, **query, **{parameter: "five"})
    with pytest.raises(InvalidInput, match="are the same parameter"):
        call(name, **query, k=3, limit=3)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("add", "remember"),
        ("save", "remember"),
        ("find", "recall"),
        ("get_memory", "get"),
        ("edit", "update"),
        ("remove", "forget"),
        ("serach", "search"),
        ("create_task", r"api\.call\('create_task'"),
        ("list", r"api\.call\('list_memories'"),
        ("tags", r"api\.call\('list_tags'"),
        ("count", r"api\.call\('stats'"),
        ("link", r"api\.call\('relate_memories'"),
        ("import_file", "a command does that: athena import"),
        ("xyzzy", r"api\.call\('search_tools', query=\.\.\.\)"),
    ],
)
def test_unknown_function_leads_to_the_right_one(name: str, suggestion: str) -> None:
    with pytest.raises(AttributeError, match=suggestion):
        getattr(api, name)


def test_unknown_attribute_of_the_package_leads_to_the_api() -> None:
    with pytest.raises(AttributeError, match=r"did you mean 'athena\.api\.remember'"):
        athena.remember  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'AthenaClient'"):
        athena.Client  # noqa: B018


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("find", "recall"),
        ("add", "remember"),
        ("creat_task", "create_task"),
        ("add_task", "'create_task'"),
        ("events", "'recall_events'"),
        ("history", "'memory_history'"),
        ("tags", "'list_tags'"),
        ("export", "a command does that: athena export"),
    ],
)
def test_unknown_method_of_the_client_leads_to_the_right_one(name: str, suggestion: str) -> None:
    with AthenaClient("http://localhost:1", token="x") as client, pytest.raises(AttributeError, match=suggestion):
        getattr(client, name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: untyped.search("x", max_results=3),
            r"^search\(\) has no parameter 'max_results'; did you mean 'limit'\?",
        ),
        (lambda: untyped.store("x", type="note"), "did you mean 'memory_type'"),
        (lambda: untyped.store(text="x"), "did you mean 'content'"),
        (lambda: untyped.get(memory_id=1), "did you mean 'hash'"),
        (lambda: untyped.remember(), r"^remember\(\) missing 1 required positional argument: 'content'"),
    ],
)
def test_wrong_argument_leads_to_the_right_one(isolated: App, call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda client: client.remember(text="x"), r"^remember\(\) has no parameter 'text'; did you mean 'content'\?"),
        (lambda client: client.search("x", top_k=2), "did you mean 'limit'"),
        (lambda client: client.recall("x", tag="y"), "did you mean 'tags'"),
        (lambda client: type(client)(base_url="x"), r"Client\(\) has no parameter 'base_url'; did you mean 'url'\?"),
        (lambda client: type(client)(api_key="x"), "did you mean 'token'"),
    ],
)
@pytest.mark.parametrize("client_class", [AthenaClient, AsyncAthenaClient])
def test_wrong_argument_of_the_client_leads_to_the_right_one(client_class: Any, call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(client_class("http://localhost:1", token="x"))


def test_whole_memory_in_place_of_its_hash_leads_to_the_hash() -> None:
    client: Any = AthenaClient("http://localhost:1", token="x")
    with pytest.raises(InvalidInput, match=r"^update_memory: memory_id is a whole memory; .* memory\['hash'\]"):
        client.update({"id": 1, "hash": "7d49c4b4"}, content="x")


def test_wrong_attribute_of_a_hit_leads_to_the_right_one(isolated: App) -> None:
    for text in ("Deploys run on Fridays", "Deploys run on Fridays, " * 40):
        api.remember(text)
    hits = api.recall("deploys", min_score=0)
    assert len(hits) == 2
    for hit in hits:
        untyped_hit: Any = hit
        with pytest.raises(AttributeError, match=r"^a memory has no attribute 'text'; it has content, hash, "):
            untyped_hit.text  # noqa: B018
        with pytest.raises(TypeError, match=r"write memory\.content, not memory\['content'\]"):
            untyped_hit["content"]
        assert hit[0] == hit.hash
        assert hit[:2] == (hit.hash, hit.preview)
        assert pickle.loads(pickle.dumps(hit)).content == hit.content


def test_api_can_find_operations(isolated: App) -> None:
    assert api.call("search_tools", query="link two memories")


def test_unknown_filter_leads_to_the_right_one(isolated: App) -> None:
    with pytest.raises(InvalidInput, match="there is no filter 'after'; did you mean 'since'"):
        list(api.search_iter("x", after="yesterday"))  # type: ignore[call-arg]


def test_command_line_knows_the_same_names(isolated: App) -> None:
    assert run_line("store", "Deploys run on Fridays at 15:00")[0] == 0
    key = api.search("deploys")[0].hash
    for words in (["recall", "deploys", "--limit", "1"], ["search", "deploys", "-k", "1"], ["list", "--limit", "1"]):
        assert run_line(*words)[1].startswith(key), words
    assert "Deploys run" in run_line("get", key)[1]
    assert "Mondays" in run_line("update", key, "--content", "Deploys run on Mondays")[1]
    key = api.search("deploys")[0].hash
    assert "Tuesdays" in run_line("update", key, "Deploys run on Tuesdays")[1]
    key = api.search("deploys")[0].hash
    assert run_line("edit", key, "one", "--content", "two")[0] != 0
    assert run_line("delete", key)[1].startswith("forgotten")


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["remember", "x", "--tagz", "deploy"], "Did you mean one of: '--tag', '--tags'?"),
        (["recall", "x", "-n", "2"], "Did you mean '--limit'?"),
        (["rm", "7d49c4b4"], "Did you mean 'athena forget'?"),
        (["forget", "--tag", "deploy"], "athena tag forget deploy"),
    ],
)
def test_wrong_words_of_a_command_lead_to_the_right_ones(
    isolated: App, words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(words, prog_name="athena", standalone_mode=False) == 2
    assert suggestion in capsys.readouterr().err


def test_programs_know_the_same_names(isolated: App) -> None:
    code = """
key = memory.store(content="Deploys run on Fridays at 15:00")["hash"]
found = memory.search(query="deploys", limit=1)
memory.update(memory_id=key, content="Deploys run on Mondays")
text = memory.get(memory_id=key)["content"]
[found[0]["hash"] == key, text, memory.delete(memory_id=key), events.recall_events(k=1)]
"""
    for engine in ("auto", "python"):
        run = api.execute_code(code, engine=engine)
        assert run["result"] == [True, "Deploys run on Mondays", True, []], run


def test_names_of_the_api_are_documented() -> None:
    assert [name for name in api.__all__ if not inspect.getdoc(getattr(api, name))] == []
