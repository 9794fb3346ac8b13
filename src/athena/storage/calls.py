"""Who called what, and the receipts that make a repeated call happen once."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from athena.core.values import Call
from athena.errors import Conflict

MAX_CALLS = 200_000  # calls
PRUNE_BATCH_CALLS = 10_000  # calls that are looked at to let go of some; the older ones are needed
PENDING_RESULT = ""  # in place of a result: somebody has begun, and nobody knows yet what came of it
RECEIPT_TTL_S = 7 * 86_400.0  # seconds that a key is remembered


async def record_call(tx: Any, call: Call, outcome: str, elapsed_ms: float | None = None) -> int:
    """Write down a call and return its number."""
    row = await tx.fetch_one(
        """INSERT INTO calls (scope, operation, surface, at, elapsed_ms, outcome, run)
           VALUES (:scope, :operation, :surface, :at, :elapsed, :outcome, :run) RETURNING id""",
        scope=call.scope.project,
        operation=call.operation,
        surface=call.surface,
        at=call.started,
        elapsed=elapsed_ms,
        outcome=outcome,
        run=call.run,
    )
    number = int(row[0])
    if number % 1_000 == 0:
        await _prune_calls(tx, number, call.started)
    return number


async def _prune_calls(tx: Any, newest: int, now: float) -> None:
    """Let go of old calls and receipts, so that neither grows for ever."""
    last = newest - MAX_CALLS
    await tx.execute(
        """DELETE FROM calls WHERE id BETWEEN :first AND :last
           AND NOT EXISTS (SELECT 1 FROM history h WHERE h.call = calls.id)""",  # undo needs those
        first=last - PRUNE_BATCH_CALLS,
        last=last,
    )
    await tx.execute("DELETE FROM receipts WHERE at < :oldest", oldest=now - RECEIPT_TTL_S)


async def run_once(
    tx: Any, call: Call, work: Callable[[int], Awaitable[Any]], *, about: str = "", number: int | None = None
) -> Any:
    """Do the work of a call under its number; with a key seen before, return what it returned then.

    The result must be plain JSON, since it is kept with the key, in the same transaction as the work. `about` tells
    calls apart that are a part of a larger one; `number` is that of a call recorded before.
    """
    about = about or call.arguments_digest
    if (kept := await fetch_receipt(tx, call, about=about)) is not None:
        return json.loads(kept)
    result = await work(await record_call(tx, call, "done") if number is None else number)
    if call.key is not None:
        await _insert_receipt(tx, call, about, json.dumps(result))
    return result


async def fetch_receipt(tx: Any, call: Call, *, about: str = "") -> str | None:
    """Return what the call of this key returned when it happened, if it did."""
    about = about or call.arguments_digest
    if call.key is None:
        return None
    row = await tx.fetch_one(
        "SELECT operation, fingerprint, result FROM receipts WHERE scope = :scope AND key = :key",
        scope=call.scope.project,
        key=call.key,
    )
    if row is None:
        return None
    if (row[0], row[1]) != (call.operation, about):
        raise Conflict(f"this idempotency key was used for another {row[0]}", hint="use a new key for each call")
    return str(row[2])


async def begin_call(tx: Any, call: Call) -> str | None:
    """Take the key of a call that happens elsewhere, before it does; return what it returned if it did."""
    if (kept := await fetch_receipt(tx, call)) == PENDING_RESULT:
        raise Conflict(
            "a call with this idempotency key was begun, and its outcome is not known",
            hint="ask again with this key while it may be under way; else look before you repeat it",
        )
    if kept is None:
        await _insert_receipt(tx, call, call.arguments_digest, PENDING_RESULT)
    return kept


async def finish_call(tx: Any, call: Call, result: Any) -> None:
    """Write down what came of a call that was begun."""
    await record_call(tx, call, "done")
    await tx.execute(
        "UPDATE receipts SET result = :result WHERE scope = :scope AND key = :key",
        result=json.dumps(result),
        scope=call.scope.project,
        key=call.key,
    )


async def abandon_call(tx: Any, call: Call) -> None:
    """Give the key back of a call that was begun and of which nothing was done."""
    await tx.execute(
        "DELETE FROM receipts WHERE scope = :scope AND key = :key AND result = :nothing",
        scope=call.scope.project,
        key=call.key,
        nothing=PENDING_RESULT,
    )


async def _insert_receipt(tx: Any, call: Call, about: str, result: str) -> None:
    await tx.execute(
        """INSERT INTO receipts (scope, key, operation, fingerprint, result, at)
           VALUES (:scope, :key, :operation, :about, :result, :at)""",
        scope=call.scope.project,
        key=call.key,
        operation=call.operation,
        about=about,
        result=result,
        at=call.started,
    )


async def list_recent_calls(
    tx: Any, surface: str, operations: tuple[str, ...], most: int
) -> list[tuple[str, str, float]]:
    """Return the last calls of some operations by one surface: which, how it ended and how many ms it took."""
    names = {f"name{number}": name for number, name in enumerate(operations)}
    rows = await tx.fetch(
        f"""SELECT operation, outcome, elapsed_ms FROM calls WHERE surface = :surface
            AND operation IN ({", ".join(f":{name}" for name in names)}) ORDER BY id DESC LIMIT :most""",
        surface=surface,
        most=most,
        **names,
    )
    return [(row[0], row[1], float(row[2] or 0.0)) for row in rows]


async def count_calls(tx: Any) -> dict[str, int]:
    """Count the recorded calls by operation."""
    rows = await tx.fetch("SELECT operation, count(*) FROM calls GROUP BY operation ORDER BY operation")
    return {row[0]: int(row[1]) for row in rows}
