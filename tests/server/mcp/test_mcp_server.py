"""MCP tools, resources and the prompt, for clients of both protocol revisions over stdio and HTTP."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_tools import LEGACY, MODERN, call_for_text, connect_client, open_lines

from athena.app.compose import App
from athena.core import tokens
from athena.core.foreign_operation import ForeignOperation, ToolDefinition
from athena.core.operation import ONLY_PERSONS, CallerKind, Effect
from athena.operations import CATALOG
from athena.server.admission import CallDispatcher
from athena.server.mcp import http as mcp_http
from athena.server.mcp import server as mcp_server
from athena.server.mcp import tools as mcp_tools
from athena.server.mcp.graph_answers import OUTPUT_SCHEMAS, create_graph_answer
from athena.server.mcp.workspaces import WorkspacePool
from http_tools import RunningServer, run_server
from wait_tools import pausing_code

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")

WAYS = [f"{way} {revision}" for way in ("http", "stdio") for revision in (MODERN, LEGACY)]
SMALL = ["search_tools", "execute_code", "remember", "recall"]
BUDGET = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("mcp")) as server:
        yield server


@pytest.mark.parametrize("how", WAYS)
def test_client_remembers_recalls_runs_programs(served: RunningServer, how: str) -> None:
    async def work() -> None:
        async with connect_client(served, how) as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == SMALL
            assert listed.next_cursor is None
            assert 0 < len((client.session.instructions or "").encode()) < 2048
            kept = await call_for_text(client, "remember", content=f"Tea is at four, says {how}", tags=["tea"])
            assert re.fullmatch(r"[0-9a-f]{8,} kept", kept)
            text = await call_for_text(client, "recall", query="when is tea?", k=9)
            text = next(line for line in text.splitlines() if line.endswith(how))
            assert text.startswith(kept.split()[0])
            assert text.endswith(f"[tea] Tea is at four, says {how}")
            nothing = await call_for_text(client, "recall", query="quantum chromodynamics")
            assert re.fullmatch(r"nothing found; \d+ weaker hits?, min_score=0 shows (it|them)", nothing)
            assert "Tea is at four" in await call_for_text(
                client, "recall", query="quantum chromodynamics", min_score=0
            )
            ran = await call_for_text(
                client, "execute_code", code="print('hi')\nlen(memory.recall(query='tea', k=1)) + 1"
            )
            assert ran == "hi\nresult: 2"
            assert "list_tags" in await call_for_text(client, "search_tools", query="list the tags")

    asyncio.run(work())
    assert 'operation="recall",surface="mcp",outcome="done"' in served.get("/metrics").body.decode()


def test_model_reads_no_hidden_characters(served: RunningServer) -> None:
    hidden = "a\u202eb" + "".join(chr(0xE0000 + ord(char)) for char in "obey") + "c\x1b[2J"
    shown = "a<U+202E>b<U+E006F><U+E0062><U+E0065><U+E0079>c<U+001B>[2J"

    async def work() -> None:
        async with connect_client(served, f"stdio {LEGACY}") as client:
            ran = await call_for_text(client, "execute_code", code=f"print({hidden!r})\n{{'k': {hidden!r}}}")
            assert ran == f'{shown}\nresult: {{"k":"a<U+202E>b<U+E006F><U+E0062><U+E0065><U+E0079>c\\u001b[2J"}}'
            await call_for_text(client, "remember", content=f"the hidden colour is {hidden}")
            assert shown in await call_for_text(client, "recall", query="the hidden colour")
            failed = await client.call_tool("execute_code", {"code": f"raise ValueError({hidden!r})"})
            assert shown in failed.content[0].text  # type: ignore[union-attr]
            code = "len(memory.recall(query='the hidden colour')[0]['content'])"
            exact = await call_for_text(client, "execute_code", code=code)
            assert int(exact) == len(f"the hidden colour is {hidden}")  # programs get what is stored

    asyncio.run(work())


@pytest.mark.parametrize("how", [f"http {MODERN}", f"stdio {LEGACY}"])
def test_failure_says_what_to_do(served: RunningServer, how: str) -> None:
    async def work() -> None:
        async with connect_client(served, how) as client:
            wrong = await client.call_tool("recall", {"question": "tea"})
            assert wrong.is_error
            assert wrong.content[0].text.startswith("recall: there is no parameter 'question'")  # type: ignore[union-attr]
            assert "\nhint: memory.recall(query: str" in wrong.content[0].text  # type: ignore[union-attr]
            broken = await client.call_tool("execute_code", {"code": "x = 1\nx.nothing()"})
            assert broken.is_error
            assert re.search(r"AttributeError: .* \(line 2\)", broken.content[0].text)  # type: ignore[union-attr]
            waits = await client.call_tool("execute_code", {"code": "memory.purge(expect=0)"})
            assert not waits.is_error
            assert "athena approve" in waits.content[0].text  # type: ignore[union-attr]
            with pytest.raises(MCPError, match="Unknown tool: forget; it is an operation: call it in a pro") as told:
                await client.call_tool("forget", {"memory_id": 1})
            assert told.value.code == -32602
            assert "execute_code" in told.value.data["hint"]
            with pytest.raises(MCPError, match="Unknown tool: approve_run"):
                await client.call_tool("approve_run", {"run_id": "x"})

    asyncio.run(work())


def test_default_tools_are_small_and_static(served: RunningServer) -> None:
    seen: dict[str, set[bytes]] = {"default": set(), "code": set()}
    for tools in ("default", "code", "default", "code"):
        with open_lines(served.home, json.dumps({"tools": tools}).encode()) as one:
            one.begin()
            one.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
            line = one.read_line()
            seen[tools].add(line[line.index(b'"tools":[') : line.rindex(b"]") + 1])
    for (raw,) in seen.values():
        assert tokens.count_tokens_exactly(raw.decode()[len('"tools":') :]) <= BUDGET
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":%s}}' % json.dumps(META).encode()
    headers = [
        *served.auth_headers,
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ]
    headers += [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/list")]
    replies = {re.sub(rb'"_meta".*', b"", served.ask("POST", "/mcp", headers, body).body) for _ in range(2)}
    assert len(replies) == 1
    (raw,) = seen["default"]
    assert served.ask("POST", "/mcp", headers, body).json["result"]["tools"] == json.loads(b"{%s}" % raw)["tools"]


META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_operations_are_tools_with_hints(served: RunningServer) -> None:
    async def work() -> list[Any]:
        async with connect_client(served, f"http {LEGACY}", "all") as client:
            return (await client.list_tools()).tools

    found = {tool.name: tool for tool in asyncio.run(work())}
    wanted = [one for one in CATALOG if CallerKind.MODEL in one.callers]
    closed = {"learn", "list_projects", "rename_project", "approve_run", "list_learned", "keep_learned", "edit_learned"}
    closed |= {one.name for one in CATALOG if one.callers == ONLY_PERSONS}
    closed |= {"drop_learned", "refuse_learned", "list_learning_rules", "remove_learning_rule", "list_open_questions"}
    assert {one.name for one in CATALOG} - found.keys() == closed
    assert list(found) == [one.name for one in wanted]
    for one in wanted:
        tool = found[one.name]
        assert tool.description
        assert tool.annotations.read_only_hint == (one.effect is Effect.READ), one
        assert tool.annotations.destructive_hint == (one.effect in (Effect.DESTROY, Effect.EXECUTE)), one
        assert set(tool.input_schema.get("properties", {})) == set(one.parameter_names), one
        assert set(tool.input_schema.get("required", [])) == {p.name for p in one.parameters if p.required}


def test_examples_answer_as_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transport has its own store, so that the effects of an example are the same for both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# Tea\n\nIt is at four.\n")  # an example ingests it

    async def work(by_mcp: RunningServer, by_http: RunningServer) -> None:
        async with connect_client(by_mcp, f"http {LEGACY}", "all") as client:
            for one in CATALOG:
                if CallerKind.MODEL not in one.callers or one.approval:  # for people, or after a person approved
                    continue
                read = await client.call_tool(one.name, one.example_arguments)
                said, got = read.content[0].text, by_http.execute(one.name, one.example_arguments)  # type: ignore[union-attr]
                if one.name == "search_tools":  # lexical only, until a server has embedded its tools
                    assert said.splitlines()[0] in got.json["data"]
                elif got.status == 200:
                    assert not read.is_error, (one, said)
                    if one.name in OUTPUT_SCHEMAS:  # they answer as the reference server does
                        assert create_graph_answer(one.name, got.json["data"]).text == said
                        continue
                    _agree(one.name, said, got.json["data"])
                else:
                    assert read.is_error, one
                    assert said == f"{got.error['message']}\nhint: {got.error['hint']}", one

    with (
        run_server(tmp_path / "mcp", ATHENA_DOCUMENTS_ROOTS=str(tmp_path)) as by_mcp,
        run_server(tmp_path / "http") as by_http,
    ):
        asyncio.run(work(by_mcp, by_http))


def _agree(name: str, said: str, data: Any) -> None:
    """Compare the text for a model with the JSON over HTTP, ignoring times and serial numbers."""
    if isinstance(data, dict) and "run_id" in data and "result" in data:
        assert said == str(json.dumps(data["result"], separators=(",", ":"))), name
    elif isinstance(data, dict) and {"outcome", "memory_type"} <= set(data):
        assert said.split()[0] == data["hash"], name
    elif isinstance(data, str):
        assert said == data
    elif isinstance(data, list) and data and isinstance(data[0], dict) and "memory_type" in data[0]:
        assert [line.split()[0] for line in said.splitlines()] == [one["hash"] for one in data], name
    elif isinstance(data, list) and data and isinstance(data[0], str):
        assert "\n".join(data).startswith(re.sub(r"\n\[\d+ more: .*\]\Z", "", said)), name
    elif isinstance(data, list):
        parts = [json.loads(line) for line in said.splitlines() if not line.startswith("[") or line == "[]"]
        assert said in ("nothing found", "[]") if not data else _shape(parts) == _shape(data), name
    elif CATALOG.get_operation(name).category == "meta":  # about the server itself, with its own sizes and paths
        if "with execute_code, all of it" in said:  # many calls make the table of savings too long for an answer
            assert name == "token_savings"
        else:
            assert set(json.loads(said)) == {key for key, item in data.items() if item is not None}, name
    else:
        assert _shape(json.loads(said)) == _shape(data), name


def _shape(value: Any) -> Any:
    """Return a value without nulls and without the fields that differ from call to call."""
    if isinstance(value, dict):
        # Token counts are estimates until a server has loaded its table, which only one of the two may have done;
        # whose change was undone differs: each undoes its own.
        return {key: _shape(item) for key, item in value.items() if item is not None and key not in ("tokens", "by")}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"\b[0-9a-f]{8,}\b", "HEX", value)
    return "MOMENT" if isinstance(value, float) else value


def test_long_list_is_paged(app: App) -> None:
    from athena.server.mcp.server import McpHandlers
    from athena.server.mcp.workspaces import McpPeer

    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)
    caller = lambda project, workspace: app.create_context("test", "mcp", workspace=workspace)  # noqa: E731
    surface = McpHandlers(calls, caller, lambda _: McpPeer("all"), page_size=10)

    async def work() -> None:
        async with Client(surface.create_server()) as client:
            names: list[str] = []
            cursor = None
            while True:
                page = await client.list_tools(cursor=cursor)
                assert len(page.tools) <= 10
                names += [tool.name for tool in page.tools]
                if (cursor := page.next_cursor) is None:
                    break
            assert names == [one.name for one in CATALOG if CallerKind.MODEL in one.callers]
            with pytest.raises(MCPError, match="cursor"):
                await client.list_tools(cursor="nonsense")
            files = [f"notes/{number:02}.txt" for number in range(25)]
            code = "\n".join(f"workspace.write(path={path!r}, content='x')" for path in files)
            await client.call_tool("execute_code", {"code": code})
            first = await client.list_resources()
            last = await client.list_resources(
                cursor=(await client.list_resources(cursor=first.next_cursor)).next_cursor
            )
            assert [len(first.resources), len(last.resources), last.next_cursor] == [10, 6, None]  # and the graph

    asyncio.run(work())


def test_server_tools_follow_ours(app: App) -> None:
    from athena.server.mcp.server import McpHandlers
    from athena.server.mcp.workspaces import McpPeer

    async def answer(ctx: Any, arguments: dict[str, Any]) -> Any:
        return arguments

    odd = {"type": "object", "properties": {"file-path": {"anyOf": [True, {"type": "null"}], "title": 7}}}
    theirs = ToolDefinition("git-hub", "create_issue", "Create an issue.", arguments=odd, effect=Effect.READ)
    small = [mcp_tools.define_tool(one, "default") for one in mcp_tools.select_tools(app.catalog, "default")]
    app.catalog.replace_category("git-hub", "Another server.", [ForeignOperation(theirs, answer)])
    assert json.dumps(
        [mcp_tools.define_tool(one, "default") for one in mcp_tools.select_tools(app.catalog, "default")]
    ) == (json.dumps(small))
    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)
    surface = McpHandlers(calls, lambda project, workspace: app.create_context("test", "mcp"), lambda _: McpPeer("all"))

    async def work() -> None:
        for mode in ("auto", "legacy"):
            async with Client(surface.create_server(), mode=mode) as client:
                listed = (await client.list_tools()).tools
                assert [listed[0].name, listed[-1].name] == ["remember", "git-hub__create_issue"]
                hints = [one.annotations and one.annotations.open_world_hint for one in (listed[0], listed[-1])]
                assert hints == [False, True]
                assert await call_for_text(client, "git-hub__create_issue", file_path="x") == '{"file-path":"x"}'

    asyncio.run(work())


@pytest.mark.parametrize("how", [f"http {MODERN}", f"stdio {LEGACY}"])
def test_workspace_files_are_resources(served: RunningServer, how: str) -> None:
    async def work() -> None:
        async with connect_client(served, how) as client:
            written = {"path": "plans/tea time.json", "content": {"at": 4}}
            await call_for_text(client, "execute_code", code=f"workspace.write(**{written!r})")
            listed = {one.name: one for one in (await client.list_resources()).resources}
            one = listed["plans/tea time.json"]
            assert (one.mime_type, one.size) == ("application/json", 12)
            read = (await client.read_resource(one.uri)).contents[0]
            assert json.loads(read.text) == {"at": 4}  # type: ignore[union-attr]
            (template,) = (await client.list_resource_templates()).resource_templates
            assert template.uri_template == "athena://workspace/{workspace}/{+path}"
            for uri in ("athena://workspace/default/nothing.txt", "athena://elsewhere", "file:///etc/passwd"):
                with pytest.raises(MCPError, match="there is no") as missing:
                    await client.read_resource(uri)
                assert missing.value.code == (-32602 if MODERN in how else -32002)
            with pytest.raises(MCPError, match="cannot lead out"):
                await client.read_resource("athena://workspace/default/../../etc/passwd")

    asyncio.run(work())


def test_prompt_teaches_pattern(served: RunningServer) -> None:
    async def work() -> None:
        async with connect_client(served, f"http {MODERN}") as client:
            (prompt,) = (await client.list_prompts()).prompts
            assert prompt.description
            made = await client.get_prompt(prompt.name, {"task": "Count the open bugs"})
            said = made.messages[0].content.text  # type: ignore[union-attr]
            assert "Count the open bugs" in said
            assert all(word in said for word in ("search_tools", "execute_code", "remember", "recall"))
            with pytest.raises(MCPError, match="Unknown prompt"):
                await client.get_prompt("nothing")

    asyncio.run(work())


def test_long_program_reports_progress(served: RunningServer) -> None:
    async def work(how: str) -> None:
        seen: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)
            assert total == 50
            assert message
            if len(seen) == 2:
                served.call("write_file", path="go", content="x", workspace=name)

        name = f"far-{how}".replace(" ", "-")
        async with connect_client(served, how) as client:
            code = {"code": pausing_code(name), "timeout_s": 50, "workspace": name}
            result = await client.call_tool("execute_code", code, progress_callback=note)
            assert not result.is_error
        assert len(seen) >= 2
        assert seen == sorted(set(seen))

    asyncio.run(_all_at_once(work))


async def _all_at_once(work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for how in WAYS:
            group.create_task(work(how))


def test_abandoned_program_stops(served: RunningServer) -> None:
    async def work(how: str) -> None:
        name = f"stop-{how}".replace(" ", "-")
        code = pausing_code(name)
        async with connect_client(served, how) as client:
            call = asyncio.create_task(client.call_tool("execute_code", {"code": code, "workspace": name}))
            while not served.call("list_files", workspace=name):  # noqa: ASYNC110  # another process does it
                await asyncio.sleep(0.02)
            call.cancel()
            await asyncio.wait({call})

            def status() -> str:
                past = [run["status"] for run in served.call("list_runs") if run["workspace"] == name]
                return past[0] if past else "running"

            while status() == "running":  # noqa: ASYNC110  # another process does it
                await asyncio.sleep(0.02)
            assert status() in ("failed", "unknown")
            assert await call_for_text(client, "execute_code", code="1 + 1", workspace=name) == "2"

    asyncio.run(_all_at_once(work))


def test_projects_and_connections_are_separate(served: RunningServer) -> None:
    with open_lines(served.home, b'{"project": "one"}') as one, open_lines(served.home, b'{"project": "two"}') as two:
        for each in (one.begin(), two.begin()):
            each.call(1, "execute_code", code="x = 41")
            assert not each.read()["result"]["isError"]
        one.call(2, "remember", content="Only one knows")
        assert "kept" in one.read()["result"]["content"][0]["text"]
        two.call(3, "recall", query="Only one knows")
        assert two.read()["result"]["content"][0]["text"] == "nothing found"
        with open_lines(served.home, b'{"project": "one"}') as third:
            assert third.greeting["workspace"] != one.greeting["workspace"]
            third.begin().call(1, "execute_code", code="x")
            assert third.read()["result"]["isError"]
        one.call(4, "execute_code", code="x + 1")
        assert one.read()["result"]["content"][0]["text"] == "42"


SITES = {
    "another host": [("Host", "evil.example")],
    "another origin": [("Host", "localhost:{port}"), ("Origin", "http://evil.example")],
    "another site": [("Host", "localhost:{port}"), ("Sec-Fetch-Site", "cross-site")],
}


@pytest.mark.parametrize("site", SITES)
def test_web_page_is_refused(served: RunningServer, site: str) -> None:
    headers = [(name, value.format(port=served.port)) for name, value in SITES[site]]
    given = [*headers, ("Authorization", f"Bearer {served.token}"), ("Content-Type", "application/json")]
    assert served.ask("POST", "/mcp", given, b"{}").status == 403


def test_http_needs_token_and_known_surface(served: RunningServer) -> None:
    headers = [("Host", f"localhost:{served.port}"), ("Content-Type", "application/json")]
    assert served.ask("POST", "/mcp", headers, b"{}").status == 401
    odd = served.ask("POST", "/mcp?tools=most", [*served.auth_headers, *headers[1:]], b"{}")
    assert (odd.status, odd.error["code"]) == (400, "malformed")
    got = served.get("/mcp")
    assert (got.status, got.header("allow")) == (405, "POST, DELETE")


def test_tool_needing_approval_waits(served: RunningServer) -> None:
    async def work() -> None:
        async with connect_client(served, f"http {MODERN}", "all") as client:
            assert "athena approve" in await call_for_text(client, "purge", expect=0)
            waits = served.call("list_runs", status="needs_approval")[0]
            assert waits["waiting"] == {"operation": "memory.purge", "arguments": {"expect": 0}, "reason": ""}

    asyncio.run(work())


LONG = {
    """print('x = {"aé": 1.2345}; ' * 3000)""": "workspace.write(path=",
    "[i * 7919 for i in range(20000)]": 'workspace.read(path="',
    "'日本語のテキスト' * 900": 'workspace.read(path="',
    "print('😀' * 3000)\n[i * 7919 for i in range(400)]": "workspace.write(path=",
}


def test_lone_surrogate_keeps_connection() -> None:
    assert '"text":"a\ufffd"' in mcp_server._create_tool_result("a\ud800", failed=False).model_dump_json()


def test_long_answer_is_truncated_at_budget(served: RunningServer, tmp_path: Path) -> None:
    async def work() -> None:
        async with connect_client(served, f"http {LEGACY}", "all") as client:
            many = [
                f"Fact {number} of a long story about the harbour, told twice and then again" for number in range(200)
            ]
            await call_for_text(client, "remember_batch", items=many)
            text = await call_for_text(client, "recall", query="the harbour story", k=200)
            assert tokens.count_tokens_exactly(text) <= 2_100
            match = re.fullmatch(r"(.*)\n\[\d+ more: offset=(\d+)\]", text, re.DOTALL)
            assert match
            shown, offset = match.groups()
            assert len(shown.splitlines()) == int(offset)
            after = await call_for_text(client, "recall", query="the harbour story", k=200, offset=int(offset))
            assert not set(shown.splitlines()) & set(after.splitlines())
            long = await call_for_text(client, "remember", content="word " * 400)
            brief = await call_for_text(client, "recall", query="word word word", k=1)
            assert brief.startswith(long.split()[0])
            assert brief.endswith("…\n[…: cut; full=true shows all]")
            for code, more in LONG.items():
                said = await call_for_text(client, "execute_code", code=code)
                assert tokens.count_tokens_exactly(said) <= 2_000, code
                assert more in said[-200:], code

    asyncio.run(work())


def test_time_in_query_counts(served: RunningServer) -> None:
    async def work() -> None:
        async with connect_client(served, f"http {LEGACY}") as client:
            await call_for_text(client, "remember", content="Twelve crates of marmalade were ordered")
            assert "marmalade" in await call_for_text(client, "recall", query="what marmalade did we order today")
            await call_for_text(client, "remember", content="Marmalade is nice", metadata={"date": "2021-05-05"})
            assert "crates" not in await call_for_text(client, "recall", query="what about marmalade in May 2021")
            text = await call_for_text(client, "recall", query="what marmalade did we order in March 1999")
            assert text.startswith("[nothing is from the time that you name; of any time:]\n")
            assert "crates" in text

    asyncio.run(work())


def test_session_idle_longest_gives_way(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens sessions and ends none shuts nobody out."""
    monkeypatch.setattr(mcp_http, "MAX_SESSIONS", 3)
    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)

    async def work() -> tuple[list[int], list[int]]:
        context = app.create_context("p", "mcp")
        endpoint = mcp_http.McpEndpoint(calls, lambda project, workspace: context, WorkspacePool(), "p")
        opened = [await post_mcp(endpoint, "initialize", "") for _ in range(3)]
        sessions = [session for _, session in opened]
        await post_mcp(endpoint, "tools/list", sessions[0])  # the second is idle for longest now
        opened += [await post_mcp(endpoint, "initialize", "") for _ in range(2)]
        sessions = [session for _, session in opened]
        listed = [(await post_mcp(endpoint, "tools/list", session))[0] for session in sessions]
        await endpoint.close()
        return [status for status, _ in opened], listed

    opened, listed = asyncio.run(work())
    assert opened == [200] * 5
    assert listed == [200, 404, 404, 200, 200]


async def post_mcp(endpoint: mcp_http.McpEndpoint, method: str, session: str) -> tuple[int, str]:
    """Send a message to the endpoint, and return the status and the session of the answer."""
    client = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    params = client if method == "initialize" else {}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    headers |= {"mcp-session-id": session, "mcp-protocol-version": LEGACY} if session else {}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": raw}
    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        if (part := next(parts, None)) is None:
            await asyncio.sleep(30)
        return part

    async def send(message: Any) -> None:
        sent.append(message)

    await endpoint(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]).get(b"mcp-session-id", b"").decode()
