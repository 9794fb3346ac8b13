"""What `recall` costs over MCP, and what `athena savings` counts of it."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from mcp_tools import LEGACY, call_for_text, connect_client

from athena.core import tokens
from http_tools import RunningServer, run_server
from wait_tools import wait_until

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")
LONG = "The harbour of town {} opens at seven. " + "Ships wait outside until the pilot has had breakfast. " * 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("recall")) as server:
        yield server


@pytest.mark.parametrize("surface", ["default", "all"])
def test_five_hits_have_few_tokens_and_savings_say_so(served: RunningServer, surface: str) -> None:
    async def work() -> None:
        async with connect_client(served, f"http {LEGACY}", surface, {"X-Athena-Project": surface}) as client:
            for number in range(6):
                await call_for_text(client, "remember", content=LONG.format(number), tags=["harbour"])
            text = await call_for_text(client, "recall", query="when does the harbour open?", k=5)
            assert tokens.count_tokens_exactly(text) <= 385
            assert text.count("opens at seven") == 5
            assert text.splitlines()[-1] == "[…: cut; full=true shows all]"
            whole = await call_for_text(client, "recall", query="when does the harbour open?", k=1, full=True)
            assert whole.count("until the pilot") == 30
            assert "full=true" not in whole

    asyncio.run(work())

    def find_rows() -> list[dict[str, Any]]:
        rows = served.execute("token_savings", {}).json["data"]["operations"]
        return [row for row in rows if (row["operation"], row["surface"]) == ("recall", "mcp") and row["shown"]]

    wait_until(lambda: bool(find_rows()))  # they are written in the background
    (row,) = find_rows()
    assert 0 < row["shown"] < (row["given"] + row["returned"]) * 0.8
