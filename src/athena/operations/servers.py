"""Other MCP servers, whose tools are operations too: each server is a category."""

import json
import sys
from functools import partial
from typing import Annotated, Any

from athena.core.call import Call
from athena.core.operation import Effect, operation
from athena.core.threads import running_loop
from athena.core.types import Param, plain
from athena.errors import ApprovalNeeded, InvalidInput, LimitExceeded
from athena.gateway.gateway import Tool
from athena.gateway.values import ConnectedServer, ServerTool
from athena.operations.context import Context
from athena.storage import calls
from athena.storage.database import Transaction

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
    if ctx.call.key is not None:
        return await _once(ctx, tool, arguments)
    result = await _answer(ctx, tool, arguments, _Progress())
    if not tool.reads:
        ctx.store.database.later(partial(_note, ctx.call))
    return result


class _Progress:
    """Whether a call may have done something."""

    sent = False


async def _once(ctx: Context, tool: Tool, arguments: dict[str, Any]) -> Any:
    """Call under a key that is taken before anything is sent, and given back if nothing was done."""
    database, call, progress = ctx.store.database, ctx.call, _Progress()
    if (kept := await database.write(lambda tx: calls.begin(tx, call))) is not None:
        return json.loads(kept)
    try:
        result = plain(await _answer(ctx, tool, arguments, progress))
    except BaseException as error:
        if tool.reads or not progress.sent or isinstance(error, InvalidInput):  # the tool's own refusal
            await database.write(lambda tx: calls.abandon(tx, call))
        raise
    await database.write(lambda tx: calls.finish(tx, call, result))
    return result


async def _answer(ctx: Context, tool: Tool, arguments: dict[str, Any], progress: _Progress) -> Any:
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
        progress.sent = pending.begun is None or pending.begun.is_set()
        pending.cancel()
        raise


def _abandoned() -> bool:
    """Tell whether the program that calls has ended."""
    sandbox = sys.modules.get("athena.programs.sandbox")  # if nobody imported it, no program runs
    return sandbox is not None and sandbox.closed()


async def _note(call: Call, tx: Transaction) -> None:
    await calls.record(tx, call, "done")
