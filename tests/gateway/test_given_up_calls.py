"""A call that was given up before it began sends nothing, also where it has just got its turn."""

import asyncio
import threading

import pytest

from athena.gateway.connections import CallStart, EventLoopThread


async def close_nothing() -> None:
    """Stand for the last work of an event loop."""


def test_call_given_up_at_its_turn_begins_no_more() -> None:
    """Whoever gives it up gives its key back at once, so that what it would still do could be done twice."""
    thread, start, sent = EventLoopThread(), CallStart(), list[str]()
    waits, is_woken, is_decided = threading.Event(), threading.Event(), threading.Event()
    slots = asyncio.Semaphore(0)

    async def send() -> None:
        waits.set()
        async with slots:
            start.begin()
            sent.append("a byte")

    async def wake_and_stall() -> None:
        slots.release()  # the call runs on with the next step of the loop
        is_woken.set()
        is_decided.wait(30)

    task = thread.submit(send, start)
    assert waits.wait(30)
    stall = thread.submit(wake_and_stall)
    assert is_woken.wait(30)
    task.cancel()
    assert not task.start.give_up()
    is_decided.set()
    assert task.outcome.wait(30)
    with pytest.raises(asyncio.CancelledError):
        task.outcome.result()
    assert stall.outcome.wait(30)
    assert sent == []
    thread.stop(close_nothing, 5.0)


def test_begun_call_is_known_as_begun() -> None:
    start = CallStart()
    start.begin()
    start.begin()  # sent again, since the server did not know the session
    assert start.give_up()
    with pytest.raises(asyncio.CancelledError):
        start.begin()
