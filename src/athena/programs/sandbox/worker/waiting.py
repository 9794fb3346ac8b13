"""`asyncio` for programs: no sockets, and results of operations may be awaited although they are there already."""

from __future__ import annotations

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from collections.abc import Callable
    from typing import Any


async def _ready(value: Any) -> Any:
    return value


async def _of(awaitable: Any) -> Any:
    return await awaitable


def awaitable(value: Any) -> Any:
    """Return something to await, whose result is this value unless it is to be awaited itself."""
    return value if hasattr(type(value), "__await__") else _ready(value)


def prepare_asyncio() -> None:
    """Give asyncio an event loop without sockets, for nothing outside could wake it, and take plain values."""
    import asyncio

    class Loop(asyncio.SelectorEventLoop):
        def _make_self_pipe(self) -> None:
            self._ssock = self._csock = None
            self._internal_fds = 0

        def _close_self_pipe(self) -> None:
            pass

        def _write_to_self(self) -> None:
            pass

        def create_task(self, coro: Any, **given: Any) -> Any:
            return super().create_task(coroutine(coro), **given)

    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> Loop:
            return Loop()

    def coroutine(value: Any) -> Any:
        given = awaitable(value)
        return given if asyncio.iscoroutine(given) or asyncio.isfuture(given) else _of(given)

    def taking(function: Any, prepare: Callable[[Any], Any]) -> Any:
        def inner(first: Any, *args: Any, **given: Any) -> Any:
            return function(prepare(first), *args, **given)

        return inner

    gather = asyncio.gather
    asyncio.gather = lambda *args, **given: gather(*map(coroutine, args), **given)  # type: ignore[assignment]
    for name in ("run", "wait_for", "shield", "ensure_future"):
        setattr(asyncio, name, taking(getattr(asyncio, name), coroutine))
    ensure_future = asyncio.ensure_future
    for name in ("wait", "as_completed"):
        setattr(asyncio, name, taking(getattr(asyncio, name), lambda many: [ensure_future(one) for one in many]))
    asyncio.set_event_loop_policy(Policy())
