"""Calls run in the order of their arrival; long calls of one kind hold up no other kind."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from athena.errors import Unavailable
from athena.server import admission
from athena.server.admission import Turns

KINDS = ("read", "write")


def run_calls(limit: int, body: Callable[[Turns], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await body(Turns(KINDS, limit))

    asyncio.run(run())


def test_no_kind_overtakes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STUCK_AFTER_S", 60.0)  # a busy machine may stop this process for a while
    order: list[tuple[str, int]] = []

    async def call(queue: Turns, kind: str, number: int) -> None:
        async with queue.take(kind):
            order.append((kind, number))
            await asyncio.sleep(0.001)

    async def body(queue: Turns) -> None:
        calls = [("write" if i % 20 == 19 else "read", i) for i in range(400)]  # many readers, few writers
        await asyncio.gather(*(call(queue, *one) for one in calls))

    run_calls(2, body)
    assert len(order) == 400
    places = {number: place for place, (_, number) in enumerate(order)}
    assert max(abs(place - number) for number, place in places.items()) <= 4  # what runs at once


def test_long_calls_hold_up_no_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "STUCK_AFTER_S", 0.05)

    async def body(queue: Turns) -> None:
        release = asyncio.Event()

        async def write() -> None:
            async with queue.take("write"):
                await release.wait()

        async def read() -> None:
            async with queue.take("read"):
                await asyncio.sleep(0)

        writes = [asyncio.create_task(write()) for _ in range(4)]  # two run, two wait
        await asyncio.sleep(0)
        await asyncio.gather(*(read() for _ in range(20)))
        assert not any(task.done() for task in writes)
        release.set()
        await asyncio.gather(*writes)

    run_calls(2, body)


def test_callers_that_leave_free_their_turn() -> None:
    async def body(queue: Turns) -> None:
        release = asyncio.Event()

        async def hold() -> None:
            async with queue.take("read"):
                await release.wait()

        tasks = [asyncio.create_task(hold()) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[::2]:  # of those that run, and of those that wait
            task.cancel()
        await asyncio.sleep(0)
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 5
        async with queue.take("read"), queue.take("read"):  # both turns are free
            pass

    run_calls(2, body)


def test_call_that_would_wait_too_long_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TURN_TIMEOUT_S", 0.4)

    async def body(queue: Turns) -> None:
        async def call() -> None:
            async with queue.take("read"):
                await asyncio.sleep(0.02)

        first = await asyncio.gather(*(call() for _ in range(30)), return_exceptions=True)
        assert first[0] is None
        assert queue.estimate_wait_s() == 0
        results = await asyncio.gather(*(call() for _ in range(300)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Unavailable)]
        assert 200 < len(refused) < 300
        assert all(error.retry and error.retry_after_s >= 1 for error in refused)

    run_calls(1, body)


def test_kind_with_few_callers_finds_a_place_in_a_full_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TURN_TIMEOUT_S", 10.0)
    monkeypatch.setattr(admission, "FIRST_PACE_S", 0.2)  # so that the queue has 50 places
    monkeypatch.setattr(admission, "PACE_WEIGHT", 0.0)
    monkeypatch.setattr(admission, "STUCK_AFTER_S", 60.0)

    async def body(queue: Turns) -> None:
        order: list[str] = []
        waits: dict[str, list[int]] = {kind: [] for kind in KINDS}  # in calls that began before
        refused = dict.fromkeys(KINDS, 0)
        delays_s: list[int] = []

        async def ask(kind: str) -> None:
            for _ in range(8):  # again at once after an answer, later after a refusal
                began_before = len(order)
                try:
                    async with queue.take(kind):
                        waits[kind].append(len(order) - began_before)
                        order.append(kind)
                        await asyncio.sleep(0)
                except Unavailable as error:
                    delays_s.append(error.retry_after_s if error.retry else 0)
                    refused[kind] += 1
                    await asyncio.sleep(0.001)

        # The few ask last, when the queue is full already.
        await asyncio.gather(*(ask("read") for _ in range(190)), *(ask("write") for _ in range(10)))
        assert refused["read"] > 0
        assert refused["write"] == 0
        assert min(delays_s) >= 1
        assert len(waits["write"]) == 80
        usual = {kind: sorted(waits[kind])[len(waits[kind]) // 2] for kind in KINDS}
        assert max(usual.values()) <= 2 * min(usual.values())  # neither kind waits much longer
        assert max(max(waits[kind]) for kind in KINDS) <= 55
        assert sum(queue._counts.values()) == 0
        async with queue.take("read"), queue.take("write"):
            pass

    run_calls(1, body)


def test_callers_that_left_are_not_counted() -> None:
    async def body(queue: Turns) -> None:
        release = asyncio.Event()

        async def hold() -> None:
            async with queue.take("read"):
                await release.wait()

        first = asyncio.create_task(hold())
        await asyncio.sleep(0)
        left = [asyncio.create_task(hold()) for _ in range(500)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        queue._pace_s = 1.0
        assert queue.estimate_wait_s() == 0
        release.set()
        await first
        assert queue.estimate_wait_s() == 0

    run_calls(1, body)
