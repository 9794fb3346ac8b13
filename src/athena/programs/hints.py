"""What to do about an error of a program that does not say so itself."""

import re
import sys
from difflib import get_close_matches

from athena.programs.sandbox import Failure, Names

FILES = "programs have no files; workspace.read(path=...) and workspace.write(path=..., content=...) do"
NETWORK = "programs have no network, by design; call an operation instead"
PROCESSES = "programs have no processes; write it in Python, or call an operation"
THREADS = "programs have no threads; parallel([...]) makes calls at once"
HELP = 'tools.describe(name="recall") shows how an operation is called, tools.search(query="...") finds one'
ENGINE = 'leave engine out, or say "auto": then what Monty lacks runs on CPython'
_MODULES = {
    NETWORK: "socket ssl urllib http ftplib smtplib poplib imaplib telnetlib xmlrpc socketserver",
    PROCESSES: "subprocess multiprocessing os.system os.popen os.fork os.spawn os.exec pty",
    THREADS: "threading concurrent _thread",
}
_ATTRIBUTE = re.compile(r"'dict' object has no attribute '(\w+)'")
_NAME = re.compile(r"name '(\w+)' is not defined")


def helped(error: Failure, names: Names, code: str = "") -> Failure:
    """Return an error with a hint of ours before its own."""
    if (own := _hint(error["type"], error["message"], names, code)) is None or own in (error["hint"] or ""):
        return error
    made = error.copy()
    made["hint"] = "; ".join(filter(None, [own, error["hint"]]))
    return made


def _hint(kind: str, message: str, names: Names, code: str) -> str | None:
    if kind == "NameError" and (match := _NAME.match(message)):
        if match[1] in ("help", "dir"):
            return HELP
        if match[1] in sys.stdlib_module_names:
            return f"import {match[1]} first"
        return " ".join(names.away(match[1]) or ()) or _meant(match[1], names, code)
    if kind == "AttributeError" and (match := _ATTRIBUTE.match(message)):
        return f'rows are dictionaries: row["{match[1]}"]'
    if "can't start new thread" in message:
        return THREADS
    if "monty syntax parser" in message:
        return ENGINE
    if kind == "ModuleNotFoundError":
        return _of_module(message.partition("'")[2].partition("'")[0]) or ENGINE
    if kind in ("URLError", "gaierror") or "name resolution" in message:
        return NETWORK
    if "Operation not permitted" in message:  # what was tried is not said
        return _of_module(*re.findall(r"[\w.]+", code))
    return FILES if kind in ("PermissionError", "FileNotFoundError") or "Read-only file system" in message else None


def _of_module(*words: str) -> str | None:
    for hint, modules in _MODULES.items():
        known = modules.split()
        if any(word in known or word.partition(".")[0] in known for word in words):
            return hint
    return None


def _meant(name: str, names: Names, code: str) -> str | None:
    """Say what an unknown name may have meant, from what stands behind it in the program."""
    inside = re.search(rf"(?<![\w.]){name}\.([\w.]+)\s*\(", code)
    if inside and (near := get_close_matches(name, names.roots, 1)) and names.find(f"{near[0]}.{inside[1]}"):
        found = [f"{near[0]}.{inside[1]}"]
    else:
        found = names.near(f"{name}.{inside[1]}" if inside else name) or get_close_matches(name, names.roots, 1)
    return f"did you mean {' or '.join(found)}?" if found else None
