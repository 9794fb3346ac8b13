"""Claude Code: a plugin with hooks, MCP server and skill, installed by `claude plugin`, else in its skills folder."""

import json
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from athena.cli.clients import files, json_edit, plugin
from athena.cli.clients.files import BackupRecord, ConfigFile, FileChange
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
PLUGIN_FOLDER_PARTS = ("plugins", "claude-code")  # below the data folder
MCP_FILE = ".mcp.json"
SETTINGS_PATHS = (("enabledPlugins", PLUGIN_ID), ("extraKnownMarketplaces", ENTRY_NAME))


def _config_folder(target: SetupTarget) -> Path:
    return Path(target.environ.get("CLAUDE_CONFIG_DIR") or target.user_home / ".claude")


def _find_claude(target: SetupTarget) -> str | None:
    if program := target.find_program("claude"):
        return program
    usual = (target.user_home / ".local" / "bin" / "claude", _config_folder(target) / "local" / "claude")
    return next((str(path) for path in usual if path.is_file()), None)


class PluginInstall(NamedTuple):
    """Install the plugin from a marketplace that is a folder in the data folder."""

    target: SetupTarget
    program: str
    source: OwnedFolder

    @property
    def settings_file(self) -> ConfigFile:
        if self.target.project is not None:  # the file that is not shared: our paths exist on this machine only
            return self.target.find_file(self.target.project / ".claude" / "settings.local.json")
        return self.target.find_file(_config_folder(self.target) / "settings.json")

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        text = files.read_config(self.settings_file)
        try:
            settings = parse_config(text, json_edit.parse)
        except AthenaError as error:
            raise type(error)(f"{self.settings_file.path}: {error}", hint="repair it; nothing was changed") from None
        enabled, marketplace = (json_edit.get_value(settings, path) for path in SETTINGS_PATHS)
        source = json_edit.get_value(marketplace, ("source", "path"))
        if marketplace is not None and not _is_own_marketplace(source):
            if remove:
                return []
            hint = f"claude plugin marketplace remove {ENTRY_NAME}; nothing was changed"
            raise Conflict(f"{self.settings_file.path}: it has a marketplace {ENTRY_NAME} from elsewhere", hint=hint)
        installed = self._find_copy()
        commands = [] if installed is None else [self._plugin_argv("uninstall", PLUGIN_ID)]
        if remove:
            commands += self._forget_commands()
        else:
            is_ours = source == str(self.source.path)
            if enabled is True and is_ours and installed is not None and self._is_same_copy(installed):
                return []
            if marketplace is not None and not _other_installations(self.target):
                commands.append(self._plugin_argv("marketplace", "remove", ENTRY_NAME))
            commands.append(self._plugin_argv("marketplace", "add", str(self.source.path)))
            commands.append(self._plugin_argv("install", PLUGIN_ID))
        return [ClientCommand(argv, self.settings_file.path) for argv in commands]

    def _forget_commands(self) -> list[list[str]]:
        """Return the command that removes our marketplace, unless another project would lose the plugin."""
        marketplaces = _read_json(ConfigFile(_config_folder(self.target) / "plugins" / "known_marketplaces.json", None))
        source = json_edit.get_value(marketplaces, (ENTRY_NAME, "source", "path"))
        if not _is_own_marketplace(source) or _other_installations(self.target):
            return []
        # without --scope: with it, the client would keep a folder that no longer exists
        return [[self.program, "plugin", "marketplace", "remove", ENTRY_NAME]]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        planned = self.plan_changes(record, remove)
        before = files.read_config(self.settings_file)
        if not remove and planned and not record.is_untouched(self.settings_file, before):
            original = self._strip_entries(before, record.original_text(self.settings_file))
            record.save_original(self.settings_file, original, None)
        for command in planned:
            assert isinstance(command, ClientCommand)
            run_client_command(command.argv, self.target)
        if remove:
            self._restore_settings(record)
        elif planned:
            self._restore_order(before)
            record.save_original(
                self.settings_file, record.original_text(self.settings_file), files.read_config(self.settings_file)
            )
        return planned

    def _restore_order(self, before: str | None) -> None:
        """Undo the client's sorting of keys, if the values are the same."""
        current = files.read_config(self.settings_file)
        wanted = before or ""
        for path in SETTINGS_PATHS:
            wanted = json_edit.set_value(
                wanted, path, json_edit.get_value(parse_config(current, json_edit.parse), path)
            )
        if wanted != current and parse_config(wanted, json_edit.parse) == parse_config(current, json_edit.parse):
            files.write_change(FileChange(self.settings_file, current, wanted))

    def _restore_settings(self, record: BackupRecord) -> None:
        """Restore the settings, byte for byte if nobody else has changed them."""
        original, current = record.original_text(self.settings_file), files.read_config(self.settings_file)
        source = json_edit.get_value(parse_config(current, json_edit.parse), (*SETTINGS_PATHS[1], "source", "path"))
        if not record.has_file(self.settings_file) and not _is_own_marketplace(source):
            return
        stripped = self._strip_entries(current, original)
        if parse_config(stripped, json_edit.parse) == parse_config(original, json_edit.parse):
            stripped = original
        if stripped != current:
            files.write_change(FileChange(self.settings_file, current, stripped))
        record.forget_file(self.settings_file)

    def _strip_entries(self, text: str | None, original_text: str | None) -> str | None:
        """Return settings without our entries, and without empty objects that the original did not have."""
        keep = parse_config(original_text, json_edit.parse)
        for path in SETTINGS_PATHS:
            if text is None:
                break
            text = json_edit.remove_value(text, path, lambda _: True, keep)
            if json_edit.get_value(keep, path[:1]) is None:
                text = json_edit.remove_value(text, path[:1], lambda value: value == {}, keep)
        return text

    def _plugin_argv(self, *args: str) -> list[str]:
        scope = "local" if self.target.project is not None else "user"
        return [self.program, "plugin", *args, "--scope", scope]

    def _find_copy(self) -> Path | None:
        """Return the folder of the client's own copy of the plugin, if it is installed in this scope."""
        scope = _installation_scope(self.target)
        copies = [path for *installed_scope, path in list_installations(self.target) if tuple(installed_scope) == scope]
        return Path(copies[0]) if copies else None

    def is_modified(self) -> bool:
        return False  # people change the source, not the client's copy of it

    def _is_same_copy(self, copy: Path) -> bool:
        return all(files.read_config(ConfigFile(copy / name, None)) == text for name, text in self.source.texts.items())


def list_installations(target: SetupTarget) -> list[tuple[str, str, str]]:
    """Return scope, project and folder of each installation of our plugin in the client."""
    text = files.read_config(ConfigFile(_config_folder(target) / "plugins" / "installed_plugins.json", None))
    try:
        installations = json_edit.get_value(json.loads(text or "{}"), ("plugins", PLUGIN_ID)) or []
        return [(row["scope"], row.get("projectPath") or "", row["installPath"]) for row in installations]
    except (ValueError, AttributeError, KeyError, TypeError):
        return []  # the client's own file, in an unknown format


def _is_own_marketplace(source: object) -> bool:
    """Return whether a marketplace is a folder of Athena, maybe in a data folder that has moved since."""
    return str(source).endswith(os.path.join(*PLUGIN_FOLDER_PARTS))


def _other_installations(target: SetupTarget) -> list[tuple[str, str, str]]:
    return [row for row in list_installations(target) if row[:2] != _installation_scope(target)]


def _installation_scope(target: SetupTarget) -> tuple[str, str]:
    return ("user", "") if target.project is None else ("local", str(target.project))


class PluginSource(NamedTuple):
    """The folder that the client copies the plugin from; it is shared, so the last installation removes it."""

    target: SetupTarget
    folder: OwnedFolder

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return [] if remove and _other_installations(self.target) else self.folder.plan_changes(record, remove)

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.apply_changes(record, remove) if self.plan_changes(record, remove) else []

    def is_modified(self) -> bool:
        return self.folder.is_modified()


class FolderRemoval(NamedTuple):
    """Remove a folder: the plugin in the skills folder, which the marketplace replaces."""

    folder: OwnedFolder

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.plan_changes(record, True)

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        return self.folder.apply_changes(record, True)

    def is_modified(self) -> bool:
        return False


def _create_plugin_folder(
    target: SetupTarget, path: Path, project: Path | None, texts: dict[str, str], owned_files: Collection[str] = ()
) -> OwnedFolder:
    """Return the plugin in a folder; changes that somebody made to the server's entry there are kept."""
    existing = files.read_config(ConfigFile(path / MCP_FILE, project)) or ""
    entry_path = ("mcpServers", ENTRY_NAME)
    try:
        config = parse_config(existing, json_edit.parse)
        if not is_ours(json_edit.get_value(config, (*entry_path, "command"))):
            return OwnedFolder(path, project, texts, False, owned_files)
    except AthenaError:
        return OwnedFolder(path, project, texts, False, owned_files)
    text = json_edit.set_value(existing, (*entry_path, "command"), target.mcp_path)
    changed = json_edit.parse(text) != json_edit.parse(texts[MCP_FILE])
    has_more = [*config, *config[entry_path[0]]] != [*entry_path]
    remaining = {MCP_FILE: json_edit.remove_value(existing, entry_path, is_ours)} if has_more else {}
    return OwnedFolder(path, project, texts | {MCP_FILE: text}, changed, {*owned_files, MCP_FILE}, remaining)


def _claude_steps(target: SetupTarget) -> Sequence[SetupStep]:
    texts = plugin.render_files(target.hook_path, target.mcp_path, [])
    config_folder = target.project / ".claude" if target.project is not None else _config_folder(target)
    skill_texts = {name: texts[name] for name in texts if "marketplace" not in name}
    skill_folder = _create_plugin_folder(target, config_folder / "skills" / ENTRY_NAME, target.project, skill_texts)
    program = _find_claude(target)
    if program is None:
        return [skill_folder]
    source_path = Path(target.home).joinpath(*PLUGIN_FOLDER_PARTS)
    source = _create_plugin_folder(target, source_path, None, texts, texts)._replace(is_private=True)
    return [PluginSource(target, source), PluginInstall(target, program, source), FolderRemoval(skill_folder)]


def _duplicate_server_notes(target: SetupTarget) -> list[str]:
    """Return a note for each server that the user added and that is Athena too: its tools would appear twice."""
    folder = target.environ.get("CLAUDE_CONFIG_DIR") or target.user_home
    user_config = _read_json(ConfigFile(Path(folder) / ".claude.json", None))
    configs: list[tuple[str, str, Any]] = [("user", "", user_config)]
    projects = user_config.get("projects")
    if isinstance(projects, dict):
        configs += [
            ("local", name, config) for name, config in projects.items() if target.project in (None, Path(name))
        ]
    if target.project is not None:
        configs.append(("project", str(target.project), _read_json(target.find_file(target.project / MCP_FILE))))
    notes = []
    for scope, project, config in configs:
        servers = json_edit.get_value(config, ("mcpServers",))
        for name in [key for key in servers if is_athena(servers[key])] if isinstance(servers, dict) else []:
            command = shlex.join(["claude", "mcp", "remove", name, "--scope", scope])
            prefix = f"cd {shlex.quote(project)} && " if project else ""
            notes.append(
                f"the server {name!r} that you added is Athena too, so its tools come twice: {prefix}{command}"
            )
    return notes


def _read_json(file: ConfigFile) -> dict[str, Any]:
    """Return the object in a file of the client, an empty one if it cannot be read."""
    try:
        value = json.loads(files.read_config(file) or "{}")
    except (ValueError, AthenaError):
        return {}
    return value if isinstance(value, dict) else {}


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
