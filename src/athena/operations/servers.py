"""Other MCP servers, whose tools are operations too: each server is a category."""

import json
import sys
from functools import partial
from typing import Annotated, Any

from athena.errors import ApprovalNeeded, LimitExceeded
from athena.gateway.gateway import Tool
from athena.kernel.operation import Effect, operation
from athena.kernel.shapes import Param, plain
from athena.model.call import Call
from athena.model.server import ConnectedServer, ServerTool
from athena.operations.context import Context
from athena.storage import calls
from athena.storage.database import Transaction
from athena.threads import running_loop

WAITS = ("program", "cli")  # where a person is asked, or is the one who calls
STEP = 0.2  # seconds between looks whether anybody still waits


@operation(Effect.READ, short="list")
async def list_servers(ctx: Context) -> list[ConnectedServer]:
    """List connected MCP servers and how they are.

    >>> servers.list_servers()
    """
    ctx.catalog.version  # noqa: B018  # brings in what has changed
    return ctx.gateway.servers()


@operation(Effect.READ, short="tools")
async def server_tools(
    ctx: Context, name: Annotated[str, Param("The server's name.", least=1, most=100)]
) -> list[ServerTool]:
    """List what a server offers, as a program calls it.

    >>> servers.server_tools(name="github")
    """
    ctx.catalog.version  # noqa: B018  # brings in what has changed
    found = [one for one in ctx.catalog.listed(ctx.gateway.named(name)) if one.foreign]
    return [ServerTool(one.name, one.summary, str(one.effect), one.approval, one.signature) for one in found]


async def forward(ctx: Context, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Call a server's tool for somebody: with a key, once; recorded like anything else."""
    if tool.approval and ctx.surface not in WAITS:
        raise ApprovalNeeded(
            f"{tool.path} needs a person's approval", hint="call it in a program, which can wait for it"
        )
    database, call = ctx.store.database, ctx.call
    if call.key is not None and (kept := await database.read(lambda tx: calls.receipt(tx, call))) is not None:
        return json.loads(kept)
    result = await _answer(ctx, tool, arguments)
    if call.key is not None:
        return await database.write(lambda tx: calls.once(tx, call, partial(_given, plain(result))))
    if not tool.reads:
        database.later(partial(_note, call))
    return result


async def _answer(ctx: Context, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Wait for an answer for as long as somebody waits for us."""
    pending = ctx.gateway.start(tool, plain(arguments))
    try:
        if running_loop() is not None:
            return await pending.outcome
        while not pending.outcome.wait(STEP):
            if _abandoned():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
        return pending.outcome.result()
    except BaseException:
        pending.cancel()
        raise


def _abandoned() -> bool:
    """Tell whether the program that calls has ended."""
    sandbox = sys.modules.get("athena.sandbox")  # if nobody imported it, no program runs
    return sandbox is not None and sandbox.closed()


async def _given(result: Any, number: int) -> Any:
    return result


async def _note(call: Call, tx: Transaction) -> None:
    await calls.record(tx, call, "done")
