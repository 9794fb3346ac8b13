"""The jailed CPython worker: runs one program and ends. A script of the standard library alone.

Frames on descriptors 0 and 1: four bytes of length, then JSON. Out: ready, out, call, done. In: the program, then
answers to calls. The program shares this process, so the host believes nothing that it reads from here.
"""

import ast
import asyncio
import builtins
import json
import linecache
import math
import os
import struct
import sys
import traceback
import types

_NAME = "<program>"
_PRELOADED = (
    "base64 collections contextlib copy csv dataclasses datetime decimal enum functools hashlib heapq io itertools "
    "operator random re statistics string textwrap time typing urllib.parse uuid"
)


def _send(frame: object) -> None:
    data = json.dumps(frame).encode("utf-8", "replace")
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def _exactly(length: int) -> bytes:
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 16))
        if not part:
            os._exit(0)  # the host went away
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _receive() -> dict:
    return json.loads(_exactly(struct.unpack(">I", _exactly(4))[0]))


# --- values, cut to their limits before they leave ------------------------------------------------------------------


class _TooLarge(Exception):
    pass


def _simpler(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.hex()
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"[:2000]
    if isinstance(value, _Pending):
        return value.result()
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, enum.Enum):
        return value.value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (map, filter, zip, range, types.GeneratorType)) or type(value).__name__.startswith("dict_"):
        return list(itertools.islice(value, 200_001))
    return str(value)[:2000]


class _Copier:
    """Copies a value as plain JSON; past its budget it cuts, or raises."""

    def __init__(self, nodes: int, size: int, cut: bool) -> None:
        self.nodes, self.size, self.may_cut, self.cut = nodes, size, cut, False

    def over(self, what: str) -> None:
        if not self.may_cut:
            raise _TooLarge(what)
        self.cut = True

    def text(self, value: str) -> str:
        self.size -= len(value)
        if self.size < 0:
            self.over("too many bytes")
            return value[: max(0, self.size + len(value))]
        return str(value)

    def copy(self, value: object, depth: int = 0) -> object:
        self.nodes -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() < 13_000 else f"an integer of {value.bit_length():,} bits"
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self.text(value)
        if depth > 95:
            self.over("too deep")
            return "..."
        if isinstance(value, dict):
            made = {}
            for key, inner in value.items():
                if self.nodes <= 0 or self.size <= 0:
                    self.over("too many values")
                    break
                made[self.text(_key(key))] = self.copy(inner, depth + 1)
            return made
        if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
            made = []
            for inner in value:
                if self.nodes <= 0 or self.size <= 0:
                    self.over("too many values")
                    break
                made.append(self.copy(inner, depth + 1))
            return made
        return self.copy(_simpler(value), depth + 1)


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(key)[:200]


def _exact(value: object, left: list, depth: int = 0) -> bool:
    """Tell whether a value is JSON as it stands."""
    left[0] -= 1
    kind = type(value)
    if left[0] < 0 or depth > 50:
        return False
    if value is None or kind is bool:
        return True
    if kind is int:
        return value.bit_length() < 13_000
    if kind is float:
        return math.isfinite(value)
    if kind is str:
        left[0] -= len(value) // 8
        return left[0] >= 0
    if kind is list:
        return all(_exact(inner, left, depth + 1) for inner in value)
    if kind is dict:
        return all(type(key) is str and _exact(inner, left, depth + 1) for key, inner in value.items())
    return False


# --- operations -----------------------------------------------------------------------------------------------------


class ToolError(RuntimeError):
    """An operation failed; `code` says how, `hint` what to do."""

    def __init__(self, message: str = "", code: str = "error", hint: object = None) -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


_replies: dict = {}
_asked = 0
_open: set = set()
_limits: dict = {}


def _collect() -> None:
    frame = _receive()
    _replies[frame["id"]] = frame
    _open.discard(frame["id"])


class _Pending:
    """A call that runs; its result is waited for where it is needed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def result(self) -> object:
        while self.number not in _replies:
            _collect()
        frame = _replies[self.number]
        if "error" not in frame:
            return frame["value"]
        kind = frame.get("kind")
        if kind == "ToolError":
            raise ToolError(frame["error"], frame["code"], frame.get("hint"))
        raise getattr(builtins, kind)(frame["error"])

    def __await__(self):
        return self.result()
        yield


class _Tool:
    """A name with dots that can be called."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> "_Tool":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Tool(f"{self._path}.{name}")

    def __repr__(self) -> str:
        return f"<operation {self._path}>"

    def _start(self, args: tuple, given: dict, at_once: bool) -> _Pending:
        global _asked
        while at_once and len(_open) >= _limits["parallel"]:  # or both sides would write and none read
            _collect()
        out.flush()
        copier = _Copier(_limits["nodes"], _limits["size"], cut=False)
        try:
            plain = copier.copy([list(args), given])
        except _TooLarge as error:
            raise ToolError(f"limit_exceeded: an argument of {self._path} is too large: {error}", "limit_exceeded") from None
        _asked += 1
        _open.add(_asked)
        _send({"op": "call", "id": _asked, "path": self._path, "args": plain[0], "given": plain[1], "at_once": at_once})
        return _Pending(_asked)

    def __call__(self, *args: object, **given: object) -> object:
        return self._start(args, given, at_once=False).result()


def _defer(function: object, *args: object, **given: object) -> object:
    return function._start(args, given, at_once=True) if isinstance(function, _Tool) else function(*args, **given)


def parallel(items: object, *, return_errors: bool = False) -> object:
    """Wait for calls that run at once."""
    if not isinstance(items, (list, tuple, dict)):
        raise TypeError("parallel() takes one list, tuple or dict of calls, and return_errors=False")
    wrong = []

    def one(value: object) -> object:
        try:
            return value.result() if isinstance(value, _Pending) else value
        except Exception as error:
            wrong.append(error)
            return {"error": str(error)}

    done = {key: one(value) for key, value in items.items()} if isinstance(items, dict) else [one(v) for v in items]
    if wrong and not return_errors:
        raise wrong[0]
    return done


# --- the program ----------------------------------------------------------------------------------------------------


class _Return(BaseException):
    pass


class _Rewriter(ast.NodeTransformer):
    """Gives a program a value, lets it return, and lets the elements of `parallel([...])` run at once."""

    def __init__(self, roots: set) -> None:
        self.roots, self.depth = roots, 0

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> object:
        self.generic_visit(node)
        if self.depth:
            return node
        keep = ast.Assign([ast.Name("__result__", ast.Store())], node.value or ast.Constant(None))
        leave = ast.Raise(ast.Name("__Return__", ast.Load()), None)
        return [ast.copy_location(keep, node), ast.copy_location(leave, node)]

    def ours(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.roots

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        return node.value if isinstance(node.value, ast.Call) and self.ours(node.value.func) else node

    def direct(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Call) and self.ours(node.func):
            deferred = ast.Call(ast.Name("__defer__", ast.Load()), [node.func, *node.args], node.keywords)
            return ast.copy_location(deferred, node)
        if isinstance(node, ast.Lambda) and not node.args.args and isinstance(node.body, ast.Call):
            return self.direct(node.body)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            node.elts = [self.direct(one) for one in node.elts]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            node.elt = self.direct(node.elt)
        elif isinstance(node, ast.Dict):
            node.values = [self.direct(one) for one in node.values]
        elif isinstance(node, (ast.DictComp, ast.Starred)):
            node.value = self.direct(node.value)
        elif isinstance(node, ast.IfExp):
            node.body, node.orelse = self.direct(node.body), self.direct(node.orelse)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name == "parallel" or (name == "gather" and not self.ours(function)):
            node.args = [self.direct(one) for one in node.args]
        return node


class _Out:
    """Standard output, up to its limit."""

    encoding, errors, newlines = "utf-8", "replace", None

    def __init__(self) -> None:
        self.parts, self.held, self.sent, self.most, self.dropped = [], 0, 0, 0, 0

    def write(self, text: object) -> int:
        text = str(text)
        room = self.most - self.sent - self.held
        kept = text[: max(room, 0)]
        self.dropped += len(text) - len(kept)
        if kept:
            self.parts.append(kept)
            self.held += len(kept)
            if self.held > 4096:
                self.flush()
        return len(text)

    def writelines(self, lines: object) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.held:
            self.sent += self.held
            text, self.parts, self.held = "".join(self.parts), [], 0
            _send({"op": "out", "text": text})

    def isatty(self) -> bool:
        return False


class _Loop(asyncio.SelectorEventLoop):
    """An event loop without sockets: nothing outside could wake it."""

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> _Loop:
        return _Loop()


def _compiled(text: str, roots: set) -> types.CodeType:
    tree = ast.parse(text, _NAME)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("__result__", ast.Store())], last.value), last)
    tree = ast.fix_missing_locations(_Rewriter(roots).visit(tree))
    return compile(tree, _NAME, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _executed(frame: dict, scope: dict) -> dict:
    for text in frame["definitions"]:
        try:
            exec(compile(text, "<earlier>", "exec", dont_inherit=True), scope)
        except Exception:
            continue
    try:
        code = _compiled(frame["code"], set(frame["roots"]))
        try:
            if code.co_flags & 0x80:
                asyncio.run(types.FunctionType(code, scope)())
            else:
                exec(code, scope)
        except _Return:
            pass
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
    except BaseException as error:
        return _failure(error)
    try:
        copier = _Copier(_limits["nodes"] // 2, _limits["size"] // 2, cut=True)
        return {"value": copier.copy(scope.get("__result__")), "cut": copier.cut}
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> dict:
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == _NAME]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    try:
        message = str(error)[:4000]
    except Exception:
        message = "(its text cannot be made)"
    shown = {"error": type(error).__name__, "message": message, "line": line if isinstance(line, int) else None}
    if isinstance(error, ToolError):
        shown["hint"] = str(error.hint)[:2000] if error.hint else None
    return shown


def _variables(scope: dict, initial: set) -> tuple:
    kept, lost, left = {}, [], [100_000]
    for name, value in list(scope.items()):
        if not isinstance(name, str) or name.startswith("__") or name in initial:
            continue
        budget = list(left)
        if _exact(value, left):
            kept[name] = value
        else:
            left = budget
            if not isinstance(value, (types.ModuleType, types.FunctionType, type, _Tool)):
                lost.append(name)
    return kept, lost[:100]


def main() -> None:
    _send({"op": "ready"})
    frame = _receive()
    _limits.update(frame["limits"])
    out.most = _limits["output"]
    scope = {"__name__": "__main__", "__builtins__": builtins, "ToolError": ToolError, "parallel": parallel}
    scope |= {"__defer__": _defer, "__Return__": _Return}
    scope |= {root: _Tool(root) for root in frame["roots"]}
    initial = set(scope)
    scope.update(frame["variables"])
    module = types.ModuleType("__main__")  # dataclasses and pickle look a class's module up
    module.__dict__.update(scope)
    sys.modules["__main__"], scope = module, module.__dict__
    text = frame["code"]
    linecache.cache[_NAME] = (len(text), None, text.splitlines(keepends=True), _NAME)
    done = _executed(frame, scope)
    try:
        kept, lost = _variables(scope, initial | {"__file__"})
    except BaseException:
        kept, lost = {}, []
    out.flush()
    _send({"op": "done", **done, "dropped": out.dropped, "variables": kept, "lost": lost})
    os._exit(0)


out = _Out()
if __name__ == "__main__":
    for _module in _PRELOADED.split():
        globals()[_module.partition(".")[0]] = __import__(_module)
    asyncio.set_event_loop_policy(_Policy())
    sys.stdout = sys.stderr = out
    sys.argv = [""]
    main()
