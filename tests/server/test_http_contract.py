"""HTTP contract: schemas, errors, streams, idempotency keys, projects and metrics."""

import json
import re
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from athena.core import tokens
from http_tools import RunningServer, assert_secure_headers, read_reply, request, run_server
from wait_tools import LONG, wait_until

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

JSON = "application/json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("contract")) as made:
        yield made


@pytest.fixture(scope="module")
def document(served: RunningServer) -> dict[str, Any]:
    body: dict[str, Any] = served.get("/openapi.json").json
    return body


def operation_names(served: RunningServer) -> list[str]:
    return [tool["name"] for tool in served.get("/tools/list").json["tools"]]


def arguments_schema(document: dict[str, Any], name: str) -> dict[str, Any]:
    content = document["paths"][f"/tools/{name}/execute"]["post"]["requestBody"]["content"]
    made: dict[str, Any] = content["application/json"]["schema"]
    return made


def test_discovery_lists_every_operation(served: RunningServer, document: dict[str, Any]) -> None:
    body = served.get("/tools/discover").json
    assert set(body) == {"categories", "total_tools"}
    found = []
    for category in body["categories"].values():
        assert set(category) == {"description", "count", "tools"}
        assert category["count"] == len(category["tools"])
        for tool in category["tools"]:
            assert set(tool) == {"name", "description"}
            assert tool["description"]
            found.append(tool["name"])
    assert len(found) == len(set(found)) == body["total_tools"]
    assert sorted(found) == sorted(operation_names(served))
    described = {path.split("/")[2] for path in document["paths"] if path.endswith("/execute")}
    assert described == set(found)


def test_discovery_is_short(served: RunningServer) -> None:
    whole, names = served.get("/tools/discover"), served.get("/tools/discover?detail=names")
    total = whole.json["total_tools"]
    assert tokens.count_tokens_exactly(whole.body.decode()) <= 16 * total
    assert tokens.count_tokens_exactly(names.body.decode()) <= 500
    listed = {name: [tool["name"] for tool in group["tools"]] for name, group in whole.json["categories"].items()}
    assert names.json == {"categories": listed, "total_tools": total}
    graph = served.get("/tools/discover?category=graph").json
    assert graph == {"categories": {"graph": whole.json["categories"]["graph"]}, "total_tools": total}
    assert served.get("/tools/discover?category=graph&detail=names").json["categories"] == {"graph": listed["graph"]}
    assert served.get("/tools/discover?detail=long").status == 422
    unknown = served.get("/tools/discover?category=nothing")
    assert unknown.status == 404
    assert "graph" in unknown.error["hint"]


def test_layers_of_memory_name_categories(served: RunningServer) -> None:
    """Seed 000 and its clients know the categories by these names."""
    layers = {"episodic": "events", "semantic": "memory", "procedural": "skills", "prospective": "tasks"}
    for layer, category in (layers | {"knowledge_graph": "graph"}).items():
        assert served.get(f"/tools/list?category={layer}").body == served.get(f"/tools/list?category={category}").body
        assert list(served.get(f"/tools/discover?category={layer}").json["categories"]) == [category]
        found = served.get(f"/tools/search?q=list&category={layer}").json["tools"]
        assert {tool["category"] for tool in found} == {category}
    assert served.get("/tools/episodic.record_event").json["name"] == "record_event"


def test_category_lists_its_operations(served: RunningServer) -> None:
    categories = served.get("/tools/discover").json["categories"]
    assert categories
    for name, category in categories.items():
        body = served.get(f"/tools/list?category={name}").json
        assert body["count"] == category["count"]
        assert [tool["name"] for tool in body["tools"]] == [tool["name"] for tool in category["tools"]]
        assert {tool["category"] for tool in body["tools"]} == {name}


def test_every_operation_describes_itself(served: RunningServer) -> None:
    operations = operation_names(served)
    assert operations
    for name in operations:
        body = served.get(f"/tools/{name}").json
        assert {"name", "description", "category", "parameters", "returns", "effect", "examples"} <= set(body)
        assert body["name"] == name
        assert set(body["returns"]) == {"type", "description"}
        for parameter in body["parameters"]:
            assert set(parameter) == {"name", "type", "description", "required", "default"}
            assert parameter["description"], (name, parameter)
            assert parameter["type"] != "any", (name, parameter)


def test_search_finds_by_purpose(served: RunningServer) -> None:
    body = served.get("/tools/search?q=forget%20a%20memory&limit=3").json
    assert body["count"] == len(body["tools"]) <= 3
    assert "forget" in [tool["name"] for tool in body["tools"]]
    assert served.get("/tools/search?q=%F0%9F%92%A9").json == {"tools": [], "count": 0}
    body = served.get("/tools/search?q=forget%20a%20task&limit=5&category=tasks").json
    assert {tool["category"] for tool in body["tools"]} == {"tasks"}
    assert served.get("/tools/search?q=a&category=colours").status == 404


def test_skills_are_found_with_usage(served: RunningServer) -> None:
    body = served.get("/tools/search?q=summary%20of%20the%20last%20week&limit=3").json
    assert "skills.weekly_summary" in [tool["name"] for tool in body["tools"]]
    told = served.get("/tools/skills.weekly_summary").json
    assert (told["name"], told["category"], told["effect"]) == ("skills.weekly_summary", "skills", "execute")
    assert [parameter["name"] for parameter in told["parameters"]] == ["days", "limit"]
    assert told["call"]["path"] == "/tools/run_skill/execute"
    assert served.call("run_skill", **told["call"]["body"])["success"]
    assert served.get("/tools/skills.save").json["name"] == "save_skill"
    assert served.get("/tools/skills.nothing").status == 404


@pytest.mark.parametrize(
    "query", ["", "q=", "q=%20", "q=a&limit=0", "q=a&limit=101", "q=a&limit=-1", "q=a&limit=x", "q=a&limit=1.5"]
)
def test_empty_search_is_refused(served: RunningServer, query: str) -> None:
    reply = served.get(f"/tools/search?{query}")
    assert reply.status == 422
    assert ("limit" if "limit" in query else "q") in reply.error["message"]


def test_very_long_search_is_refused(served: RunningServer) -> None:
    assert served.get("/tools/search?q=" + "a" * 3_000).status == 422
    assert served.get("/tools/search?q=a&limit=" + "9" * 5_000).status == 422


def invalid_values(kind: dict[str, Any]) -> list[Any]:
    """Return values that no schema of this kind allows."""
    text = json.dumps(kind)
    given: list[Any] = [[[1]], {"x": [1]}, True] if "object" not in text else [[[1]], True]
    return given if "boolean" not in text else given[:-1]


def test_every_argument_is_checked_and_named(served: RunningServer, document: dict[str, Any]) -> None:
    operations = operation_names(served)
    assert operations
    for name in operations:
        takes = arguments_schema(document, name)
        required = takes.get("required", [])
        for argument, kind in takes["properties"].items():
            for value in invalid_values(kind):
                reply = served.execute(name, {argument: value})
                assert reply.status == 422, (name, argument, value, reply)
                message = reply.error["message"]
                assert any(word in message for word in {argument, *required}), (name, argument, message)
        reply = served.execute(name, {"no_such_argument": 1})
        assert reply.status == 422, (name, reply)
        assert "no_such_argument" in reply.error["message"] or any(word in reply.error["message"] for word in required)
        if required:
            reply = served.execute(name, {})
            assert reply.status == 422, (name, reply)
            assert any(argument in reply.error["message"] for argument in required), (name, reply)


@pytest.mark.parametrize("path", ["/tools/discover", "/tools/list", "/tools/remember", "/openapi.json"])
def test_etag_avoids_resending(served: RunningServer, path: str) -> None:
    first = served.get(path)
    tag = first.header("etag")
    assert tag
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = served.get(path, ("If-None-Match", known))
        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == tag
        assert_secure_headers(again)
    for known in ('"other"', tag.strip('"')[:-1], ""):
        assert served.get(path, ("If-None-Match", known)).body == first.body


def test_stream_equals_list(served: RunningServer) -> None:
    here = ("X-Athena-Project", "stream")
    served.call("remember_batch", here, items=[{"content": f"text {n} with\nlines"} for n in range(700)])
    listed = served.execute("list_memories", {"k": 700}, here).json
    assert listed["total"] == len(listed["data"]) == 700
    reply = served.execute("list_memories", {"k": 700}, here, ("Accept", "application/x-ndjson"))
    assert reply.header("content-type") == "application/x-ndjson"
    assert reply.header("athena-total") == "700"
    assert_secure_headers(reply)
    lines = reply.body.decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == listed["data"]


def test_error_is_never_stream(served: RunningServer) -> None:
    reply = served.execute("list_memories", {"k": 0}, ("Accept", "application/x-ndjson"))
    assert (reply.status, reply.error["code"]) == (422, "invalid_input")
    assert served.execute("health", {}, ("Accept", "application/x-ndjson")).json["success"]


def test_repeated_key_happens_once(served: RunningServer) -> None:
    key = ("Idempotency-Key", "once")
    first = served.execute("remember", {"content": "happens once"}, key)
    history = served.call("memory_history", memory_id=first.json["data"]["hash"])
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: served.execute("remember", {"content": "happens once"}, key), range(16)))
    assert {reply.status for reply in replies} == {200}
    assert all(reply.json["data"] == first.json["data"] for reply in replies)
    assert served.call("memory_history", memory_id=first.json["data"]["hash"]) == history
    other = served.execute("remember", {"content": "something else"}, key)
    assert (other.status, other.error["code"]) == (409, "conflict")
    different = served.execute("forget", {"memory_id": first.json["data"]["hash"]}, key)
    assert different.status == 409


def test_concurrent_key_happens_once(served: RunningServer) -> None:
    before = served.count()
    key = ("Idempotency-Key", "all at once")
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: served.execute("remember", {"content": f"first wins {n}"}, key), range(8)))
    assert sorted(reply.status for reply in replies) == [200] + [409] * 7
    assert served.count() == before + 1


@pytest.mark.parametrize("project", ["plain", "/home/a b/c", "Übersicht/日本語/🦉", "100% & more"])
def test_projects_are_separate(served: RunningServer, project: str) -> None:
    here = ("X-Athena-Project", quote(project, safe=""))
    memory = served.call("remember", here, content=f"only in {project}")
    assert memory["project"] == project
    assert [one["content"] for one in served.call("list_memories", here)] == [f"only in {project}"]
    assert f"only in {project}" not in [one["content"] for one in served.call("list_memories", k=100)]
    assert project in json.dumps(served.call("list_projects"), ensure_ascii=False)


@pytest.mark.parametrize("project", ["%00", "%ff", "%ed%a0%80", "%", "%zz", "..%2f..", "%20", "%0d%0aX-A:%20b"])
def test_unusual_project_never_breaks_server(served: RunningServer, project: str) -> None:
    reply = served.execute("remember", {"content": "odd"}, ("X-Athena-Project", project))
    assert reply.status in (200, 400, 422), reply
    assert reply.header("x-a") is None
    assert served.get("/metrics").status == 200


SAMPLE = re.compile(r'^([a-z_]+)(\{[a-z_]+="[^"\\\n]*"(,[a-z_]+="[^"\\\n]*")*\})? ([0-9.e+-]+|\+Inf|NaN)$')


def test_metrics_are_prometheus_text(served: RunningServer) -> None:
    served.call("stats")
    served.execute("remember", {"content": ""})
    reply = served.get("/metrics")
    assert str(reply.header("content-type")).startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    seen = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.match(line)
            assert match, line
            assert (match[1], match[2]) not in seen
            seen.add((match[1], match[2]))
            assert match[1] in kinds or re.sub("_(bucket|sum|count)$", "", match[1]) in kinds
    assert set(kinds.values()) == {"counter", "gauge", "histogram"}
    assert 'operation="remember",surface="http",outcome="invalid_input"' in text
    assert 'operation="stats",surface="http",outcome="done"' in text
    buckets = [int(n) for n in re.findall(r'bucket\{operation="stats",surface="http",le="[^"]+"\} (\d+)', text)]
    assert buckets == sorted(buckets)
    assert buckets[-1] >= 1


def test_unknown_operations_add_no_metrics(served: RunningServer) -> None:
    for number in range(20):
        served.execute(f"made_up_{number}", {})
    assert "made_up" not in served.get("/metrics").body.decode()


def test_server_describes_itself(served: RunningServer) -> None:
    body = served.get("/info").json
    assert {"name", "version", "tools", "project", "backend"} <= set(body)
    assert body["tools"] == len(operation_names(served))
    assert str(served.home) not in json.dumps(body)


def test_health_shows_only_live_and_ready(served: RunningServer) -> None:
    assert served.ask("GET", "/health", [served.auth_headers[0]]).json == {"live": True, "ready": True}


def test_pipelined_requests_answer_in_order(served: RunningServer) -> None:
    with served.connect() as connection:
        for path, status in (("/info", 200), ("/nothing", 404), ("/health", 200), ("/tools/remember", 200)):
            connection.sendall(request("GET", path, served.auth_headers))
            assert read_reply(connection).status == status


def test_small_call_has_no_delayed_ack(served: RunningServer) -> None:
    """With Nagle's algorithm, each reply that is written in two parts would take 40 ms."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=LONG)
    headers = dict(served.auth_headers) | {"Content-Type": JSON}

    def answers_at_once() -> bool:
        began = time.perf_counter()
        connection.request("POST", "/tools/list_tags/execute", b"{}", headers)
        assert connection.getresponse().read()
        return time.perf_counter() - began < 0.03

    for _ in range(30):  # the kernel acknowledges the first requests of a connection at once
        answers_at_once()
    # a busy machine delays some replies, the algorithm would delay all
    wait_until(lambda: sum(answers_at_once() for _ in range(30)) > 5)
    connection.close()


def test_repeated_rename_is_answered(served: RunningServer) -> None:
    served.call("remember", ("X-Athena-Project", "first name"), content="renamed twice")
    key = ("Idempotency-Key", "rename once")
    served.call("rename_project", key, name="first name", to="second name")
    served.call("rename_project", name="second name", to="third name")
    assert served.execute("rename_project", {"name": "first name", "to": "second name"}, key).status < 500


def test_project_may_take_unused_name(served: RunningServer) -> None:
    for project in ("has memories", "was only asked"):
        served.call("list_tags", ("X-Athena-Project", quote(project)))
        served.call("recall", ("X-Athena-Project", quote(project)), query="anything")
    served.call("remember", ("X-Athena-Project", quote("has memories")), content="to be renamed")
    served.call("token_savings")
    assert served.execute("rename_project", {"name": "has memories", "to": "was only asked"}).status < 500
