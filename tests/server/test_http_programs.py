"""Programs over HTTP: they block no other call, and AthenaClient returns the same answer."""

from pathlib import Path

import pytest

from athena import AthenaClient
from athena.core.threads import ThreadPool
from athena.errors import NotFound
from athena.results import Result
from http_tools import run_server
from wait_tools import pausing_code, wait_until

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")


def test_programs_do_not_block_others(tmp_path: Path) -> None:
    with run_server(tmp_path) as server, AthenaClient(f"http://localhost:{server.port}", token=server.token) as client:
        client.remember(content="Tea is at four")
        done = client.execute_code("x = 20\nx + len(memory.list_memories(k=5))")
        assert (done["success"], done["result"], done["calls"]) == (True, 21, 1)
        failed = client.execute_code("1 / 0", workspace="w")
        assert failed["error"]
        assert (failed["status"], failed["error"]["type"]) == ("failed", "ZeroDivisionError")
        crew = ThreadPool(12)
        jobs = [
            crew.start_call(client_run, server.port, server.token, f"{pausing_code()}1", f"w{i}") for i in range(12)
        ]
        wait_until(lambda: client.call_tool("list_files", workspace="signals"))
        assert client.recall(query="tea", k=1)[0]["content"] == "Tea is at four"
        client.remember(content="Coffee is at five")
        assert not any(one.wait(0) for one in jobs)
        client.call_tool("write_file", path="go", content="x", workspace="signals")
        for one in jobs:
            one.wait()
            assert one.result()["result"] == 1
        waits = client.execute_code("memory.purge(expect=0)")
        assert waits["status"] == "needs_approval"
        with pytest.raises(NotFound):  # the agent may hold the token, so it cannot approve
            client.call_tool("approve_run", run_id=waits["run_id"])
        assert "approve_run" not in str(client.discover_tools())


def client_run(port: int, token: str, code: str, workspace: str) -> Result:
    with AthenaClient(f"http://localhost:{port}", token=token) as client:
        return client.execute_code(code, workspace=workspace)
