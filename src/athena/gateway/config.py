"""`servers.json`: which servers there are, in the form that other clients use, with a few fields of our own.

    {"mcpServers": {"files": {"command": "npx", "args": ["-y", "..."], "env": {"KEY": "${KEY}"}},
                    "github": {"url": "https://...", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 30}}}

What stands there as `${VAR}` or `${VAR:-default}` is looked up when a server is connected, and never written down.
"""

import builtins
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from athena.core.foreign_operation import to_identifier
from athena.errors import Conflict, InvalidInput, Misconfigured, NotFound

RESERVED_NAMES = frozenset({"parallel", "ToolError", "athena", "tools", "skills", "self", "ctx", "result"})


def assign_names(keys: list[str], ours: frozenset[str]) -> dict[str, str]:
    """Give each server of the file its name: `my-server` becomes my_server, `memory` memory_server."""
    made: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: (key != to_identifier(key), key)):  # what is right already keeps its name
        wanted = to_identifier(key)
        if is_name_taken(wanted, ours):
            wanted = f"{wanted.rstrip('_')}_server"
        chosen, count = wanted, 1
        while chosen in made.values() or is_name_taken(chosen, ours):
            count += 1
            chosen = f"{wanted}_{count}"
        made[key] = chosen
    return made


def is_name_taken(name: str, ours: frozenset[str]) -> bool:
    """Tell whether a program would miss what a name stands for already."""
    return name in ours or name in RESERVED_NAMES or hasattr(builtins, name) or name in sys.stdlib_module_names


FALLBACK_FOLDER = "/"  # for somebody whose own folder is Athena's


def resolve_working_directory(
    server: str, given: Mapping[str, Any], environment: Mapping[str, str], kept: str | None
) -> str:
    """Return the folder of an entry, whose variables are replaced; `kept` is where Athena keeps its files."""
    own = environment.get("HOME") or os.path.expanduser("~")
    chosen = given.get("cwd")
    if not chosen:
        usable = os.path.isabs(own) and os.path.isdir(own) and not is_inside(own, kept)
        return own if usable else FALLBACK_FOLDER
    found = os.path.normpath(os.path.join(own, os.path.expanduser(chosen)))
    if is_inside(found, kept):
        raise InvalidInput(
            f"the server {server!r:.80} cannot run in {found}: Athena keeps its own files there",
            hint="choose another folder: --cwd",
        )
    return found


def is_inside(path: str, outer: str | None) -> bool:
    """Tell whether a path is a folder or something in it, whatever links lead there."""
    if outer is None:
        return False
    path, outer = os.path.realpath(path), os.path.realpath(outer)
    return path == outer or path.startswith(outer.rstrip(os.sep) + os.sep)


def add_default_cwd(given: Mapping[str, Any], here: str) -> dict[str, Any]:
    """Return what was typed with the folder where it was typed, if it means something only there."""
    made = dict(given)
    if "command" not in made:
        return made
    if chosen := made.get("cwd"):
        if not chosen.startswith("$"):
            made["cwd"] = os.path.normpath(os.path.join(here, os.path.expanduser(chosen)))
    elif _is_relative_path(made["command"]) or any(_names_a_file(word, here) for word in made.get("args") or ()):
        made["cwd"] = here
    return made


def _is_relative_path(command: str) -> bool:
    return os.sep in command and not os.path.isabs(command) and not command.startswith(("~", "$"))


def _names_a_file(word: str, here: str) -> bool:
    path = word.partition("=")[2] if word.startswith("-") else word
    if not path or os.path.isabs(path) or "\0" in path:
        return False
    return path in (".", "..") or path.startswith(("./", "../")) or os.path.exists(os.path.join(here, path))


SERVERS_FILE = "servers.json"
SERVERS_KEY = "mcpServers"
LOGINS_FOLDER = "logins"  # the folder of what was given to us at a login
MAX_FILE_BYTES = 4 << 20  # bytes of the file
CALL_TIMEOUT_S = 60.0  # seconds for a call
STARTUP_TIMEOUT_S = 30.0  # seconds until a server has introduced itself and its tools
MAX_TIMEOUT_S = 600.0
ApprovalPolicy = Literal["never", "destructive", "always"]
VARIABLE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
SERVER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/@-]{0,63}")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class Entry(NamedTuple):
    """One server as it is configured, nothing expanded."""

    name: str  # its key in the file
    options: Mapping[str, Any]

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "http" if "url" in self.options else "stdio"

    @property
    def target(self) -> str:
        """What is started or called, as it stands in the file."""
        if self.transport == "http":
            return str(self.options["url"])
        return shlex.join([str(self.options.get("command")), *map(str, self.options.get("args") or ())])

    @property
    def is_unencrypted(self) -> bool:
        """Tell whether what is sent can be read on its way."""
        from urllib.parse import urlsplit  # only where there is one

        url = urlsplit(str(self.options.get("url", "")))
        return url.scheme == "http" and url.hostname not in LOOPBACK_HOSTS

    @property
    def timeout_s(self) -> float:
        return float(self.options.get("timeout", CALL_TIMEOUT_S))

    @property
    def startup_timeout_s(self) -> float:
        return float(self.options.get("startupTimeout", STARTUP_TIMEOUT_S))

    @property
    def approval(self) -> ApprovalPolicy:
        return self.options.get("approval", "never")  # type: ignore[no-any-return]  # checked when it was read

    @property
    def is_disabled(self) -> bool:
        return self.options.get("disabled") is True

    @property
    def fingerprint(self) -> str:
        """What has to be the same for an approval to hold: all that decides who answers."""
        about = ("command", "args", "env", "cwd", "url", "headers")
        return json.dumps({key: self.options.get(key) for key in about}, sort_keys=True)

    def list_unset_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Name the variables that it needs and that have no value."""
        found = VARIABLE_PATTERN.finditer(self.fingerprint)
        return list(dict.fromkeys(one[1] for one in found if one[2] is None and not environment.get(one[1])))

    def expand_variables(self, environment: Mapping[str, str]) -> "Entry":
        """Return it with every `${VAR}` replaced; a variable that is not set is named."""
        return Entry(self.name, _expand_value(dict(self.options), environment, self.name))


def _expand_value(value: Any, environment: Mapping[str, str], server: str) -> Any:
    def replace_variable(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if (found := environment.get(name)) or default is not None:
            return found or str(default)
        raise Misconfigured(
            f"the server {server!r} needs ${{{name}}}, which is not set",
            hint=format_unset_hint(name),
        )

    if isinstance(value, str):
        return VARIABLE_PATTERN.sub(replace_variable, value)
    if isinstance(value, list):
        return [_expand_value(item, environment, server) for item in value]
    if isinstance(value, dict):
        return {key: _expand_value(item, environment, server) for key, item in value.items()}
    return value


def format_unset_hint(name: str) -> str:
    return f"set {name} where Athena runs (and start it again), or write a default: ${{{name}:-...}}"


def validate_entry(name: str, given: Any) -> Entry:
    """Return an entry, or say what is wrong with it."""

    def create_error(what: str) -> InvalidInput:
        return InvalidInput(f"the server {name!r:.80}: {what}", hint="docs/servers.md shows the form")

    if not SERVER_NAME_PATTERN.fullmatch(name):
        raise InvalidInput(f"{name!r:.80} cannot be a server's name", hint="letters, digits, - and _; at most 64")
    if not isinstance(given, dict):
        raise create_error("an object is needed")
    if ("command" in given) == ("url" in given):
        raise create_error("it needs either a command or a url")
    for key in ("command", "url", "cwd", "type"):
        if key in given and not (isinstance(given[key], str) and given[key].strip() and "\0" not in given[key]):
            raise create_error(f"{key} must be text")
    args = given.get("args") or []
    if not (isinstance(args, list) and all(isinstance(one, str) and "\0" not in one for one in args)):
        raise create_error("args must be a list of text")
    for key in ("env", "headers"):
        pairs = given.get(key) or {}
        if not (isinstance(pairs, dict) and all(isinstance(one, str) for one in pairs.values())):
            raise create_error(f"{key} must be an object of text")
    if "url" in given:
        _check_url(given, create_error)
    _check_own_options(given, create_error)
    return Entry(name, given)


SELF_REFERENCE_MESSAGE = "this is Athena itself, whose tools are here already"


def reject_self(entry: Entry) -> Entry:
    """Return an entry, unless it is `athena mcp`, also by way of Python, uv or pipx."""
    words = [str(entry.options.get("command", "")), *map(str, entry.options.get("args") or ())]
    named = [word.rpartition("/")[2].partition("==")[0] for word in words]
    if "athena" in named and "mcp" in named[named.index("athena") + 1 :]:
        raise InvalidInput(
            f"the server {entry.name!r:.80}: {SELF_REFERENCE_MESSAGE}", hint="there is nothing to connect"
        )
    return entry


def _check_url(given: Mapping[str, Any], wrong: Callable[[str], InvalidInput]) -> None:
    from urllib.parse import urlsplit  # only where there is one

    url = urlsplit(VARIABLE_PATTERN.sub("x", given["url"]))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise wrong("url must begin with https:// or http://")
    if url.username or url.password:
        raise wrong("url must hold no password; send it as a header: --header 'Authorization=Bearer ${TOKEN}'")
    if str(given.get("type", "http")).lower() == "sse":
        raise wrong("the SSE transport is not supported; ask for its Streamable HTTP address")


def _check_own_options(given: Mapping[str, Any], wrong: Callable[[str], InvalidInput]) -> None:
    for key in ("timeout", "startupTimeout"):
        seconds = given.get(key, 1.0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_S:
            raise wrong(f"{key} must be a number of seconds, at most {MAX_TIMEOUT_S:.0f}")
    if given.get("approval", "never") not in ("never", "destructive", "always"):
        raise wrong("approval must be never, destructive or always")
    if not isinstance(given.get("disabled", False), bool):
        raise wrong("disabled must be true or false")


class ServersFile:
    """The file of one home."""

    def __init__(self, home: str) -> None:
        self.home, self.path = home, os.path.join(home, SERVERS_FILE)

    def read_entries(self) -> dict[str, Entry]:
        """Return every server, or say what is wrong with the file."""
        found = self._read_json().get(SERVERS_KEY, {})
        if not isinstance(found, dict):
            raise Misconfigured(
                f"{self.path}: {SERVERS_KEY} must be an object", hint="mend it by hand; nothing was changed"
            )
        try:
            return {name: validate_entry(name, given) for name, given in found.items()}
        except InvalidInput as error:
            raise Misconfigured(f"{self.path}: {error}", hint=error.hint) from None

    def add_entries(self, entries: list[Entry], replaced: Collection[str] = ()) -> None:
        """Write servers down beside those that are there, or in their place."""

        def insert_entries(servers: dict[str, Any]) -> None:
            for entry in entries:
                if entry.transport == "stdio":
                    resolve_working_directory(entry.name, entry.options, os.environ, self.home)
                if entry.name in servers and entry.name not in replaced:
                    raise Conflict(
                        f"there is a server {entry.name!r} already", hint=f"athena servers remove {entry.name}"
                    )
                if entry.name not in replaced and (other := _find_name_clash(entry.name, servers)):
                    raise Conflict(f"{entry.name!r} and {other!r} would be the same in programs", hint="another name")
                servers[entry.name] = dict(entry.options)

        self._update(insert_entries)

    def remove_entry(self, name: str) -> None:
        def delete_entry(servers: dict[str, Any]) -> None:
            if name not in servers:
                there = ", ".join(servers) or "none"
                raise NotFound(f"there is no server {name!r:.80}", hint=f"there are: {there}")
            del servers[name]

        self._update(delete_entry)

    def _read_json(self) -> dict[str, Any]:
        try:
            with open(self.path, "rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Misconfigured(f"{self.path} cannot be read: {error.strerror}") from None
        return parse_json_object(raw, self.path)

    def _update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the servers of the file and nothing else in it; others who do the same wait."""
        with lock_file(self.path):
            whole = self._read_json()
            self.read_entries()  # what is broken is never written over
            change(whole.setdefault(SERVERS_KEY, {}))
            write_private_file(self.path, json.dumps(whole, indent=2, ensure_ascii=False) + "\n")


def _find_name_clash(name: str, servers: Mapping[str, Any]) -> str | None:
    """Return the server that already has what would be this one's name."""
    return next((one for one in servers if one != name and to_identifier(one) == to_identifier(name)), None)


def parse_json_object(raw: bytes, path: str) -> dict[str, Any]:
    """Read a JSON object from a file's bytes, or say what is wrong with it."""
    try:
        if len(raw) > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        made = json.loads(raw.decode("utf-8-sig"))
        if not isinstance(made, dict):
            raise ValueError("an object is needed")
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"{path} is not valid: {error}", hint="mend it by hand; nothing was changed") from None
    return made


@contextmanager
def lock_file(path: str) -> Iterator[None]:
    """Wait until nobody else, in whatever process, reads a file to write it anew."""
    import fcntl  # only where something changes

    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(f"{path}.lock", "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_private_file(path: str, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    part = f"{path}.{os.urandom(6).hex()}"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def read_foreign_entries(raw: bytes, path: str) -> tuple[list[Entry], dict[str, str]]:
    """Read the servers of another client's file: `mcpServers` in most, `servers` in VS Code's.

    Returns those that can be taken, and why the others cannot.
    """
    whole = parse_json_object(raw, path)
    inner = whole.get("mcp")
    found = (
        whole.get(SERVERS_KEY) or whole.get("servers") or (inner.get("servers") if isinstance(inner, dict) else None)
    )
    if not isinstance(found, dict) or not found:
        raise InvalidInput(f"there are no servers in {path}", hint='it should have "mcpServers" or "servers"')
    entries: list[Entry] = []
    skipped: dict[str, str] = {}
    for name, given in found.items():
        try:
            entries.append(reject_self(validate_entry(name, _normalize_entry(given))))
        except InvalidInput as error:
            skipped[name] = f"{error}; {error.hint}" if error.hint else str(error)
    return entries, skipped


def _normalize_entry(given: Any) -> Any:
    """Write another client's entry as ours: the same things have other names there."""
    if not isinstance(given, dict):
        return given
    made = dict(given)
    for theirs in ("serverUrl", "httpUrl"):
        if theirs in made:
            made["url"] = made.pop(theirs)
    if "url" in made and "command" in made and made.get("type") in ("http", "streamable-http"):
        del made["command"]
    if isinstance(made.get("timeout"), int | float) and made["timeout"] > MAX_TIMEOUT_S:
        made["timeout"] = min(MAX_TIMEOUT_S, made["timeout"] / 1000)  # they count milliseconds
    text = json.dumps(made)
    text = re.sub(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", r"${\1}", text)
    if asked := re.search(r"\$\{(input:[^}]*|workspaceFolder)\}", text):
        raise InvalidInput(
            f"an entry asks for {asked[0]}, which only its own editor knows", hint="write the value, or ${VAR}, instead"
        )
    return json.loads(text)
