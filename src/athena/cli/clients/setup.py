"""The steps of setting up a client: entries in its files, folders of our own, and calls of the client's command."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from athena.cli.clients import files, hook_entries, json_edit
from athena.cli.clients.files import BackupRecord, ConfigFile, FileChange
from athena.cli.clients.hook_entries import is_athena, is_manual_entry, is_ours
from athena.errors import AthenaError, Conflict, Unavailable
from athena.hooks.launcher import BIN_FOLDER, HOOK_LAUNCHER, MCP_LAUNCHER

COMMAND_TIMEOUT_S = 60  # for a client's own command
ADDITIONS_HINT = "somebody may run commands in our name: look at it, then remove it there; nothing was changed"
ENTRY_NAME = "athena"  # of our server in a client's configuration


class SetupTarget(NamedTuple):
    """The target of a set-up: Athena's data folder, the user's home, and the project, or None for all projects."""

    home: str
    user_home: Path
    project: Path | None
    environ: Mapping[str, str]

    @property
    def hook_path(self) -> str:
        return os.path.join(self.home, BIN_FOLDER, HOOK_LAUNCHER)

    @property
    def mcp_path(self) -> str:
        return os.path.join(self.home, BIN_FOLDER, MCP_LAUNCHER)

    @property
    def base_folder(self) -> Path:
        return self.project or self.user_home

    def find_file(self, path: Path) -> ConfigFile:
        """Return a file of the client in its folder for this set-up: in the project, or the user's own."""
        return ConfigFile(path, self.project)

    def find_program(self, name: str) -> str | None:
        """Return the path of a client's own command, if it is installed; a project's folder is not searched."""
        folders = filter(os.path.isabs, self.environ.get("PATH", os.defpath).split(os.pathsep))
        return shutil.which(name, path=os.pathsep.join(folders))


class ClientCommand(NamedTuple):
    """A call of the client's own command."""

    argv: list[str]
    config_path: Path  # the file that it changes

    def format_diff(self) -> str:
        return f"$ {shlex.join(self.argv)}  # writes {self.config_path}\n"


class SetupStep(Protocol):
    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        """Return the changes to make; none if the client is set up already."""

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        """Make the changes and return them."""

    def is_modified(self) -> bool:
        """Return whether somebody has changed our entries, which are then kept."""


class TextFormat(Protocol):
    """Functions that read and edit a file format."""

    def parse(self, text: str) -> Any: ...
    def set_value(self, text: str, path: Sequence[str], value: Any) -> str: ...
    def remove_value(self, text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any) -> str: ...
    def restore_value(self, text: str, path: Sequence[str], known: str) -> str: ...


class ConfigEntry(NamedTuple):
    """An entry of ours in a file: a value at a path, or a group in the list of hooks there."""

    path: tuple[str, ...]
    value: Any
    is_hook_group: bool = False


class FileEdit(NamedTuple):
    """Our entries in a file of the client."""

    file: ConfigFile
    entries: Sequence[ConfigEntry]
    text_format: TextFormat = json_edit

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        before = files.read_config(self.file)
        try:
            after = self.remove_entries(record, before) if remove else self._add_entries(before)
            if not remove and self.file.project is not None and not record.has_file(self.file):
                self._refuse_additions(after)
        except AthenaError as error:
            raise type(error)(
                f"{self.file.path}: {error}", hint=error.hint or "repair it; nothing was changed"
            ) from None
        return [] if after == before else [FileChange(self.file, before, after)]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        changes = self.plan_changes(record, remove)
        for change in changes:
            if not remove:
                record.save_original(self.file, self.remove_entries(record, change.before), change.after)
            files.write_change(change)
        if remove:
            record.forget_file(self.file)
        return changes

    def _add_entries(self, before: str | None) -> str:
        text = before or ""
        config = parse_config(text, self.text_format.parse)
        for entry in self.entries:
            existing = json_edit.get_value(config, entry.path)
            if entry.is_hook_group:
                text = hook_entries.add_hook_group(text, entry.path, entry.value)
            elif existing is None:
                text = self.text_format.set_value(text, entry.path, entry.value)
            elif is_athena(existing):
                text = self._renew_entry(text, entry, existing)
            else:
                hint = "it runs something else: rename or remove it; nothing was changed"
                raise Conflict(f"{'.'.join(entry.path)} is not ours", hint=hint)
        return text

    def _refuse_additions(self, text: str | None) -> None:
        """Take over no entry with more than ours: a project may come from a stranger, with commands in our name."""
        config = parse_config(text, self.text_format.parse)
        for entry in self.entries:
            value = json_edit.get_value(config, entry.path)
            check = hook_entries.has_modified_hooks if entry.is_hook_group else _has_additions
            if check(value, entry.value):
                raise Conflict(f"{'.'.join(entry.path)} has more than Athena wrote", hint=ADDITIONS_HINT)

    def _renew_entry(self, text: str, entry: ConfigEntry, existing: Any) -> str:
        """Update the command of an existing entry; keep all else that somebody wrote into it."""
        command, args = (*entry.path, "command"), (*entry.path, "args")
        if is_ours(existing):
            return self.text_format.set_value(text, command, entry.value["command"])
        if not is_manual_entry(existing):
            return text  # the user wrapped our launcher in another command
        more_args = existing["args"][existing["args"].index("mcp") + 1 :]
        text = self.text_format.set_value(text, command, entry.value["command"])
        return self.text_format.set_value(text, args, [*entry.value.get("args", []), *more_args])

    def is_modified(self) -> bool:
        """Return whether somebody has changed our entries; another path of the launcher does not count."""
        config = parse_config(files.read_config(self.file), self.text_format.parse)
        return any(_is_entry_modified(entry, json_edit.get_value(config, entry.path)) for entry in self.entries)

    def find_preexisting(self, record: BackupRecord) -> list[ConfigEntry]:
        """Return the entries that the file had before the first set-up, which removal restores."""
        original = parse_config(record.original_text(self.file), self.text_format.parse)
        return [
            entry
            for entry in self.entries
            if not entry.is_hook_group and json_edit.get_value(original, entry.path) is not None
        ]

    def remove_entries(self, record: BackupRecord, before: str | None) -> str | None:
        """Return a file's text without our entries: the original, if nobody has changed the file since."""
        if before is None:
            return None
        original_text = record.original_text(self.file)
        if record.is_untouched(self.file, before):
            return original_text
        original = parse_config(original_text, self.text_format.parse)
        preexisting = self.find_preexisting(record)
        after = before
        for entry in self.entries:
            if entry.is_hook_group:
                after = hook_entries.remove_hooks(after, entry.path, original)
            elif entry not in preexisting:
                after = self.text_format.remove_value(after, entry.path, is_ours, original)
            elif is_ours(json_edit.get_value(parse_config(after, self.text_format.parse), entry.path)):
                after = self.text_format.restore_value(after, entry.path, original_text or "")
        created = record.has_file(self.file) and original_text is None
        return None if created and not parse_config(after, self.text_format.parse) else after


def _is_entry_modified(entry: ConfigEntry, existing: Any) -> bool:
    if entry.is_hook_group:
        return hook_entries.has_modified_hooks(existing, entry.value)
    return is_athena(existing) and bool(existing | {"command": entry.value["command"]} != entry.value)


def _has_additions(value: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Return whether an entry differs from ours in more than the choice of tools."""
    args, own_args = value.get("args") or [], ours.get("args") or []
    if isinstance(args, list) and args[-2:-1] == ["--tools"]:
        args = args[:-2]
    others, own = ({key: part for key, part in e.items() if key not in ("args", "type")} for e in (value, ours))
    return bool(args != own_args or others != own)


class OwnedFolder(NamedTuple):
    """A folder with files of ours; files and changes of others in it stay."""

    path: Path
    project: Path | None  # that the folder is in
    texts: Mapping[str, str]
    changed: bool = False  # the texts include changes that somebody made
    owned_files: Collection[str] = ()  # may be replaced even if the record differs
    remaining_texts: Mapping[str, str] | None = None  # after removal, of files that hold more than our part
    is_private: bool = False  # in the data folder

    def _find_file(self, name: str) -> ConfigFile:
        return ConfigFile(self.path / name, self.project, self.is_private)

    @property
    def _files(self) -> list[ConfigFile]:
        return [self._find_file(name) for name in self.texts]

    def is_modified(self) -> bool:
        return self.changed

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        if self.project is not None and self.changed and not remove and not any(map(record.has_file, self._files)):
            raise Conflict(f"{self.path} has more than Athena wrote", hint=ADDITIONS_HINT)
        ours: list[FileChange] = []
        theirs: list[FileChange] = []
        remaining = self.remaining_texts or {}
        for name, text in self.texts.items():
            file = self._find_file(name)
            change = FileChange(file, files.read_config(file), remaining.get(name) if remove else text)
            may_change = (
                name in self.owned_files or change.before in (None, text) or record.is_untouched(file, change.before)
            )
            if change.before != change.after:
                (ours if may_change else theirs).append(change)
        if theirs and not remove:
            raise Conflict(f"{theirs[0].path} is not ours, or was changed", hint="move it away; nothing was changed")
        return ours

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange]:
        changes = self.plan_changes(record, remove)
        for change in changes:
            files.write_change(change, 0o755 if (change.after or "").startswith("#!") else 0o644)
        self._record_files(record, remove)
        if remove and changes:
            self._remove_empty_folders()
        return changes

    def _record_files(self, record: BackupRecord, remove: bool) -> None:
        """Record the files that Athena wrote: it may replace and remove these."""
        for name, text in self.texts.items():
            file = self._find_file(name)
            if remove:
                record.forget_file(file)
            elif name not in self.owned_files and not record.is_untouched(file, text):
                record.save_original(file, None, text)

    def _remove_empty_folders(self) -> None:
        folders = {Path(name).parent for name in self.texts} | {Path()}
        folders |= {parent for folder in set(folders) for parent in folder.parents}
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            self._find_file(str(folder / "file")).remove_folder()


def run_client_command(argv: list[str], target: SetupTarget) -> str:
    """Run a client's own command and return its output."""
    try:
        completed = subprocess.run(
            argv,
            cwd=target.base_folder,
            env=dict(target.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            start_new_session=True,  # without our terminal
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{shlex.join(argv)}: {type(error).__name__}", hint="run it by hand to see why") from None
    if completed.returncode:
        message = (completed.stderr.strip() or completed.stdout.strip())[-500:]
        raise Unavailable(f"{shlex.join(argv)} failed: {message}", hint="run it by hand to see why")
    return completed.stdout


def parse_config(text: str | None, parse: Callable[[str], Any]) -> Any:
    """Parse a configuration; no file and a blank one are an empty configuration."""
    return parse(text) if text and text.strip() else {}


class CommandStep(NamedTuple):
    """Calls of the client's command, and the same as an edit: it shows what is missing, and does it if they fail."""

    target: SetupTarget
    add_commands: list[list[str]]
    remove_commands: list[list[str]]
    edit: FileEdit

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        changes = self.edit.plan_changes(record, remove)
        if not changes or self._must_edit_file(record, remove):
            return changes
        return [
            ClientCommand(argv, self.edit.file.path) for argv in (self.remove_commands if remove else self.add_commands)
        ]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[FileChange | ClientCommand]:
        if self._must_edit_file(record, remove):
            return self.edit.apply_changes(record, remove)
        planned = self.plan_changes(record, remove)
        if not planned:
            return []
        file, before = self.edit.file, files.read_config(self.edit.file)
        wanted = self.edit.plan_changes(record, remove)[0].after
        if not remove:
            record.save_original(file, self.edit.remove_entries(record, before), None)
        for command in planned:
            assert isinstance(command, ClientCommand)
            run_client_command(command.argv, self.target)
        current = files.read_config(file)
        if remove:
            # the client's command may have reformatted the file: restore the bytes if the values are the same
            if self._is_same_config(current, wanted):
                files.write_change(FileChange(file, current, wanted))
                record.forget_file(file)
                return planned
            return [*planned, *self.edit.apply_changes(record, remove)]
        if current != wanted and self._is_same_config(current, wanted):
            files.write_change(FileChange(file, current, wanted))  # undo the command's reformatting
            current = wanted
        record.save_original(file, record.original_text(file), current)
        # some commands only notify an open window, and do nothing if there is none
        return [*planned, *(self.edit.apply_changes(record, remove) if self.edit.plan_changes(record, remove) else [])]

    def is_modified(self) -> bool:
        return self.edit.is_modified()

    def _must_edit_file(self, record: BackupRecord, remove: bool) -> bool:
        """Return whether to edit the file: there is no command for it, or it would undo somebody's changes."""
        if remove:
            return bool(not self.remove_commands or self.edit.find_preexisting(record))
        return self.edit.is_modified()

    def _is_same_config(self, text: str | None, other: str | None) -> bool:
        parse = self.edit.text_format.parse
        return bool(parse_config(text, parse) == parse_config(other, parse))


class Client(NamedTuple):
    """The set-up of one client."""

    name: str
    title: str
    features: str  # that the set-up adds
    is_installed: Callable[[SetupTarget], bool]
    steps: Callable[[SetupTarget], Sequence[SetupStep]]
    next_step: str  # for the user, after the set-up
    per_project: bool = True  # it can be set up for a single project
    hooks: bool = False  # it has session hooks
    runs_user_hooks: bool = False  # in a project it runs the hooks of the project and those of the user
    notes: Callable[[SetupTarget], list[str]] = lambda _: []


def create_server_entry(target: SetupTarget, *, folder: str | None = None) -> dict[str, Any]:
    """Return the usual entry that starts the MCP server; `folder` is the client's variable for the open folder."""
    return {"command": target.mcp_path, "args": [] if folder is None else ["--folder", folder]}


def create_hook_entries(
    target: SetupTarget, events: dict[str, str], *, timeout: int, named: bool = False
) -> list[ConfigEntry]:
    """Return the hook entries of a client with Claude Code's format; `timeout` is in the client's unit."""
    entries = []
    for event, athena_event in events.items():
        command: dict[str, Any] = {"type": "command", "command": f"{shlex.quote(target.hook_path)} {athena_event}"}
        if named:
            command = {"name": f"{ENTRY_NAME}-{athena_event}", **command}
        group = {"hooks": [command | {"timeout": timeout}]}
        entries.append(ConfigEntry(("hooks", event), group, is_hook_group=True))
    return entries
