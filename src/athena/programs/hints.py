"""Hints for errors of programs: what to do where the message does not say it."""

import re
import sys

from athena.core.words import find_similar_names
from athena.programs.sandbox import Failure, Namespace

FILES_HINT = "programs have no files; workspace.read(path=...) and workspace.write(path=..., content=...) do"
NETWORK_HINT = "programs have no network, by design; call an operation instead"
PROCESSES_HINT = "programs have no processes; write it in Python, or call an operation"
THREADS_HINT = "programs have no threads; parallel([...]) makes calls at once"
HELP_HINT = 'tools.describe(name="recall") shows how an operation is called, tools.search(query="...") finds one'
PYTHON_HINT = "programs are Python, not JavaScript: hits = memory.recall(query='x'); print(len(hits))"
ENGINE_HINT = 'leave engine out, or say "auto": then what Monty lacks runs on CPython'
_MODULE_HINTS = {
    NETWORK_HINT: "socket ssl urllib http ftplib smtplib poplib imaplib telnetlib xmlrpc socketserver",
    PROCESSES_HINT: "subprocess multiprocessing os.system os.popen os.fork os.spawn os.exec pty",
    THREADS_HINT: "threading concurrent _thread",
}
# Statements and operators that JavaScript has and Python has not, at places where a Python text does not hold them.
# Each repeat stays in its line or is followed by what it does not contain, so that the time is linear.
_JAVASCRIPT_PATTERN = re.compile(
    r"^[ \t]*+(?:(?:export[ \t]+)?(?:const|let|var)[ \t]+[\w{\[]|(?:async[ \t]+)?function\b|//"
    r"|\}[ \t]*+(?:else|catch|finally|$)|import[ \t]++.*\bfrom[ \t]++['\"])"
    r"|=>|\bconsole\.\w+\(|[!=]==|&&|\|\||\bnew[ \t]+[A-Z]\w*\(|\)[ \t]*+\{[ \t]*+$|\$\{",
    re.MULTILINE,
)
_JAVASCRIPT_NAMES = frozenset(
    ["console", "JSON", "Math", "Object", "Array", "Promise", "undefined", "null", "true", "false", "require", "fetch"]
)
_DICT_ATTRIBUTE_PATTERN = re.compile(r"'dict' object has no attribute '(\w+)'")
_UNKNOWN_NAME_PATTERN = re.compile(r"name '(\w+)' is not defined")


def add_hint(error: Failure, names: Namespace, code: str = "") -> Failure:
    """Return the error with our hint before its own."""
    hint = _find_hint(error["type"], error["message"], names, code)
    if hint is None or hint in (error["hint"] or ""):
        return error
    hinted = error.copy()
    hinted["hint"] = "; ".join(filter(None, [hint, error["hint"]]))
    return hinted


def _find_hint(error_type: str, message: str, names: Namespace, code: str) -> str | None:
    if error_type == "SyntaxError" and _JAVASCRIPT_PATTERN.search(code):
        return PYTHON_HINT
    if error_type == "NameError" and (match := _UNKNOWN_NAME_PATTERN.match(message)):
        if match[1] in _JAVASCRIPT_NAMES:
            return PYTHON_HINT
        if match[1] in ("help", "dir"):
            return HELP_HINT
        if match[1] in sys.stdlib_module_names:
            return f"import {match[1]} first"
        return " ".join(names.explain_unavailable(match[1]) or ()) or _suggest_name(match[1], names, code)
    if error_type == "AttributeError" and (match := _DICT_ATTRIBUTE_PATTERN.match(message)):
        return f'rows are dictionaries: row["{match[1]}"]'
    if "can't start new thread" in message:
        return THREADS_HINT
    if "monty syntax parser" in message:
        return ENGINE_HINT
    if error_type == "ModuleNotFoundError":
        return _find_module_hint(message.partition("'")[2].partition("'")[0]) or ENGINE_HINT
    if error_type in ("URLError", "gaierror") or "name resolution" in message:
        return NETWORK_HINT
    if "Operation not permitted" in message:  # the message does not name the call, so look at the program
        return _find_module_hint(*re.findall(r"[\w.]+", code))
    is_file_error = error_type in ("PermissionError", "FileNotFoundError") or "Read-only file system" in message
    return FILES_HINT if is_file_error else None


def _find_module_hint(*names: str) -> str | None:
    for hint, modules in _MODULE_HINTS.items():
        module_names = modules.split()
        if any(name in module_names or name.partition(".")[0] in module_names for name in names):
            return hint
    return None


def _suggest_name(name: str, names: Namespace, code: str) -> str | None:
    """Suggest a name for an unknown one, also by the attribute that the program calls on it."""
    call = re.search(rf"(?<![\w.]){name}\.([\w.]+)\s*\(", code)
    near = find_similar_names(name, names.roots)
    if call and near and names.find(f"{near[0]}.{call[1]}"):
        suggestions = [f"{near[0]}.{call[1]}"]
    else:
        suggestions = names.suggest_names(f"{name}.{call[1]}" if call else name) or near
    return f"did you mean {' or '.join(suggestions)}?" if suggestions else None
