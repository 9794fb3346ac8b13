"""Whether a person is there, and what they are told of a server before it runs."""

import json
import os
import sys

from athena.core import redaction
from athena.errors import InvalidInput
from athena.gateway import sanitize
from athena.gateway.config import VARIABLE_PATTERN, Entry

UNATTENDED_VARIABLE = (
    "ATHENA_UNATTENDED"  # "1" where nobody sits at a terminal and somebody has decided that beforehand
)
MAX_VALUE_CHARS = 300  # characters of a value


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def require_person(command: str) -> None:
    """Refuse to go on where no person can be: a program that an agent started must not let others in."""
    if not is_interactive() and os.environ.get(UNATTENDED_VARIABLE) != "1":
        raise consent_error(command)


def consent_error(command: str) -> InvalidInput:
    return InvalidInput("a person has to agree", hint=f"a person does it at a terminal: athena servers {command}")


def describe_entry(entry: Entry) -> list[str]:
    """Say what a server is given besides its command: its folder, its environment, its headers, our variables."""
    given = entry.options
    told = [f"folder: {given['cwd']}"] if given.get("cwd") else []
    told += [_format_pair("env", name, "=", value) for name, value in (given.get("env") or {}).items()]
    told += [_format_pair("header", name, ": ", value) for name, value in (given.get("headers") or {}).items()]
    if names := list(dict.fromkeys(found[1] for found in VARIABLE_PATTERN.finditer(entry.fingerprint))):
        told.append(f"given from your environment: {', '.join(names)}")
    return [sanitize.escape_hidden(line) for line in told]


def _format_pair(kind: str, name: str, between: str, value: str) -> str:
    """Write a pair as it stands in the file, where no variable has its value; a secret that does is not shown."""
    return f"{kind} {redaction.redact(f'{name}{between}{value}').text[:MAX_VALUE_CHARS]}"


def describe_changes(before: str, entry: Entry) -> list[str]:
    """Say what is not as it was when it was approved, from the fingerprint of then."""
    try:
        then = {key: value for key, value in json.loads(before).items() if value is not None}
    except (ValueError, AttributeError):
        then = {}
    old, new = (_describe_server(Entry(entry.name, given)) if given else [] for given in (then, entry.options))
    found = [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
    return found or ["a value that is not shown is another one"]


def _describe_server(entry: Entry) -> list[str]:
    return [
        sanitize.escape_hidden(f"{'address' if entry.transport == 'http' else 'command'}: {entry.target}"),
        *describe_entry(entry),
    ]
