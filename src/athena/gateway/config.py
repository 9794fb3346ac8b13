"""`servers.json`: the configured MCP servers, in the form that other clients use, with a few fields of our own.

    {"mcpServers": {"files": {"command": "npx", "args": ["-y", "..."], "env": {"KEY": "${KEY}"}},
                    "github": {"url": "https://...", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 30}}}

`${VAR}` and `${VAR:-default}` are replaced when a server is connected; their values are never stored.
"""

import builtins
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from athena.core.approval import digest_subject
from athena.core.files import lock_file, write_file_atomically
from athena.core.foreign_operation import to_identifier
from athena.errors import Conflict, InvalidInput, Misconfigured, NotFound
from athena.storage.privacy import ALL_MARKS, FILES_MARK, SERVER_MARK_PREFIX

SERVERS_FILE = "servers.json"
SERVERS_KEY = "mcpServers"
LOGINS_FOLDER = "logins"  # holds the OAuth tokens
FALLBACK_FOLDER = "/"  # the working directory when $HOME is missing or inside the data folder
MAX_FILE_BYTES = 4 << 20
CALL_TIMEOUT_S = 60.0
STARTUP_TIMEOUT_S = 30.0  # to connect and list the tools
MAX_TIMEOUT_S = 600.0
RESERVED_NAMES = frozenset({"parallel", "ToolError", "athena", "tools", "skills", "self", "ctx", "result"})
VARIABLE_PATTERN = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]{0,1000}))?\}")
SERVER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/@-]{0,63}")
FINGERPRINT_OPTIONS = ("command", "args", "env", "cwd", "url", "headers")
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
SELF_REFERENCE_MESSAGE = "this is Athena itself, whose tools are here already"
ApprovalPolicy = Literal["never", "destructive", "always"]


class ServerEntry(NamedTuple):
    """One server as servers.json has it, variables not replaced."""

    name: str  # its key in the file
    options: Mapping[str, Any]

    @property
    def transport(self) -> Literal["stdio", "http"]:
        return "http" if "url" in self.options else "stdio"

    @property
    def target(self) -> str:
        """The URL or the command line, as the file has it."""
        if self.transport == "http":
            return str(self.options["url"])
        return shlex.join([str(self.options.get("command")), *map(str, self.options.get("args") or ())])

    @property
    def is_unencrypted(self) -> bool:
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
        return self.options.get("approval", "never")  # type: ignore[no-any-return]  # `validate_entry` checked it

    @property
    def is_private(self) -> bool:
        """Return whether its results may go to no other server, unless that one accepts them."""
        return self.options.get("private") is True

    @property
    def accepted_marks(self) -> frozenset[str]:
        """The private sources that a program may have read before it calls this server."""
        return frozenset(self.options.get("accepts", ()))

    def get_received_kinds(self, tool: str) -> frozenset[str] | None:
        """The kinds of personal data that a tool may receive; None: all."""
        kinds = self.options.get("receivesByTool", {}).get(tool, self.options.get("receives"))
        return None if kinds is None else frozenset(kinds)

    def plan_privacy(
        self, accepted: Collection[str] = (), refused: Collection[str] = (), private: bool | None = None
    ) -> "PrivacyChange":
        """Return what would change; raise InvalidInput for a mark that does not exist."""
        marks = (self.accepted_marks | {*accepted}) - {*refused}
        options = {
            "accepts": sorted(marks) or None,
            "private": (self.is_private if private is None else private) or None,
        }
        changed = {key: value for key, value in {**self.options, **options}.items() if value is not None}
        return PrivacyChange(self, validate_entry(self.name, changed), options)

    @property
    def is_disabled(self) -> bool:
        return self.options.get("disabled") is True

    @property
    def fingerprint(self) -> str:
        """The options that decide who answers: an approval holds while they are the same."""
        return json.dumps({key: self.options.get(key) for key in FINGERPRINT_OPTIONS}, sort_keys=True)

    def list_unset_variables(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that have neither a value nor a default."""
        matches = VARIABLE_PATTERN.finditer(self.fingerprint)
        return list(dict.fromkeys(match[1] for match in matches if match[2] is None and not environ.get(match[1])))

    def expand_variables(self, environ: Mapping[str, str]) -> "ServerEntry":
        """Return the entry with every `${VAR}` replaced."""
        return ServerEntry(self.name, _expand_value(dict(self.options), environ, self.name))


class PrivacyChange(NamedTuple):
    """A change of which private data a server may get, and of whether its own results are private."""

    before: ServerEntry
    after: ServerEntry
    options: Mapping[str, Any]  # to store

    @property
    def subject(self) -> str:
        """What a person agrees to: exactly this change, of the server as it is."""
        states = ((sorted(entry.accepted_marks), entry.is_private) for entry in (self.before, self.after))
        return f"privacy {digest_subject(self.before.name, self.before.fingerprint, *map(repr, states))}"

    @property
    def lines(self) -> list[str]:
        """A sentence for each change; none if nothing changes."""
        name, before, after = self.before.name, self.before.accepted_marks, self.after.accepted_marks
        lines = []
        if new := ", ".join(sorted(after - before)):
            lines.append(f"Programs may send {new} to {name} without asking.")
        if gone := ", ".join(sorted(before - after)):
            lines.append(f"Programs may not send {gone} to {name} any more without asking.")
        if self.after.is_private != self.before.is_private:
            rest = "not get the results of {} any more" if self.after.is_private else "get the results of {}"
            lines.append(f"Other servers may {rest.format(name)}.")
        return lines


class ServersFile:
    """The servers.json of one data folder."""

    def __init__(self, home: str) -> None:
        self.home, self.path = home, os.path.join(home, SERVERS_FILE)

    def read_entries(self) -> dict[str, ServerEntry]:
        """Return every server by its key, or say what is wrong with the file."""
        servers = self._read_json().get(SERVERS_KEY, {})
        if not isinstance(servers, dict):
            raise Misconfigured(
                f"{self.path}: {SERVERS_KEY} must be an object", hint="mend it by hand; nothing was changed"
            )
        try:
            return {name: validate_entry(name, options) for name, options in servers.items()}
        except InvalidInput as error:
            raise Misconfigured(f"{self.path}: {error}", hint=error.hint) from None

    def add_entries(self, entries: list[ServerEntry], replaceable: Collection[str] = ()) -> None:
        """Add servers to the file; only the names in `replaceable` may exist already."""

        def insert_entries(servers: dict[str, Any]) -> None:
            for entry in entries:
                if entry.transport == "stdio":
                    resolve_working_directory(entry.name, entry.options, os.environ, self.home)
                if entry.name in servers and entry.name not in replaceable:
                    raise Conflict(
                        f"there is a server {entry.name!r} already", hint=f"athena servers remove {entry.name}"
                    )
                if entry.name not in replaceable and (other := _find_name_clash(entry.name, servers)):
                    raise Conflict(f"{entry.name!r} and {other!r} would be the same in programs", hint="another name")
                servers[entry.name] = dict(entry.options)

        self._update(insert_entries)

    def remove_entry(self, name: str) -> None:
        def delete_entry(servers: dict[str, Any]) -> None:
            if name not in servers:
                names = ", ".join(servers) or "none"
                raise NotFound(f"there is no server {name!r:.80}", hint=f"there are: {names}")
            del servers[name]

        self._update(delete_entry)

    def update_entry(self, name: str, changes: Mapping[str, Any]) -> None:
        """Change options of a server; None removes an option."""

        def merge_options(servers: dict[str, Any]) -> None:
            options = servers[name] | changes
            servers[name] = {key: value for key, value in options.items() if value is not None}
            validate_entry(name, servers[name])

        self._update(merge_options)

    def _read_json(self) -> dict[str, Any]:
        try:
            with open(self.path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Misconfigured(f"{self.path} cannot be read: {error.strerror}") from None
        return parse_json_object(data, self.path)

    def _update(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the servers in the file and keep everything else in it."""
        with lock_file(f"{self.path}.lock"):
            document = self._read_json()
            self.read_entries()  # raises if the file is broken, so that it is never overwritten
            change(document.setdefault(SERVERS_KEY, {}))
            text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
            write_file_atomically(self.path, text.encode())


def _find_name_clash(name: str, servers: Mapping[str, Any]) -> str | None:
    """Return another server that programs would call by the same name."""
    return next((other for other in servers if other != name and to_identifier(other) == to_identifier(name)), None)


def parse_json_object(data: bytes, path: str) -> dict[str, Any]:
    """Parse the content of a file as a JSON object, or say what is wrong with it."""
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        document = json.loads(data.decode("utf-8-sig"))
        if not isinstance(document, dict):
            raise ValueError("an object is needed")
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"{path} is not valid: {error}", hint="mend it by hand; nothing was changed") from None
    return document


# --- checking entries -------------------------------------------------------------------------------------------------


def validate_entry(name: str, options: Any) -> ServerEntry:
    """Return an entry, or say what is wrong with it."""

    def create_error(problem: str) -> InvalidInput:
        return InvalidInput(f"the server {name!r:.80}: {problem}", hint="docs/servers.md shows the form")

    if not SERVER_NAME_PATTERN.fullmatch(name):
        raise InvalidInput(f"{name!r:.80} cannot be a server's name", hint="letters, digits, - and _; at most 64")
    if not isinstance(options, dict):
        raise create_error("an object is needed")
    if ("command" in options) == ("url" in options):
        raise create_error("it needs either a command or a url")
    for key in ("command", "url", "cwd", "type"):
        if key in options and not (isinstance(options[key], str) and options[key].strip() and "\0" not in options[key]):
            raise create_error(f"{key} must be text")
    args = options.get("args") or []
    if not (isinstance(args, list) and all(isinstance(arg, str) and "\0" not in arg for arg in args)):
        raise create_error("args must be a list of text")
    for key in ("env", "headers"):
        pairs = options.get(key) or {}
        if not (isinstance(pairs, dict) and all(isinstance(value, str) for value in pairs.values())):
            raise create_error(f"{key} must be an object of text")
    if "url" in options:
        _check_url(options, create_error)
    _check_own_options(options, create_error)
    return ServerEntry(name, options)


def _check_url(options: Mapping[str, Any], create_error: Callable[[str], InvalidInput]) -> None:
    url = urlsplit(VARIABLE_PATTERN.sub("x", options["url"]))
    if url.scheme not in ("http", "https") or not url.hostname:
        raise create_error("url must begin with https:// or http://")
    if url.username or url.password:
        raise create_error("url must hold no password; send it as a header: --header 'Authorization=Bearer ${TOKEN}'")
    if str(options.get("type", "http")).lower() == "sse":
        raise create_error("the SSE transport is not supported; ask for its Streamable HTTP address")


def _check_own_options(options: Mapping[str, Any], create_error: Callable[[str], InvalidInput]) -> None:
    for key in ("timeout", "startupTimeout"):
        seconds = options.get(key, 1.0)
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_TIMEOUT_S:
            raise create_error(f"{key} must be a number of seconds, at most {MAX_TIMEOUT_S:.0f}")
    if options.get("approval", "never") not in ("never", "destructive", "always"):
        raise create_error("approval must be never, destructive or always")
    for key in ("disabled", "private"):
        if not isinstance(options.get(key, False), bool):
            raise create_error(f"{key} must be true or false")
    by_tool = options.get("receivesByTool", {})
    if not isinstance(by_tool, dict) or not all(map(_is_kind_list, [options.get("receives", []), *by_tool.values()])):
        message = "receives must be a list of kinds such as EMAIL, receivesByTool an object of such lists"
        raise create_error(message)
    accepts = options.get("accepts", [])
    if not (isinstance(accepts, list) and all(isinstance(mark, str) and _is_mark(mark) for mark in accepts)):
        raise create_error(f"accepts must be a list of {FILES_MARK}, {SERVER_MARK_PREFIX}NAME or {ALL_MARKS}")


def _is_kind_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(kind, str) and kind.isupper() for kind in value)


def _is_mark(text: str) -> bool:
    return text in (FILES_MARK, ALL_MARKS) or bool(re.fullmatch(rf"{SERVER_MARK_PREFIX}\w+", text))


def reject_self(entry: ServerEntry) -> ServerEntry:
    """Return the entry unless it runs `athena mcp`, directly or through Python, uv or pipx."""
    argv = [str(entry.options.get("command", "")), *map(str, entry.options.get("args") or ())]
    names = [argument.rpartition("/")[2].partition("==")[0] for argument in argv]
    if "athena" in names and "mcp" in names[names.index("athena") + 1 :]:
        raise InvalidInput(
            f"the server {entry.name!r:.80}: {SELF_REFERENCE_MESSAGE}", hint="there is nothing to connect"
        )
    return entry


# --- names and variables ----------------------------------------------------------------------------------------------


def assign_names(keys: list[str], reserved: frozenset[str]) -> dict[str, str]:
    """Map each key of the file to a name for programs: `my-server` becomes my_server, `memory` memory_server."""
    names: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: (key != to_identifier(key), key)):  # valid names first: they stay
        base = to_identifier(key)
        if is_name_taken(base, reserved):
            base = f"{base.rstrip('_')}_server"
        name, count = base, 1
        while name in names.values() or is_name_taken(name, reserved):
            count += 1
            name = f"{base}_{count}"
        names[key] = name
    return names


def is_name_taken(name: str, reserved: frozenset[str]) -> bool:
    """Return whether a server of this name would hide something that programs use."""
    return name in reserved or name in RESERVED_NAMES or hasattr(builtins, name) or name in sys.stdlib_module_names


def _expand_value(value: Any, environ: Mapping[str, str], server: str) -> Any:
    def replace_variable(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if (text := environ.get(name)) or default is not None:
            return text or str(default)
        raise Misconfigured(f"the server {server!r} needs ${{{name}}}, which is not set", hint=format_unset_hint(name))

    if isinstance(value, str):
        return VARIABLE_PATTERN.sub(replace_variable, value)
    if isinstance(value, list):
        return [_expand_value(item, environ, server) for item in value]
    if isinstance(value, dict):
        return {key: _expand_value(item, environ, server) for key, item in value.items()}
    return value


def format_unset_hint(name: str) -> str:
    return f"set {name} where Athena runs (and start it again), or write a default: ${{{name}:-...}}"


# --- the working directory of a server --------------------------------------------------------------------------------


def resolve_working_directory(
    server: str, options: Mapping[str, Any], environ: Mapping[str, str], data_folder: str | None
) -> str:
    """Return a server's working directory: its `cwd`, else $HOME; never inside Athena's data folder."""
    home = environ.get("HOME") or os.path.expanduser("~")
    cwd = options.get("cwd")
    if not cwd:
        is_usable = os.path.isabs(home) and os.path.isdir(home) and not is_inside(home, data_folder)
        return home if is_usable else FALLBACK_FOLDER
    folder = os.path.normpath(os.path.join(home, os.path.expanduser(cwd)))
    if is_inside(folder, data_folder):
        raise InvalidInput(
            f"the server {server!r:.80} cannot run in {folder}: Athena keeps its own files there",
            hint="choose another folder: --cwd",
        )
    return folder


def is_inside(path: str, outer: str | None) -> bool:
    """Return whether a path is a folder or inside of it, with links resolved."""
    if outer is None:
        return False
    path, outer = os.path.realpath(path), os.path.realpath(outer)
    return path == outer or path.startswith(outer.rstrip(os.sep) + os.sep)


def add_default_cwd(options: Mapping[str, Any], current_folder: str) -> dict[str, Any]:
    """Set `cwd` to the current folder if the command or an argument is a relative path."""
    entry = dict(options)
    if "command" not in entry:
        return entry
    if cwd := entry.get("cwd"):
        if not cwd.startswith("$"):
            entry["cwd"] = os.path.normpath(os.path.join(current_folder, os.path.expanduser(cwd)))
    elif _is_relative_path(entry["command"]) or any(
        _is_relative_file(argument, current_folder) for argument in entry.get("args") or ()
    ):
        entry["cwd"] = current_folder
    return entry


def _is_relative_path(command: str) -> bool:
    return os.sep in command and not os.path.isabs(command) and not command.startswith(("~", "$"))


def _is_relative_file(argument: str, current_folder: str) -> bool:
    path = argument.partition("=")[2] if argument.startswith("-") else argument
    if not path or os.path.isabs(path) or "\0" in path:
        return False
    return path in (".", "..") or path.startswith(("./", "../")) or os.path.exists(os.path.join(current_folder, path))


# --- files of other clients -------------------------------------------------------------------------------------------


def read_foreign_entries(data: bytes, path: str) -> tuple[list[ServerEntry], dict[str, str]]:
    """Read the servers of another client's file: `mcpServers` in most, `servers` in VS Code's.

    Return the entries, and for each that cannot be used the reason.
    """
    document = parse_json_object(data, path)
    inner = document.get("mcp")
    servers = (
        document.get(SERVERS_KEY)
        or document.get("servers")
        or (inner.get("servers") if isinstance(inner, dict) else None)
    )
    if not isinstance(servers, dict) or not servers:
        raise InvalidInput(f"there are no servers in {path}", hint='it should have "mcpServers" or "servers"')
    entries: list[ServerEntry] = []
    skipped: dict[str, str] = {}
    for name, options in servers.items():
        try:
            entries.append(reject_self(validate_entry(name, _normalize_options(options))))
        except InvalidInput as error:
            skipped[name] = f"{error}; {error.hint}" if error.hint else str(error)
    return entries, skipped


def _normalize_options(options: Any) -> Any:
    """Translate the option names of other clients to ours; what may be sent to a server is for a person to say."""
    if not isinstance(options, dict):
        return options
    entry = {key: value for key, value in options.items() if key != "accepts"}
    for their_name in ("serverUrl", "httpUrl"):
        if their_name in entry:
            entry["url"] = entry.pop(their_name)
    if "url" in entry and "command" in entry and entry.get("type") in ("http", "streamable-http"):
        del entry["command"]
    if isinstance(entry.get("timeout"), int | float) and entry["timeout"] > MAX_TIMEOUT_S:
        entry["timeout"] = min(MAX_TIMEOUT_S, entry["timeout"] / 1000)  # they count milliseconds
    text = json.dumps(entry)
    text = re.sub(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", r"${\1}", text)
    if match := re.search(r"\$\{(input:[^}]{0,200}|workspaceFolder)\}", text):
        raise InvalidInput(
            f"an entry asks for {match[0]}, which only its own editor knows", hint="write the value, or ${VAR}, instead"
        )
    return json.loads(text)
