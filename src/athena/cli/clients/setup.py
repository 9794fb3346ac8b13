"""What setting up a client consists of: parts of files, folders of our own, and words to the client's own command."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from athena.cli.clients import files, hook_entries, json_edit
from athena.cli.clients.files import BackupRecord, Change
from athena.cli.clients.hook_entries import is_athena, is_manual_entry, is_ours
from athena.errors import AthenaError, Conflict, Unavailable
from athena.hooks.launcher import BIN_FOLDER, HOOK_LAUNCHER, MCP_LAUNCHER

COMMAND_TIMEOUT_S = 60  # seconds for a client's own command


class SetupTarget(NamedTuple):
    """Where to set up: Athena's own home, that of the user, the project if it is for that alone."""

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

    def find_program(self, name: str) -> str | None:
        """Find a client's own command."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))


class Told(NamedTuple):
    """Something that is said to the client's own command."""

    argv: list[str]
    config_path: Path  # the configuration that it changes

    def format_diff(self) -> str:
        return f"$ {shlex.join(self.argv)}  # writes {self.config_path}\n"


class SetupStep(Protocol):
    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        """Say what would be done; nothing where it is so already."""

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        """Do it, and say what was done."""

    def is_modified(self) -> bool:
        """Tell whether somebody has changed what we put there; that is kept."""


class TextFormat(Protocol):
    """How a kind of file is read and changed."""

    def parse(self, text: str) -> Any: ...
    def set_value(self, text: str, path: Sequence[str], value: Any) -> str: ...
    def remove_value(self, text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any) -> str: ...
    def restore_value(self, text: str, path: Sequence[str], known: str) -> str: ...


class Entry(NamedTuple):
    """Something of ours in a file: a value at the end of a path, or a group in the list of hooks there."""

    path: tuple[str, ...]
    value: Any
    is_hook_group: bool = False


class FileEdit(NamedTuple):
    """Our entries in a file of somebody else's."""

    path: Path
    entries: Sequence[Entry]
    text_format: TextFormat = json_edit

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change]:
        before = files.read_config(self.path)
        try:
            after = self.remove_entries(record, before) if remove else self._add_entries(before)
        except AthenaError as error:
            raise type(error)(f"{self.path}: {error}", hint=error.hint or "repair it; nothing was changed") from None
        return [] if after == before else [Change(self.path, before, after)]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change]:
        changes = self.plan_changes(record, remove)
        for change in changes:
            if not remove:
                record.save_original(self.path, self.remove_entries(record, change.before), change.after)
            files.write_change(change)
        if remove:
            record.forget_file(self.path)
        return changes

    def _add_entries(self, before: str | None) -> str:
        text = before or ""
        found = parse_config(text, self.text_format.parse)
        for entry in self.entries:
            there = json_edit.get_value(found, entry.path)
            if entry.is_hook_group:
                text = hook_entries.add_hook_group(text, entry.path, entry.value)
            elif there is None:
                text = self.text_format.set_value(text, entry.path, entry.value)
            elif is_athena(there):
                text = self._renew_entry(text, entry, there)
            else:
                hint = "it runs something else: rename or remove it; nothing was changed"
                raise Conflict(f"{'.'.join(entry.path)} is not ours", hint=hint)
        return text

    def _renew_entry(self, text: str, entry: Entry, there: Any) -> str:
        """Change how an entry that is there starts us; all else that somebody wrote into it stays."""
        command, args = (*entry.path, "command"), (*entry.path, "args")
        if is_ours(there):
            return self.text_format.set_value(text, command, entry.value["command"])
        if not is_manual_entry(there):
            return text  # somebody has put a command of their own around ours
        words = there["args"][there["args"].index("mcp") + 1 :]
        text = self.text_format.set_value(text, command, entry.value["command"])
        return self.text_format.set_value(text, args, [*entry.value.get("args", []), *words])

    def is_modified(self) -> bool:
        """Tell whether somebody has changed our entries; another path is no such change."""
        found = parse_config(files.read_config(self.path), self.text_format.parse)
        for entry in self.entries:
            there = json_edit.get_value(found, entry.path)
            if entry.is_hook_group and hook_entries.has_modified_hooks(there, entry.value):
                return True
            if (
                not entry.is_hook_group
                and is_athena(there)
                and there | {"command": entry.value["command"]} != entry.value
            ):
                return True
        return False

    def find_preexisting(self, record: BackupRecord) -> list[Entry]:
        """Return the entries that were there before us, and that are to come back."""
        keep = parse_config(record.original_text(self.path), self.text_format.parse)
        return [
            one for one in self.entries if not one.is_hook_group and json_edit.get_value(keep, one.path) is not None
        ]

    def remove_entries(self, record: BackupRecord, before: str | None) -> str | None:
        """Return what a file is without us: as it was, if nobody has changed it since."""
        if before is None:
            return None
        known = record.original_text(self.path)
        if record.is_untouched(self.path, before):
            return known
        keep, comes_back = parse_config(known, self.text_format.parse), self.find_preexisting(record)
        after = before
        for entry in self.entries:
            if entry.is_hook_group:
                after = hook_entries.remove_hooks(after, entry.path, keep)
            elif entry in comes_back:
                there = json_edit.get_value(parse_config(after, self.text_format.parse), entry.path)
                after = self.text_format.restore_value(after, entry.path, known or "") if is_ours(there) else after
            else:
                after = self.text_format.remove_value(after, entry.path, is_ours, keep)
        made = record.has_file(self.path) and known is None
        return None if made and not parse_config(after, self.text_format.parse) else after


class OwnedFolder(NamedTuple):
    """A folder with files of ours; what somebody else put there, or wrote into ours, stays."""

    path: Path
    texts: Mapping[str, str]
    changed: bool = False  # the texts have words of somebody else, which are kept
    owned_files: Collection[str] = ()  # files that are ours, whatever the record says
    remaining_texts: Mapping[str, str] | None = None  # what is left of files that have more than ours

    def is_modified(self) -> bool:
        return self.changed

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change]:
        mine: list[Change] = []
        theirs: list[Change] = []
        left = self.remaining_texts or {}
        for name, text in self.texts.items():
            path = self.path / name
            change = Change(path, files.read_config(path), left.get(name) if remove else text)
            ours = name in self.owned_files or change.before in (None, text) or record.is_untouched(path, change.before)
            if change.before != change.after:
                (mine if ours else theirs).append(change)
        if theirs and not remove:
            raise Conflict(f"{theirs[0].path} is not ours, or was changed", hint="move it away; nothing was changed")
        return mine

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change]:
        changes = self.plan_changes(record, remove)
        for change in changes:
            files.write_change(change, 0o755 if (change.after or "").startswith("#!") else 0o644)
        self._record_files(record, remove)
        if remove and changes:
            self._remove_empty_folders()
        return changes

    def _record_files(self, record: BackupRecord, remove: bool) -> None:
        """Remember which files are as we wrote them: these may be written anew and removed."""
        for name, text in self.texts.items():
            path = self.path / name
            if remove:
                record.forget_file(path)
            elif name not in self.owned_files and not record.is_untouched(path, text):
                record.save_original(path, None, text)

    def _remove_empty_folders(self) -> None:
        """Remove the folders that are left empty."""
        inside = {Path(name).parent for name in self.texts} | {Path()}
        inside |= {above for one in set(inside) for above in one.parents}
        for one in sorted(inside, key=lambda one: len(one.parts), reverse=True):
            try:
                (self.path / one).rmdir()
            except OSError:
                continue  # somebody put something there, or it was never made


def run_client_command(words: list[str], place: SetupTarget) -> str:
    """Say something to a client's own command, and return what it answers."""
    try:
        done = subprocess.run(
            words,
            cwd=place.base_folder,
            env=dict(place.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{shlex.join(words)}: {type(error).__name__}", hint="run it by hand to see why") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise Unavailable(f"{shlex.join(words)} failed: {said}", hint="run it by hand to see why")
    return done.stdout


def parse_config(text: str | None, read: Callable[[str], Any]) -> Any:
    """Return what a configuration says; nothing is an empty one."""
    return read(text) if text and text.strip() else {}


class CommandStep(NamedTuple):
    """What to say, and the same as an edit: it tells whether that is so already, and helps where it was not done."""

    target: SetupTarget
    add_commands: list[list[str]]
    remove_commands: list[list[str]]
    edit: FileEdit

    def plan_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        changes = self.edit.plan_changes(record, remove)
        if not changes or self._must_edit_file(record, remove):
            return changes
        return [Told(words, self.edit.path) for words in (self.remove_commands if remove else self.add_commands)]

    def apply_changes(self, record: BackupRecord, remove: bool) -> Sequence[Change | Told]:
        if self._must_edit_file(record, remove):
            return self.edit.apply_changes(record, remove)
        planned = self.plan_changes(record, remove)
        if not planned:
            return []
        path, before = self.edit.path, files.read_config(self.edit.path)
        wanted = self.edit.plan_changes(record, remove)[0].after
        if not remove:
            record.save_original(path, self.edit.remove_entries(record, before), None)
        for told in planned:
            assert isinstance(told, Told)
            run_client_command(told.argv, self.target)
        now = files.read_config(path)
        if remove:
            # Its command took ours out; where it says the same as before, the bytes shall be the same too.
            if self._is_same_config(now, wanted):
                files.write_change(Change(path, now, wanted))
                record.forget_file(path)
                return planned
            return [*planned, *self.edit.apply_changes(record, remove)]
        if now != wanted and self._is_same_config(now, wanted):
            files.write_change(Change(path, now, wanted))  # commands tidy up what others wrote, too
            now = wanted
        record.save_original(path, record.original_text(path), now)
        # Some commands only hand it to a window that is open, or have nobody to hand it to.
        return [*planned, *(self.edit.apply_changes(record, remove) if self.edit.plan_changes(record, remove) else [])]

    def is_modified(self) -> bool:
        return self.edit.is_modified()

    def _must_edit_file(self, record: BackupRecord, remove: bool) -> bool:
        """Tell whether we change the file: there is no command for it, or it would undo somebody's changes."""
        return (
            bool(not self.remove_commands or self.edit.find_preexisting(record)) if remove else self.edit.is_modified()
        )

    def _is_same_config(self, one: str | None, other: str | None) -> bool:
        return bool(parse_config(one, self.edit.text_format.parse) == parse_config(other, self.edit.text_format.parse))


ENTRY_NAME = "athena"  # under which clients know us


class Client(NamedTuple):
    """How one client is set up."""

    name: str
    title: str
    features: str  # what it is given
    is_installed: Callable[[SetupTarget], bool]  # is it on this machine
    steps: Callable[[SetupTarget], Sequence[SetupStep]]
    next_step: str  # what to do then
    per_project: bool = True  # it can be set up for a single project
    hooks: bool = False  # it tells us what happens in sessions
    runs_user_hooks: bool = False  # it runs the hooks of a project and those of all projects
    notes: Callable[[SetupTarget], list[str]] = lambda _: []  # what there is to know about this machine's


def create_server_entry(place: SetupTarget, *, folder: str | None = None) -> dict[str, Any]:
    """Return how a client starts the MCP server, in the usual form; `folder` is its word for the one that is open."""
    return {"command": place.mcp_path, "args": [] if folder is None else ["--folder", folder]}


def create_hook_entries(
    place: SetupTarget, events: dict[str, str], *, seconds: float, unit: int = 1, named: bool = False
) -> list[Entry]:
    """Return the hooks of a client that has them as Claude Code does: lists in an object `hooks`."""
    entries = []
    for event, ours in events.items():
        command: dict[str, Any] = {"type": "command", "command": f"{_shell_quote(place.hook_path)} {ours}"}
        if named:
            command = {"name": f"{ENTRY_NAME}-{ours}", **command}
        group = {"hooks": [command | {"timeout": round(seconds * unit)}]}
        entries.append(Entry(("hooks", event), group, is_hook_group=True))
    return entries


def _shell_quote(path: str) -> str:
    import shlex  # only where there are hooks

    return shlex.quote(path)
