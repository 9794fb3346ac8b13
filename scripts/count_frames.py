"""Count our own frames between an HTTP request for `recall` and the logic, and between it and the first SQL statement.

A real ASGI request passes through the guard, the router and the operation on a store in a temporary folder. Frames are
those on the stack plus, where the work has moved to another thread, those of the request's coroutines that wait for it.
Run: python scripts/count_frames.py
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from types import CodeType, FrameType
from typing import Any, NamedTuple

from starlette.routing import Router

from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.memory.recall import recall
from athena.server.guard import AccessPolicy, Guard
from athena.server.http import HttpApi
from athena.storage.sqlite.store import Sqlite

PACKAGE = os.path.dirname(sys.modules["athena"].__file__ or "")
MAX_FRAMES_TO_LOGIC = 6
MAX_FRAMES_TO_SQL = 14
LOGIC: CodeType = recall.__code__


class FrameCounts(NamedTuple):
    to_logic: list[str]
    to_sql: list[str]


class Recorder:
    """A profile function for every thread: keeps the stack of the first call of the logic and of the first SQL."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.to_logic: list[str] = []
        self.to_sql: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.task is None:
            return
        if event == "call" and frame.f_code is LOGIC and not self.to_logic:
            self.to_logic = self._list_frames(frame)
        elif event == "c_call" and not self.to_sql and _is_sql_execute(argument) and _is_inside_logic(frame):
            self.to_sql = self._list_frames(frame)  # not the BEGIN of the transaction

    def _list_frames(self, frame: FrameType | None) -> list[str]:
        running: list[CodeType] = []
        while frame is not None:
            running.append(frame.f_code)
            frame = frame.f_back
        running.reverse()
        assert self.task is not None
        waiting = [code for code in _list_waiting(self.task.get_coro()) if code not in running]
        return [_format_frame(code) for code in [*waiting, *running] if _is_ours(code)]


def _is_sql_execute(function: Any) -> bool:
    return (
        getattr(function, "__name__", "") == "execute"
        and type(getattr(function, "__self__", None)).__module__ == "apsw"
    )


def _is_inside_logic(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == LOGIC.co_filename:
            return True
        frame = frame.f_back
    return False


def _list_waiting(coroutine: Any) -> list[CodeType]:
    """Return the code of a suspended coroutine and of those that it awaits, outermost first."""
    codes = []
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "gi_code", None)
        if code is not None:
            codes.append(code)
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return codes


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE + os.sep)


def _format_frame(code: CodeType) -> str:
    return f"{os.path.relpath(code.co_filename, PACKAGE)}:{code.co_qualname}"


def count_frames() -> FrameCounts:
    """Make one request and return the frames to the logic and to the first SQL statement."""
    recorder = Recorder()
    before = threading.getprofile()
    threading.setprofile(recorder)  # the threads of the store and the encoder start below
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_request_recall(recorder, os.path.join(folder, "athena.db")))
    finally:
        sys.setprofile(None)
        threading.setprofile(before)
    return FrameCounts(recorder.to_logic, recorder.to_sql)


async def _request_recall(recorder: Recorder, path: str) -> None:
    app = App(Sqlite(path), MiniLM())
    try:
        api = HttpApi(
            app.catalog,
            lambda project, key: app.create_context(project or "test", "http", key),
            _probe_nothing,
            {},
            is_stopping=lambda: False,
            max_concurrent=2,
        )
        guard = Guard(Router(api.create_routes()), AccessPolicy(frozenset({"localhost"}), None))
        status = await _post(guard, "/tools/remember/execute", {"content": "Deploys run on Fridays"})
        assert status == 200, status
        sys.setprofile(recorder)
        recorder.task = asyncio.create_task(_post_recall(guard))
        await recorder.task
        recorder.task = None
    finally:
        app.close()


async def _post_recall(guard: Guard) -> None:
    status = await _post(guard, "/tools/recall/execute", {"query": "when do we deploy"})
    assert status == 200, status


async def _post(guard: Guard, path: str, arguments: dict[str, Any]) -> int:
    body = json.dumps(arguments).encode()
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await guard(scope, receive, send)
    return statuses[0]


async def _probe_nothing() -> dict[str, Any]:
    return {}


def main() -> int:
    counts = count_frames()
    too_many = False
    for name, frames, most in (
        ("logic", counts.to_logic, MAX_FRAMES_TO_LOGIC),
        ("SQL", counts.to_sql, MAX_FRAMES_TO_SQL),
    ):
        print(f"{len(frames)} frames to {name} (at most {most})")
        for frame in frames:
            print(f"  {frame}")
        too_many |= not 0 < len(frames) <= most
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main())
