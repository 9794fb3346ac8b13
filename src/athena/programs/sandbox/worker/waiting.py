"""`asyncio` for programs: an event loop without sockets, and plain values that may be awaited."""

from __future__ import annotations

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from collections.abc import Callable
    from typing import Any


async def _return_value(value: Any) -> Any:
    return value


async def _await_value(awaitable: Any) -> Any:
    return await awaitable


def to_awaitable(value: Any) -> Any:
    """Return an awaitable of this value, or the value itself if it is one."""
    return value if hasattr(type(value), "__await__") else _return_value(value)


def prepare_asyncio() -> None:
    """Patch asyncio: an event loop without sockets, and functions that accept plain values."""
    import asyncio

    class SocketlessLoop(asyncio.SelectorEventLoop):
        def _make_self_pipe(self) -> None:
            self._ssock = self._csock = None
            self._internal_fds = 0

        def _close_self_pipe(self) -> None:
            pass

        def _write_to_self(self) -> None:
            pass

        def create_task(self, coro: Any, **kwargs: Any) -> Any:
            return super().create_task(to_coroutine(coro), **kwargs)

    class SocketlessPolicy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> SocketlessLoop:
            return SocketlessLoop()

    def to_coroutine(value: Any) -> Any:
        awaitable = to_awaitable(value)
        return awaitable if asyncio.iscoroutine(awaitable) or asyncio.isfuture(awaitable) else _await_value(awaitable)

    def wrap_first(function: Any, prepare: Callable[[Any], Any]) -> Any:
        def call_prepared(first: Any, *args: Any, **kwargs: Any) -> Any:
            return function(prepare(first), *args, **kwargs)

        return call_prepared

    gather = asyncio.gather
    asyncio.gather = lambda *args, **kwargs: gather(*map(to_coroutine, args), **kwargs)  # type: ignore[assignment]
    for name in ("run", "wait_for", "shield", "ensure_future"):
        setattr(asyncio, name, wrap_first(getattr(asyncio, name), to_coroutine))
    ensure_future = asyncio.ensure_future
    for name in ("wait", "as_completed"):
        setattr(
            asyncio,
            name,
            wrap_first(
                getattr(asyncio, name), lambda awaitables: [ensure_future(awaitable) for awaitable in awaitables]
            ),
        )
    asyncio.set_event_loop_policy(SocketlessPolicy())
