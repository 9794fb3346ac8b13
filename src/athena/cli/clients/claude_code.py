"""Claude Code: a plugin with hooks, MCP server and skill, by its own command, else in a folder that it looks into."""

import json
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from athena.cli.clients import files, json_edit, plugin
from athena.cli.clients.client import NAME, Client
from athena.cli.clients.files import Change, Record
from athena.cli.clients.ours import is_athena, is_ours
from athena.cli.clients.setup import Folder, Place, Step, Told, parsed, tell
from athena.errors import AthenaError, Conflict

PLUGIN = f"{NAME}@{NAME}"
HERE = ("plugins", "claude-code")  # in Athena's home
SERVER = ".mcp.json"
PARTS = (("enabledPlugins", PLUGIN), ("extraKnownMarketplaces", NAME))


def _folder(place: Place) -> Path:
    return Path(place.environment.get("CLAUDE_CONFIG_DIR") or place.user / ".claude")


def _program(place: Place) -> str | None:
    if found := place.program("claude"):
        return found
    usual = (place.user / ".local" / "bin" / "claude", _folder(place) / "local" / "claude")
    return next((str(path) for path in usual if path.is_file()), None)


class Installed(NamedTuple):
    """The plugin from a marketplace that is a folder in Athena's home."""

    place: Place
    program: str
    source: Folder

    @property
    def settings(self) -> Path:
        if self.place.project is not None:  # the one that is not shared: our paths are of this machine
            return self.place.project / ".claude" / "settings.local.json"
        return _folder(self.place) / "settings.json"

    def plan(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        text = files.read(self.settings)
        try:
            here = parsed(text, json_edit.parse)
        except AthenaError as error:
            raise type(error)(f"{self.settings}: {error}", hint="repair it; nothing was changed") from None
        enabled, known = (json_edit.lookup(here, path) for path in PARTS)
        source = json_edit.lookup(known, ("source", "path"))
        ours = source == str(self.source.path)
        if known is not None and not _is_here(source):
            if remove:
                return []
            hint = f"claude plugin marketplace remove {NAME}; nothing was changed"
            raise Conflict(f"{self.settings}: it has a marketplace {NAME} from elsewhere", hint=hint)
        copied = self._copied()
        leave = [self._words("uninstall", PLUGIN)] if copied is not None else []
        if remove:
            return [Told(words, self.settings) for words in [*leave, *self._forget()]]
        if enabled is True and ours and copied is not None and self._same(copied):
            return []
        leave += [self._words("marketplace", "remove", NAME)] if known is not None and not _others(self.place) else []
        add = [self._words("marketplace", "add", str(self.source.path)), self._words("install", PLUGIN)]
        return [Told(words, self.settings) for words in [*leave, *add]]

    def _forget(self) -> list[list[str]]:
        """Return how the client forgets our folder; that would uninstall the plugin in every other project, too."""
        known = _said(_folder(self.place) / "plugins" / "known_marketplaces.json")
        ours = _is_here(json_edit.lookup(known, (NAME, "source", "path")))
        # Not for a scope: then it would keep a folder that is gone.
        return [[self.program, "plugin", "marketplace", "remove", NAME]] if ours and not _others(self.place) else []

    def run(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        planned = self.plan(record, remove)
        before = files.read(self.settings)
        if not remove and planned and not record.untouched(self.settings, before):
            record.keep(self.settings, self._stripped(before, record.before(self.settings)), None)
        for told in planned:
            assert isinstance(told, Told)
            tell(told.words, self.place)
        if remove:
            self._give_back(record)
        elif planned:
            self._reorder(before)
            record.keep(self.settings, record.before(self.settings), files.read(self.settings))
        return planned

    def _reorder(self, before: str | None) -> None:
        """Undo the client's own sorting of what others wrote, as long as that says the same."""
        now = files.read(self.settings)
        wanted = before or ""
        for path in PARTS:
            wanted = json_edit.put(wanted, path, json_edit.lookup(parsed(now, json_edit.parse), path))
        if wanted != now and parsed(wanted, json_edit.parse) == parsed(now, json_edit.parse):
            files.write(Change(self.settings, now, wanted))

    def _give_back(self, record: Record) -> None:
        """Leave the settings as they were, byte for byte where nobody else has changed them."""
        known, now = record.before(self.settings), files.read(self.settings)
        source = json_edit.lookup(parsed(now, json_edit.parse), (*PARTS[1], "source", "path"))
        if not record.knows(self.settings) and not _is_here(source):
            return
        left = self._stripped(now, known)
        if parsed(left, json_edit.parse) == parsed(known, json_edit.parse):
            left = known
        if left != now:
            files.write(Change(self.settings, now, left))
        record.forget(self.settings)

    def _stripped(self, text: str | None, known: str | None) -> str | None:
        """Return settings without our entries, and without what is left empty and was not there before."""
        keep = parsed(known, json_edit.parse)
        for path in PARTS:
            if text is None:
                break
            text = json_edit.take(text, path, lambda _: True, keep)
            if json_edit.lookup(keep, path[:1]) is None:
                text = json_edit.take(text, path[:1], lambda value: value == {}, keep)
        return text

    def _words(self, *words: str) -> list[str]:
        scope = "local" if self.place.project is not None else "user"
        return [self.program, "plugin", *words, "--scope", scope]

    def _copied(self) -> Path | None:
        """Return where the client has its own copy."""
        mine = [one for one in installations(self.place) if one[:2] == _whose(self.place)]
        return Path(mine[0][2]) if mine else None

    def differs(self) -> bool:
        return False  # the client's own copy is to be as what it was made from

    def _same(self, copied: Path) -> bool:
        return all(files.read(copied / name) == text for name, text in self.source.texts.items())


def installations(place: Place) -> list[tuple[str, str, str]]:
    """Return for whom the client has our plugin: scope, project, and where its copy is."""
    text = files.read(_folder(place) / "plugins" / "installed_plugins.json")
    try:
        found = json_edit.lookup(json.loads(text or "{}"), ("plugins", PLUGIN)) or []
        return [(one["scope"], one.get("projectPath") or "", one["installPath"]) for one in found]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []  # it is the client's own file, in a form that we do not know


def _is_here(source: object) -> bool:
    """Tell whether a marketplace is a folder of ours, maybe of a home that has moved since."""
    return str(source).endswith(os.path.join(*HERE))


def _others(place: Place) -> list[tuple[str, str, str]]:
    return [one for one in installations(place) if one[:2] != _whose(place)]


def _whose(place: Place) -> tuple[str, str]:
    return ("user", "") if place.project is None else ("local", str(place.project))


class Source(NamedTuple):
    """The folder that the client reads the plugin from: for all projects, so the last one takes it away."""

    place: Place
    folder: Folder

    def plan(self, record: Record, remove: bool) -> Sequence[Change]:
        return [] if remove and _others(self.place) else self.folder.plan(record, remove)

    def run(self, record: Record, remove: bool) -> Sequence[Change]:
        return self.folder.run(record, remove) if self.plan(record, remove) else []

    def differs(self) -> bool:
        return self.folder.differs()


class Away(NamedTuple):
    """A folder that is not to be there, whichever way the client is set up."""

    folder: Folder

    def plan(self, record: Record, remove: bool) -> Sequence[Change]:
        return self.folder.plan(record, True)

    def run(self, record: Record, remove: bool) -> Sequence[Change]:
        return self.folder.run(record, True)

    def differs(self) -> bool:
        return False


def _plugin(place: Place, path: Path, texts: dict[str, str], ours: Collection[str] = ()) -> Folder:
    """Return the plugin in a folder, with what somebody has changed there in how the server is started."""
    there, way = files.read(path / SERVER) or "", ("mcpServers", NAME)
    try:
        found = parsed(there, json_edit.parse)
        if not is_ours(json_edit.lookup(found, (*way, "command"))):
            return Folder(path, texts, False, ours)
    except AthenaError:
        return Folder(path, texts, False, ours)
    kept = json_edit.put(there, (*way, "command"), place.mcp)
    changed = json_edit.parse(kept) != json_edit.parse(texts[SERVER])
    more = [*found, *found[way[0]]] != [*way]
    left = {SERVER: json_edit.take(there, way, is_ours)} if more else {}
    return Folder(path, texts | {SERVER: kept}, changed, {*ours, SERVER}, left)


def _steps(place: Place) -> Sequence[Step]:
    texts = plugin.files(place.hook, place.mcp, [])
    above = place.project / ".claude" if place.project is not None else _folder(place)
    alone = {name: texts[name] for name in texts if "marketplace" not in name}
    loose = _plugin(place, above / "skills" / NAME, alone)
    program = _program(place)
    if program is None:
        return [loose]
    source = _plugin(place, Path(place.home).joinpath(*HERE), texts, texts)
    return [Source(place, source), Installed(place, program, source), Away(loose)]


def _doubles(place: Place) -> list[str]:
    """Say which servers of the user's own are Athena as well, so that its tools would come twice."""
    above = place.environment.get("CLAUDE_CONFIG_DIR") or place.user
    said = _said(Path(above) / ".claude.json")
    found: list[tuple[str, str, Any]] = [("user", "", said)]
    projects = said.get("projects")
    if isinstance(projects, dict):
        found += [("local", name, one) for name, one in projects.items() if place.project in (None, Path(name))]
    if place.project is not None:
        found.append(("project", str(place.project), _said(place.project / SERVER)))
    made = []
    for scope, folder, holder in found:
        servers = json_edit.lookup(holder, ("mcpServers",))
        for name in [key for key in servers if is_athena(servers[key])] if isinstance(servers, dict) else []:
            words = shlex.join(["claude", "mcp", "remove", name, "--scope", scope])
            there = f"cd {shlex.quote(folder)} && " if folder else ""
            made.append(f"the server {name!r} that you added is Athena too, so its tools come twice: {there}{words}")
    return made


def _said(path: Path) -> dict[str, Any]:
    """Return what a file of the client's says, as far as it can be read."""
    try:
        said = json.loads(files.read(path) or "{}")
    except (ValueError, AthenaError):
        return {}
    return said if isinstance(said, dict) else {}


CLAUDE_CODE = Client(
    "claude-code",
    "Claude Code",
    "a plugin: session hooks, the MCP server and a skill",
    lambda place: _program(place) is not None or _folder(place).is_dir(),
    _steps,
    "start claude; /plugin, /hooks and /mcp list what it has",
    hooks=True,
    notes=_doubles,
)
