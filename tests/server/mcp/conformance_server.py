"""Our server with three more operations: those tools of the conformance suite that an operation can implement."""

import sys

from athena.app.compose import App
from athena.core.operation import EVERYONE, Effect, operation
from athena.core.threads import sleep
from athena.embedding.minilm import MiniLM
from athena.errors import InvalidInput
from athena.operations.context import Context
from athena.server.serve import AthenaServer
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite


@operation(Effect.READ, callers=EVERYONE)
async def test_simple_text(ctx: Context) -> str:
    """Say something."""
    return "This is a simple text response for testing."


@operation(Effect.READ, callers=EVERYONE)
async def test_error_handling(ctx: Context) -> str:
    """Fail."""
    raise InvalidInput("This tool intentionally returns an error for testing", hint="nothing can be done")


@operation(Effect.READ, callers=EVERYONE)
async def test_tool_with_progress(ctx: Context) -> str:
    """Take some time."""
    await sleep(2.7)
    return "done"


def main(home: str) -> None:
    app = App(Sqlite(IN_MEMORY_PATH), MiniLM())
    for one in (test_simple_text, test_error_handling, test_tool_with_progress):
        app.catalog.add(one)
    server = AthenaServer(app, home, "conformance", "127.0.0.1", 0, auth=False, hosts=())
    print(server.url, flush=True)
    server.run()


if __name__ == "__main__":
    main(sys.argv[1])
