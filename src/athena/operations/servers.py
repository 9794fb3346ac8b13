"""Other MCP servers, whose tools are operations too: each server is a category."""

import json
import sys
from functools import partial
from typing import Annotated, Any

from athena.core.operation import Effect, operation
from athena.core.threads import get_running_loop
from athena.core.types import Param, to_json
from athena.core.values import Call
from athena.errors import ApprovalNeeded, InvalidInput, LimitExceeded
from athena.gateway.gateway import RemoteTool
from athena.gateway.values import ConnectedServer, ServerTool
from athena.operations.context import Context
from athena.storage import calls
from athena.storage.database import Transaction

APPROVAL_SURFACES = ("program", "cli")  # where a person is asked, or is the one who calls
POLL_INTERVAL_S = 0.2  # seconds between looks whether anybody still waits


@operation(Effect.READ, short="list")
async def list_servers(ctx: Context) -> list[ConnectedServer]:
    """List connected MCP servers and how they are.

    >>> servers.list_servers()
    """
    ctx.catalog.refresh()
    return ctx.gateway.list_servers()


@operation(Effect.READ, short="tools")
async def server_tools(
    ctx: Context, name: Annotated[str, Param("The server's name.", least=1, most=100)]
) -> list[ServerTool]:
    """List what a server offers, as a program calls it.

    >>> servers.server_tools(name="github")
    """
    ctx.catalog.refresh()
    found = [one for one in ctx.catalog.list_operations(ctx.gateway.resolve_name(name)) if one.is_foreign]
    return [ServerTool(one.name, one.summary, str(one.effect), one.approval, one.signature) for one in found]


async def forward_call(ctx: Context, tool: RemoteTool, arguments: dict[str, Any]) -> Any:
    """Call a server's tool for somebody: with a key, once; recorded like anything else."""
    if tool.needs_approval and ctx.surface not in APPROVAL_SURFACES:
        raise ApprovalNeeded(
            f"{tool.path} needs a person's approval", hint="call it in a program, which can wait for it"
        )
    if ctx.call.key is not None:
        return await _call_once(ctx, tool, arguments)
    result = await _await_answer(ctx, tool, arguments, _CallProgress())
    if not tool.is_read_only:
        ctx.store.database.defer_write(partial(_record_call, ctx.call))
    return result


class _CallProgress:
    """Whether a call may have done something."""

    sent = False


async def _call_once(ctx: Context, tool: RemoteTool, arguments: dict[str, Any]) -> Any:
    """Call under a key that is taken before anything is sent, and given back if nothing was done."""
    database, call, progress = ctx.store.database, ctx.call, _CallProgress()
    if (kept := await database.write(lambda tx: calls.begin_call(tx, call))) is not None:
        return json.loads(kept)
    try:
        result = to_json(await _await_answer(ctx, tool, arguments, progress))
    except BaseException as error:
        if tool.is_read_only or not progress.sent or isinstance(error, InvalidInput):  # the tool's own refusal
            await database.write(lambda tx: calls.abandon_call(tx, call))
        raise
    await database.write(lambda tx: calls.finish_call(tx, call, result))
    return result


async def _await_answer(ctx: Context, tool: RemoteTool, arguments: dict[str, Any], progress: _CallProgress) -> Any:
    """Wait for an answer for as long as somebody waits for us."""
    pending = ctx.gateway.start_call(tool, to_json(arguments))
    try:
        if get_running_loop() is not None:
            return await pending.outcome
        while not pending.outcome.wait(POLL_INTERVAL_S):
            if _has_run_ended():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
        return pending.outcome.result()
    except BaseException:
        progress.sent = pending.begun is None or pending.begun.is_set()
        pending.cancel()
        raise


def _has_run_ended() -> bool:
    """Tell whether the program that calls has ended."""
    sandbox = sys.modules.get("athena.programs.sandbox")  # if nobody imported it, no program runs
    return sandbox is not None and sandbox.is_run_closed()


async def _record_call(call: Call, tx: Transaction) -> None:
    await calls.record_call(tx, call, "done")
