"""Say which function, method or argument was meant by a name that does not exist."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from athena.core.operation_methods import OperationMethods
from athena.core.words import find_similar_name, find_synonym, suggest_name

__all__ = [
    "describe_unknown_argument",
    "describe_unknown_method",
    "explain_all_arguments",
    "explain_arguments",
    "suggest_function",
    "suggest_name",
]
P = ParamSpec("P")
R = TypeVar("R")
OPERATION_NAMES = [name for name in vars(OperationMethods) if not name.startswith("_") and name != "call_operation"]
# What the command line alone does, under the names that people try elsewhere.
COMMANDS = {
    "export": "export", "export_all": "export", "export_memories": "export", "dump": "export",
    "import_": "import", "import_file": "import", "import_memories": "import", "import_jsonl": "import",
    "backup": "backup", "create_backup": "backup", "doctor": "doctor", "migrate": "migrate",
}  # fmt: skip


def suggest_function(name: str, functions: Iterable[str]) -> str:
    """Return what leads to a function of the API, to an operation or to a command; the end of an error message."""
    known = list(functions)
    meant = find_synonym(name, known)
    if not meant and name in COMMANDS:
        return f"; a command does that: athena {COMMANDS[name]}"
    meant = meant or (name if name in OPERATION_NAMES else find_similar_name(name, [*known, *OPERATION_NAMES]))
    if meant in known:
        return f"; did you mean {meant!r}?"
    if meant:
        return f"; an operation is called so: api.call({meant!r}, ...)"
    return "; api.call('search_tools', query=...) finds an operation by what it does"


def describe_unknown_method(client_class: type, name: str) -> str:
    """Say that a client has no such method, and which one was meant."""
    names = [method for method in dir(client_class) if not method.startswith("_")]
    command = f"; a command does that: athena {COMMANDS[name]}" if name in COMMANDS else ""
    return f"{client_class.__name__!r} object has no attribute {name!r}{command or suggest_name(name, names)}"


def describe_unknown_argument(function: Callable[..., object], arguments: Iterable[str]) -> str | None:
    """Say which parameter the first unknown argument was meant for; None if a function or method has all of them."""
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    unknown = next((name for name in arguments if name not in known), None)
    if unknown is None:
        return None
    owner = function.__qualname__.rpartition(".")[0] if function.__name__ == "__init__" else function.__name__
    return f"{owner}() has no parameter {unknown!r}{suggest_name(unknown, known)}"


def explain_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method with an error for unknown arguments that says which ones were meant."""
    names = frozenset(method.__code__.co_varnames)

    @wraps(method)
    def call_checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= names and (problem := describe_unknown_argument(method, kwargs)):
            raise TypeError(problem)
        return method(*args, **kwargs)

    return call_checked


def explain_all_arguments(methods: type) -> None:
    """Let the methods of all operations explain unknown arguments."""
    named = {name: getattr(methods, name) for name in OPERATION_NAMES}
    explained = {method: explain_arguments(method) for method in named.values()}  # another name is the same method
    for name, method in named.items():
        setattr(methods, name, explained[method])
