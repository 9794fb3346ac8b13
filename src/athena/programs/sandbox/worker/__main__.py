"""The jailed CPython worker: runs one program and ends. A script of the standard library alone.

Frames on descriptors 0 and 1: four bytes of length, then JSON. Out: ready, out, call, done. In: the program, then
answers to calls. The program shares this process, so the host validates every frame from here.
"""

from __future__ import annotations

import builtins
import json
import os
import select
import struct
import sys
import types

from rewriting import PROGRAM_FILENAME, compile_program  # type: ignore[import-not-found]  # this folder is the worker's sys.path
from values import ArgumentTooLarge, BoundedCopier, PendingValue  # type: ignore[import-not-found]

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from collections.abc import Generator
    from typing import Any

_PRELOADED_MODULES = (
    "linecache traceback typing dataclasses re datetime asyncio base64 collections contextlib copy csv decimal enum "
    "functools hashlib heapq io itertools operator random statistics string textwrap time urllib.parse uuid"
)


def _send_frame(frame: Any) -> None:
    data = json.dumps(frame).encode("utf-8", "replace")
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def _read_exactly(length: int) -> bytes:
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 16))
        if not part:
            os._exit(0)  # the host has ended
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _receive_frame() -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(_read_exactly(struct.unpack(">I", _read_exactly(4))[0]))
    return frame


# --- operations -----------------------------------------------------------------------------------------------------


class ToolError(RuntimeError):
    """An operation failed; `code` says how, `hint` what to do."""

    def __init__(self, message: str = "", code: str = "error", hint: object = None) -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


_replies: dict[int, dict[str, Any]] = {}
_call_count = 0
_open_calls: set[int] = set()
_limits: dict[str, int] = {}
_namespace_members: dict[str, list[str]] = {}  # names in each namespace


def _collect_reply() -> None:
    frame = _receive_frame()
    _replies[frame["id"]] = frame["reply"]
    _open_calls.discard(frame["id"])


_ARGUMENT_HINT = "pass less at a time"


class _ToolCall(PendingValue):  # type: ignore[misc]
    """A running call; `result` waits for it."""

    def __init__(self, call_id: int) -> None:
        self.call_id = call_id

    def result(self) -> Any:
        while self.call_id not in _replies:
            _collect_reply()
        reply = _replies[self.call_id]
        if "error" not in reply:
            return reply["value"]
        kind = reply.get("kind")
        if kind == "ToolError":
            raise ToolError(reply["error"], reply["code"], reply.get("hint"))
        raise getattr(builtins, str(kind))(reply["error"])

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self.result()


class _Tool:
    """A name with dots that can be called."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> _Tool:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Tool(f"{self._path}.{name}")

    def __repr__(self) -> str:
        inside = _namespace_members.get(str(self._path))
        return f"<namespace {self._path}: {', '.join(inside)}>" if inside else f"<operation {self._path}>"

    def __dir__(self) -> list[str]:
        return _namespace_members.get(str(self._path), [])

    def _start_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], at_once: bool) -> _ToolCall:
        global _call_count
        while at_once and len(_open_calls) >= _limits["parallel"]:  # else both sides could block on writing
            _collect_reply()
        out.flush()
        copier = BoundedCopier(_limits["nodes"], _limits["size"], cut=False)
        try:
            plain = copier.copy([list(args), kwargs])
        except ArgumentTooLarge as error:
            message = f"limit_exceeded: an argument of {self._path} is too large: {error} (hint: {_ARGUMENT_HINT})"
            raise ToolError(message, "limit_exceeded", _ARGUMENT_HINT) from None
        _call_count += 1
        _open_calls.add(_call_count)
        _send_frame(
            {
                "op": "call",
                "id": _call_count,
                "path": self._path,
                "args": plain[0],
                "kwargs": plain[1],
                "at_once": at_once,
            }
        )
        return _ToolCall(_call_count)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._start_call(args, kwargs, at_once=False).result()


def _defer_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return (
        function._start_call(args, kwargs, at_once=True) if isinstance(function, _Tool) else function(*args, **kwargs)
    )


def _end_with_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the call that is the value of a function; `parallel` does not wait for it where it called that function."""
    caller = sys._getframe(2)
    if isinstance(function, _Tool) and caller.f_code is _defer_call.__code__:
        return function._start_call(args, kwargs, at_once=True)
    return function(*args, **kwargs)


_PARALLEL_USAGE = "parallel() takes one list, tuple or dict of calls or functions, and return_errors=False"
_COROUTINE_USAGE = "parallel() takes calls of operations and functions; for coroutines there is await asyncio.gather()"


def _begin_item(value: Any) -> Any:
    """Call an element of `parallel`; do not wait for an operation."""
    if isinstance(value, types.CoroutineType):
        raise TypeError(_COROUTINE_USAGE)
    if not callable(value):
        return value
    function, args, kwargs = value, (), {}
    if type(value).__name__ == "partial":
        function, args, kwargs = value.func, value.args, value.keywords
    return _defer_call(function, *args, **kwargs)


def parallel(*arguments: Any, return_errors: bool = False) -> Any:
    """Run calls concurrently and return their results."""
    if len(arguments) == 1 and hasattr(type(arguments[0]), "__next__"):  # Monty has lists instead
        arguments = (list(arguments[0]),)
    if len(arguments) != 1 or not isinstance(arguments[0], (list, tuple, dict)):
        raise TypeError(_PARALLEL_USAGE)
    items = arguments[0]
    wrong: list[Exception] = []

    def call_safely(do: Any, *value: Any) -> Any:
        try:
            return do(*value)
        except Exception as error:
            wrong.append(error)
            return {"error": str(error)}

    begun = [call_safely(_begin_item, value) for value in (items.values() if isinstance(items, dict) else items)]
    results = [call_safely(value.result) if isinstance(value, _ToolCall) else value for value in begun]
    done: Any = dict(zip(items, results, strict=True)) if isinstance(items, dict) else results
    if wrong and not return_errors:
        raise wrong[0]
    return done


# --- the program ----------------------------------------------------------------------------------------------------


class _ProgramReturn(BaseException):
    pass


class _BoundedOutput:
    """Standard output, up to its limit."""

    encoding, errors, newlines = "utf-8", "replace", None

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.buffered = self.sent = self.max_chars = self.dropped = 0

    def write(self, what: Any) -> int:
        text = str(what)
        room = self.max_chars - self.sent - self.buffered
        accepted = text[: max(room, 0)]
        self.dropped += len(text) - len(accepted)
        if accepted:
            self.parts.append(accepted)
            self.buffered += len(accepted)
            if self.buffered > 4096:
                self.flush()
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.buffered:
            self.sent += self.buffered
            text, self.parts, self.buffered = "".join(self.parts), [], 0
            _send_frame({"op": "out", "text": text})

    def isatty(self) -> bool:
        return False


def _execute_program(frame: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    for text in frame["definitions"]:
        try:
            exec(compile(text, "<earlier>", "exec", dont_inherit=True), scope)
        except Exception:  # it needs something that is missing here; using it will fail
            continue
    frame["before"] = list(scope)
    try:
        code = compile_program(frame["code"], set(frame["roots"]))
        try:
            if code.co_flags & 0x80:
                sys.modules["asyncio"].run(types.FunctionType(code, scope)())
            else:
                exec(code, scope)
        except _ProgramReturn:
            pass
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
    except BaseException as error:
        return _describe_failure(error)
    value = scope.get("__result__")
    try:
        copier = BoundedCopier(_limits["nodes"] // 2, _limits["size"] // 2, cut=True)
        done = {"value": copier.copy(value), "cut": copier.cut}
        if copier.cut and isinstance(value, (str, list, dict, tuple, set)):
            done["whole"] = len(value)
        return done
    except (ToolError, MemoryError) as error:
        return _describe_failure(error)
    except BaseException as error:  # the program has done all it does, so that is not a failure of it
        return {"value": f"<{type(value).__name__}: {type(error).__name__}>"[:200], "cut": False}


def _describe_failure(error: BaseException) -> dict[str, Any]:
    import traceback

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == PROGRAM_FILENAME]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    try:
        message = str(error)[:4000]
    except Exception:
        message = "(its text cannot be built)"
    failure: dict[str, Any] = {
        "error": type(error).__name__,
        "message": message,
        "line": line if isinstance(line, int) else None,
    }
    if isinstance(error, ToolError):
        failure["hint"] = str(error.hint)[:2000] if error.hint else None
    return failure


_DEFINITION_TYPES = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


def _tag_variables(scope: dict[Any, Any], initial: set[str], unwritten: set[str]) -> tuple[dict[str, Any], list[str]]:
    tagged: dict[str, Any] = {}
    lost: list[str] = []
    from tagging import Tagger, UntaggableValue  # type: ignore[import-not-found]

    tagger = Tagger()
    for name, value in list(scope.items()):
        if not isinstance(name, str) or name.startswith("__") or name in initial:
            continue
        try:
            tagged[name] = tagger.tag_value(value)
        except UntaggableValue:
            ours = isinstance(value, _DEFINITION_TYPES) and getattr(value, "__module__", "") == "__main__"
            if name in unwritten if ours else not isinstance(value, _DEFINITION_TYPES):
                lost.append(name)
    return tagged, lost[:1000]


def _refuse_input(*_: Any) -> str:
    raise EOFError("there is no standard input in the sandbox")


def main() -> None:
    builtins.input = _refuse_input  # standard input carries the frames
    sys.stdin = None
    _send_frame({"op": "ready"})
    from tagging import UntaggableValue, untag_value  # lazy: each costs a millisecond of a start
    from waiting import prepare_asyncio, to_awaitable  # type: ignore[import-not-found]

    sys.path = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    for name in _PRELOADED_MODULES.split():  # while idle
        if select.select([0], [], [], 0)[0]:
            break
        __import__(name)
    frame = _receive_frame()
    if (
        "asyncio" in frame["code"]
        or "await" in frame["code"]
        or any("asyncio" in text for text in frame["definitions"])
    ):
        prepare_asyncio()
    _limits.update(frame["limits"])
    _namespace_members.update(frame["inside"])
    out.max_chars = _limits["output"]
    scope: dict[str, Any] = {
        "__name__": "__main__",
        "__builtins__": builtins,
        "ToolError": ToolError,
        "parallel": parallel,
    }
    scope |= {
        "__defer__": _defer_call,
        "__end__": _end_with_call,
        "__Return__": _ProgramReturn,
        "__wait__": to_awaitable,
    }
    scope |= {root: _Tool(root) for root in frame["roots"]}
    initial = set(scope)
    for name, value in frame["variables"].items():
        try:
            scope[name] = untag_value(value)
        except UntaggableValue:
            continue
    module = types.ModuleType("__main__")  # dataclasses and pickle look a class's module up
    module.__dict__.update(scope)
    sys.modules["__main__"], scope = module, module.__dict__
    done = _execute_program(frame, scope)
    try:
        tagged, lost = _tag_variables(scope, initial | {"__file__"}, set(scope) - set(frame["sources"]))
        gone = [name for name in frame["before"] if name not in scope]
    except BaseException:
        tagged, lost, gone = None, [], []
    out.flush()
    _send_frame({"op": "done", **done, "dropped": out.dropped, "variables": tagged, "lost": lost, "gone": gone})
    os._exit(0)


out = _BoundedOutput()
if __name__ == "__main__":
    sys.stdout = sys.stderr = out
    sys.argv = [""]
    main()
