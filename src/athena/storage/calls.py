"""SQL of recorded calls, and of the receipts that make a repeated call with the same key happen once."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from athena.core.redaction import redact_json
from athena.core.values import Call
from athena.errors import Conflict
from athena.storage.database import Transaction
from athena.storage.filters import bind_list

MAX_CALLS = 200_000
PRUNE_INTERVAL_CALLS = 1_000
PRUNE_BATCH_CALLS = 10_000  # only the newest of those beyond the maximum are tried; what is left of older ones stays
PENDING_RESULT = ""  # in place of a result: the call has begun, and its outcome is not known yet
RECEIPT_TTL_S = 7 * 86_400.0


async def record_call(tx: Transaction, call: Call, outcome: str, elapsed_ms: float | None = None) -> int:
    """Insert a call and return its id."""
    row = await tx.fetch_required(
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
    call_id = int(row[0])
    if call_id % PRUNE_INTERVAL_CALLS == 0:
        await _prune_calls(tx, call_id, call.started)
    return call_id


async def _prune_calls(tx: Transaction, newest: int, now: float) -> None:
    """Delete old calls and receipts."""
    last = newest - MAX_CALLS
    await tx.execute(
        """DELETE FROM calls WHERE id BETWEEN :first AND :last
           AND NOT EXISTS (SELECT 1 FROM history h WHERE h.call = calls.id)""",  # undo needs those
        first=last - PRUNE_BATCH_CALLS,
        last=last,
    )
    await tx.execute("DELETE FROM receipts WHERE at < :oldest", oldest=now - RECEIPT_TTL_S)


async def run_once(tx: Transaction, call: Call, work: Callable[[int], Awaitable[Any]]) -> Any:
    """Run the work of a call with the call's id; if its key was used before, return the result of then.

    The result must be plain JSON, because the receipt stores it, in the same transaction as the work.
    """
    if (receipt := await fetch_receipt(tx, call)) is not None:
        return json.loads(receipt)
    result = await work(await record_call(tx, call, "done") if call.recorded_id is None else call.recorded_id)
    if call.key is not None:
        await _insert_receipt(tx, call, json.dumps(result))
    return result


def is_other_call(stored: str, digest: str) -> bool:
    """Return whether the digests of two calls with one key prove that their arguments differ.

    What another key has signed proves nothing, and neither does a digest that an update has cleared: then the
    answer of the first call counts, since to refuse a retry or to do it again would be worse.
    """
    return stored != digest and stored.rpartition(":")[0] == digest.rpartition(":")[0]


async def fetch_receipt(tx: Transaction, call: Call) -> str | None:
    """Return the result of an earlier call with this key, if there was one."""
    if call.key is None:
        return None
    row = await tx.fetch_one(
        "SELECT operation, fingerprint, result FROM receipts WHERE scope = :scope AND key = :key",
        scope=call.scope.project,
        key=call.key,
    )
    if row is None:
        return None
    if row[0] != call.operation or is_other_call(row[1], call.arguments_digest):
        raise Conflict(f"this idempotency key was used for another {row[0]}", hint="use a new key for each call")
    return str(row[2])


async def begin_call(tx: Transaction, call: Call) -> str | None:
    """Reserve the key of a call outside of this store, before it is made; return its result if it was made before."""
    if (receipt := await fetch_receipt(tx, call)) == PENDING_RESULT:
        raise Conflict(
            "a call with this idempotency key was begun, and its outcome is not known",
            hint="ask again with this key while it may be under way; else look before you repeat it",
        )
    if receipt is None:
        await _insert_receipt(tx, call, PENDING_RESULT)
    return receipt


async def finish_call(tx: Transaction, call: Call, result: Any) -> None:
    """Record a call that was begun, and its result."""
    await record_call(tx, call, "done")
    await tx.execute(
        "UPDATE receipts SET result = :result WHERE scope = :scope AND key = :key",
        result=json.dumps(redact_json(result)[0]),  # what a tool of another server returned may be anything
        scope=call.scope.project,
        key=call.key,
    )


async def abandon_call(tx: Transaction, call: Call) -> None:
    """Release the key of a call that was begun but had no effect."""
    await tx.execute(
        "DELETE FROM receipts WHERE scope = :scope AND key = :key AND result = :pending",
        scope=call.scope.project,
        key=call.key,
        pending=PENDING_RESULT,
    )


async def _insert_receipt(tx: Transaction, call: Call, result: str) -> None:
    await tx.execute(
        """INSERT INTO receipts (scope, key, operation, fingerprint, result, at)
           VALUES (:scope, :key, :operation, :fingerprint, :result, :at)""",
        scope=call.scope.project,
        key=call.key,
        operation=call.operation,
        fingerprint=call.arguments_digest,
        result=result,
        at=call.started,
    )


async def list_recent_calls(
    tx: Transaction, surface: str, operations: tuple[str, ...], limit: int
) -> list[tuple[str, str, float]]:
    """Return the last calls of some operations by one surface: operation, outcome and milliseconds."""
    names, bound = bind_list("name", operations)
    rows = await tx.fetch(
        f"""SELECT operation, outcome, elapsed_ms FROM calls WHERE surface = :surface
            AND operation IN ({names}) ORDER BY id DESC LIMIT :limit""",
        surface=surface,
        limit=limit,
        **bound,
    )
    return [(row[0], row[1], float(row[2] or 0.0)) for row in rows]


async def list_durations(tx: Transaction, since: float, limit: int) -> list[tuple[str, float, float]]:
    """Return operation, time and milliseconds of the last calls that were timed."""
    rows = await tx.fetch(
        """SELECT operation, at, elapsed_ms FROM calls WHERE at >= :since AND elapsed_ms IS NOT NULL
           ORDER BY id DESC LIMIT :limit""",
        since=since,
        limit=limit,
    )
    return [(row[0], float(row[1]), float(row[2])) for row in rows]
