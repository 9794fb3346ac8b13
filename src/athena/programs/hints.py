"""What to do about an error of a program that does not say so itself."""

import re
import sys
from difflib import get_close_matches

from athena.programs.sandbox import Failure, Namespace

FILES_HINT = "programs have no files; workspace.read(path=...) and workspace.write(path=..., content=...) do"
NETWORK_HINT = "programs have no network, by design; call an operation instead"
PROCESSES_HINT = "programs have no processes; write it in Python, or call an operation"
THREADS_HINT = "programs have no threads; parallel([...]) makes calls at once"
HELP_HINT = 'tools.describe(name="recall") shows how an operation is called, tools.search(query="...") finds one'
ENGINE_HINT = 'leave engine out, or say "auto": then what Monty lacks runs on CPython'
_MODULE_HINTS = {
    NETWORK_HINT: "socket ssl urllib http ftplib smtplib poplib imaplib telnetlib xmlrpc socketserver",
    PROCESSES_HINT: "subprocess multiprocessing os.system os.popen os.fork os.spawn os.exec pty",
    THREADS_HINT: "threading concurrent _thread",
}
_DICT_ATTRIBUTE_PATTERN = re.compile(r"'dict' object has no attribute '(\w+)'")
_UNKNOWN_NAME_PATTERN = re.compile(r"name '(\w+)' is not defined")


def add_hint(error: Failure, names: Namespace, code: str = "") -> Failure:
    """Return an error with a hint of ours before its own."""
    if (own := _find_hint(error["type"], error["message"], names, code)) is None or own in (error["hint"] or ""):
        return error
    made = error.copy()
    made["hint"] = "; ".join(filter(None, [own, error["hint"]]))
    return made


def _find_hint(kind: str, message: str, names: Namespace, code: str) -> str | None:
    if kind == "NameError" and (match := _UNKNOWN_NAME_PATTERN.match(message)):
        if match[1] in ("help", "dir"):
            return HELP_HINT
        if match[1] in sys.stdlib_module_names:
            return f"import {match[1]} first"
        return " ".join(names.explain_unavailable(match[1]) or ()) or _suggest_name(match[1], names, code)
    if kind == "AttributeError" and (match := _DICT_ATTRIBUTE_PATTERN.match(message)):
        return f'rows are dictionaries: row["{match[1]}"]'
    if "can't start new thread" in message:
        return THREADS_HINT
    if "monty syntax parser" in message:
        return ENGINE_HINT
    if kind == "ModuleNotFoundError":
        return _find_module_hint(message.partition("'")[2].partition("'")[0]) or ENGINE_HINT
    if kind in ("URLError", "gaierror") or "name resolution" in message:
        return NETWORK_HINT
    if "Operation not permitted" in message:  # what was tried is not said
        return _find_module_hint(*re.findall(r"[\w.]+", code))
    return (
        FILES_HINT if kind in ("PermissionError", "FileNotFoundError") or "Read-only file system" in message else None
    )


def _find_module_hint(*words: str) -> str | None:
    for hint, modules in _MODULE_HINTS.items():
        known = modules.split()
        if any(word in known or word.partition(".")[0] in known for word in words):
            return hint
    return None


def _suggest_name(name: str, names: Namespace, code: str) -> str | None:
    """Say what an unknown name may have meant, from what stands behind it in the program."""
    inside = re.search(rf"(?<![\w.]){name}\.([\w.]+)\s*\(", code)
    if inside and (near := get_close_matches(name, names.roots, 1)) and names.find(f"{near[0]}.{inside[1]}"):
        found = [f"{near[0]}.{inside[1]}"]
    else:
        found = names.suggest_names(f"{name}.{inside[1]}" if inside else name) or get_close_matches(
            name, names.roots, 1
        )
    return f"did you mean {' or '.join(found)}?" if found else None
