"""Claude Code: a plugin with hooks, MCP server and skill, by its own command, else in a folder that it looks into."""

import json
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from athena.cli.clients import files, json_edit, plugin
from athena.cli.clients.files import BackupRecord, FileChange
from athena.cli.clients.hook_entries import is_athena, is_ours
from athena.cli.clients.setup import (
    ENTRY_NAME,
    Client,
    ClientCommand,
    OwnedFolder,
    SetupStep,
    SetupTarget,
    parse_config,
    run_client_command,
)
from athena.errors import AthenaError, Conflict

PLUGIN_ID = f"{ENTRY_NAME}@{ENTRY_NAME}"
PLUGIN_FOLDER_PARTS = ("plugins", "claude-code")  # in Athena's home
MCP_FILE = ".mcp.json"
SETTINGS_PATHS = (("enabledPlugins", PLUGIN_ID), ("extraKnownMarketplaces", ENTRY_NAME))


def _config_folder(target: SetupTarget) -> Path:
    return Path(target.environ.get("CLAUDE_CONFIG_DIR") or target.user_home / ".claude")


def _find_claude(target: SetupTarget) -> str | None:
    if found := target.find_program("claude"):
        return found
    usual = (target.user_home / ".local" / "bin" / "claude", _config_folder(target) / "local" / "claude")
    return next((str(path) for path in usual if path.is_file()), None)


class PluginInstall(NamedTuple):
    """The plugin from a marketplace that is a folder in Athena's home."""

    target: SetupTarget
    program: str
    source: OwnedFolder

    @property
    def settings_path(self) -> Path:
        if self.target.project is not None:  # the one that is not shared: our paths are of this machine
            return self.target.project / ".claude" / "settings.local.json"
        return _config_folder(self.target) / "settings.json"

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        text = files.read_config(self.settings_path)
        try:
            here = parse_config(text, json_edit.parse)
        except AthenaError as error:
            raise type(error)(f"{self.settings_path}: {error}", hint="repair it; nothing was changed") from None
        enabled, known = (json_edit.get_value(here, path) for path in SETTINGS_PATHS)
        source = json_edit.get_value(known, ("source", "path"))
        ours = source == str(self.source.path)
        if known is not None and not _is_own_marketplace(source):
            if remove:
                return []
            hint = f"claude plugin marketplace remove {ENTRY_NAME}; nothing was changed"
            raise Conflict(f"{self.settings_path}: it has a marketplace {ENTRY_NAME} from elsewhere", hint=hint)
        copied = self._find_copy()
        leave = [self._plugin_argv("uninstall", PLUGIN_ID)] if copied is not None else []
        if remove:
            return [ClientCommand(words, self.settings_path) for words in [*leave, *self._forget_commands()]]
        if enabled is True and ours and copied is not None and self._is_same_copy(copied):
            return []
        leave += (
            [self._plugin_argv("marketplace", "remove", ENTRY_NAME)]
            if known is not None and not _other_installations(self.target)
            else []
        )
        add = [self._plugin_argv("marketplace", "add", str(self.source.path)), self._plugin_argv("install", PLUGIN_ID)]
        return [ClientCommand(words, self.settings_path) for words in [*leave, *add]]

    def _forget_commands(self) -> list[list[str]]:
        """Return how the client forgets our folder; that would uninstall the plugin in every other project, too."""
        known = _read_json(_config_folder(self.target) / "plugins" / "known_marketplaces.json")
        ours = _is_own_marketplace(json_edit.get_value(known, (ENTRY_NAME, "source", "path")))
        # Not for a scope: then it would keep a folder that is gone.
        return (
            [[self.program, "plugin", "marketplace", "remove", ENTRY_NAME]]
            if ours and not _other_installations(self.target)
            else []
        )

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        planned = self.plan_changes(record, remove)
        before = files.read_config(self.settings_path)
        if not remove and planned and not record.is_untouched(self.settings_path, before):
            record.save_original(
                self.settings_path, self._strip_entries(before, record.original_text(self.settings_path)), None
            )
        for told in planned:
            assert isinstance(told, ClientCommand)
            run_client_command(told.argv, self.target)
        if remove:
            self._restore_settings(record)
        elif planned:
            self._restore_order(before)
            record.save_original(
                self.settings_path, record.original_text(self.settings_path), files.read_config(self.settings_path)
            )
        return planned

    def _restore_order(self, before: str | None) -> None:
        """Undo the client's own sorting of what others wrote, as long as that says the same."""
        now = files.read_config(self.settings_path)
        wanted = before or ""
        for path in SETTINGS_PATHS:
            wanted = json_edit.set_value(wanted, path, json_edit.get_value(parse_config(now, json_edit.parse), path))
        if wanted != now and parse_config(wanted, json_edit.parse) == parse_config(now, json_edit.parse):
            files.write_change(FileChange(self.settings_path, now, wanted))

    def _restore_settings(self, record: BackupRecord) -> None:
        """Leave the settings as they were, byte for byte where nobody else has changed them."""
        known, now = record.original_text(self.settings_path), files.read_config(self.settings_path)
        source = json_edit.get_value(parse_config(now, json_edit.parse), (*SETTINGS_PATHS[1], "source", "path"))
        if not record.has_file(self.settings_path) and not _is_own_marketplace(source):
            return
        left = self._strip_entries(now, known)
        if parse_config(left, json_edit.parse) == parse_config(known, json_edit.parse):
            left = known
        if left != now:
            files.write_change(FileChange(self.settings_path, now, left))
        record.forget_file(self.settings_path)

    def _strip_entries(self, text: str | None, known: str | None) -> str | None:
        """Return settings without our entries, and without what is left empty and was not there before."""
        keep = parse_config(known, json_edit.parse)
        for path in SETTINGS_PATHS:
            if text is None:
                break
            text = json_edit.remove_value(text, path, lambda _: True, keep)
            if json_edit.get_value(keep, path[:1]) is None:
                text = json_edit.remove_value(text, path[:1], lambda value: value == {}, keep)
        return text

    def _plugin_argv(self, *words: str) -> list[str]:
        scope = "local" if self.target.project is not None else "user"
        return [self.program, "plugin", *words, "--scope", scope]

    def _find_copy(self) -> Path | None:
        """Return where the client has its own copy."""
        mine = [one for one in list_installations(self.target) if one[:2] == _installation_scope(self.target)]
        return Path(mine[0][2]) if mine else None

    def is_modified(self) -> bool:
        return False  # the client's own copy is to be as what it was made from

    def _is_same_copy(self, copied: Path) -> bool:
        return all(files.read_config(copied / name) == text for name, text in self.source.texts.items())


def list_installations(target: SetupTarget) -> list[tuple[str, str, str]]:
    """Return for whom the client has our plugin: scope, project, and where its copy is."""
    text = files.read_config(_config_folder(target) / "plugins" / "installed_plugins.json")
    try:
        found = json_edit.get_value(json.loads(text or "{}"), ("plugins", PLUGIN_ID)) or []
        return [(one["scope"], one.get("projectPath") or "", one["installPath"]) for one in found]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []  # it is the client's own file, in a form that we do not know


def _is_own_marketplace(source: object) -> bool:
    """Tell whether a marketplace is a folder of ours, maybe of a home that has moved since."""
    return str(source).endswith(os.path.join(*PLUGIN_FOLDER_PARTS))


def _other_installations(target: SetupTarget) -> list[tuple[str, str, str]]:
    return [one for one in list_installations(target) if one[:2] != _installation_scope(target)]


def _installation_scope(target: SetupTarget) -> tuple[str, str]:
    return ("user", "") if target.project is None else ("local", str(target.project))


class PluginSource(NamedTuple):
    """The folder that the client reads the plugin from: for all projects, so the last one takes it away."""

    target: SetupTarget
    folder: OwnedFolder

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return [] if remove and _other_installations(self.target) else self.folder.plan_changes(record, remove)

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.apply_changes(record, remove) if self.plan_changes(record, remove) else []

    def is_modified(self) -> bool:
        return self.folder.is_modified()


class FolderRemoval(NamedTuple):
    """A folder that is not to be there, whichever way the client is set up."""

    folder: OwnedFolder

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.plan_changes(record, True)

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.apply_changes(record, True)

    def is_modified(self) -> bool:
        return False


def _create_plugin_folder(
    target: SetupTarget, path: Path, texts: dict[str, str], ours: Collection[str] = ()
) -> OwnedFolder:
    """Return the plugin in a folder, with what somebody has changed there in how the server is started."""
    there, way = files.read_config(path / MCP_FILE) or "", ("mcpServers", ENTRY_NAME)
    try:
        found = parse_config(there, json_edit.parse)
        if not is_ours(json_edit.get_value(found, (*way, "command"))):
            return OwnedFolder(path, texts, False, ours)
    except AthenaError:
        return OwnedFolder(path, texts, False, ours)
    kept = json_edit.set_value(there, (*way, "command"), target.mcp_path)
    changed = json_edit.parse(kept) != json_edit.parse(texts[MCP_FILE])
    more = [*found, *found[way[0]]] != [*way]
    left = {MCP_FILE: json_edit.remove_value(there, way, is_ours)} if more else {}
    return OwnedFolder(path, texts | {MCP_FILE: kept}, changed, {*ours, MCP_FILE}, left)


def _claude_steps(target: SetupTarget) -> Sequence[SetupStep]:
    texts = plugin.render_files(target.hook_path, target.mcp_path, [])
    above = target.project / ".claude" if target.project is not None else _config_folder(target)
    alone = {name: texts[name] for name in texts if "marketplace" not in name}
    loose = _create_plugin_folder(target, above / "skills" / ENTRY_NAME, alone)
    program = _find_claude(target)
    if program is None:
        return [loose]
    source = _create_plugin_folder(target, Path(target.home).joinpath(*PLUGIN_FOLDER_PARTS), texts, texts)
    return [PluginSource(target, source), PluginInstall(target, program, source), FolderRemoval(loose)]


def _duplicate_server_notes(target: SetupTarget) -> list[str]:
    """Say which servers of the user's own are Athena as well, so that its tools would come twice."""
    above = target.environ.get("CLAUDE_CONFIG_DIR") or target.user_home
    said = _read_json(Path(above) / ".claude.json")
    found: list[tuple[str, str, Any]] = [("user", "", said)]
    projects = said.get("projects")
    if isinstance(projects, dict):
        found += [("local", name, one) for name, one in projects.items() if target.project in (None, Path(name))]
    if target.project is not None:
        found.append(("project", str(target.project), _read_json(target.project / MCP_FILE)))
    made = []
    for scope, folder, holder in found:
        servers = json_edit.get_value(holder, ("mcpServers",))
        for name in [key for key in servers if is_athena(servers[key])] if isinstance(servers, dict) else []:
            words = shlex.join(["claude", "mcp", "remove", name, "--scope", scope])
            there = f"cd {shlex.quote(folder)} && " if folder else ""
            made.append(f"the server {name!r} that you added is Athena too, so its tools come twice: {there}{words}")
    return made


def _read_json(path: Path) -> dict[str, Any]:
    """Return what a file of the client's says, as far as it can be read."""
    try:
        said = json.loads(files.read_config(path) or "{}")
    except (ValueError, AthenaError):
        return {}
    return said if isinstance(said, dict) else {}


CLAUDE_CODE = Client(
    "claude-code",
    "Claude Code",
    "a plugin: session hooks, the MCP server and a skill",
    lambda target: _find_claude(target) is not None or _config_folder(target).is_dir(),
    _claude_steps,
    "start claude; /plugin, /hooks and /mcp list what it has",
    hooks=True,
    notes=_duplicate_server_notes,
)
