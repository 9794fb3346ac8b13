"""What setting up a client consists of: parts of files, folders of our own, and words to the client's own command."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from athena.cli.clients import files, hook_entries, json_edit
from athena.cli.clients.files import Change, Record
from athena.cli.clients.ours import by_hand, is_athena, is_ours
from athena.errors import AthenaError, Conflict, Unavailable
from athena.hooks.launcher import FOLDER, MCP, NAME

PATIENCE = 60  # seconds for a client's own command


class Place(NamedTuple):
    """Where to set up: Athena's own home, that of the user, the project if it is for that alone."""

    home: str
    user: Path
    project: Path | None
    environment: Mapping[str, str]

    @property
    def hook(self) -> str:
        return os.path.join(self.home, FOLDER, NAME)

    @property
    def mcp(self) -> str:
        return os.path.join(self.home, FOLDER, MCP)

    @property
    def folder(self) -> Path:
        return self.project or self.user

    def program(self, name: str) -> str | None:
        """Find a client's own command."""
        return shutil.which(name, path=self.environment.get("PATH", os.defpath))


class Told(NamedTuple):
    """Something that is said to the client's own command."""

    words: list[str]
    writes: Path  # the configuration that it changes

    def diff(self) -> str:
        return f"$ {shlex.join(self.words)}  # writes {self.writes}\n"


class Step(Protocol):
    def plan(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        """Say what would be done; nothing where it is so already."""

    def run(self, record: Record, remove: bool) -> Sequence[Change | Told]:
        """Do it, and say what was done."""

    def differs(self) -> bool:
        """Tell whether somebody has changed what we put there; that is kept."""


class Form(Protocol):
    """How a kind of file is read and changed."""

    def parse(self, text: str) -> Any: ...
    def put(self, text: str, path: Sequence[str], value: Any) -> str: ...
    def take(self, text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any) -> str: ...
    def restore(self, text: str, path: Sequence[str], known: str) -> str: ...


class Entry(NamedTuple):
    """Something of ours in a file: a value at the end of a path, or a group in the list of hooks there."""

    path: tuple[str, ...]
    value: Any
    listed: bool = False


class Edited(NamedTuple):
    """Our entries in a file of somebody else's."""

    path: Path
    entries: Sequence[Entry]
    form: Form = json_edit

    def plan(self, record: Record, remove: bool) -> Sequence[Change]:
        before = files.read(self.path)
        try:
            after = self.without(record, before) if remove else self._with(before)
        except AthenaError as error:
            raise type(error)(f"{self.path}: {error}", hint=error.hint or "repair it; nothing was changed") from None
        return [] if after == before else [Change(self.path, before, after)]

    def run(self, record: Record, remove: bool) -> Sequence[Change]:
        changes = self.plan(record, remove)
        for change in changes:
            if not remove:
                record.keep(self.path, self.without(record, change.before), change.after)
            files.write(change)
        if remove:
            record.forget(self.path)
        return changes

    def _with(self, before: str | None) -> str:
        text = before or ""
        found = parsed(text, self.form.parse)
        for entry in self.entries:
            there = json_edit.lookup(found, entry.path)
            if entry.listed:
                text = hook_entries.put(text, entry.path, entry.value)
            elif there is None:
                text = self.form.put(text, entry.path, entry.value)
            elif is_athena(there):
                text = self._renewed(text, entry, there)
            else:
                hint = "it runs something else: rename or remove it; nothing was changed"
                raise Conflict(f"{'.'.join(entry.path)} is not ours", hint=hint)
        return text

    def _renewed(self, text: str, entry: Entry, there: Any) -> str:
        """Change how an entry that is there starts us; all else that somebody wrote into it stays."""
        command, args = (*entry.path, "command"), (*entry.path, "args")
        if is_ours(there):
            return self.form.put(text, command, entry.value["command"])
        if not by_hand(there):
            return text  # somebody has put a command of their own around ours
        words = there["args"][there["args"].index("mcp") + 1 :]
        text = self.form.put(text, command, entry.value["command"])
        return self.form.put(text, args, [*entry.value.get("args", []), *words])

    def differs(self) -> bool:
        """Tell whether somebody has changed our entries; another path is no such change."""
        found = parsed(files.read(self.path), self.form.parse)
        for entry in self.entries:
            there = json_edit.lookup(found, entry.path)
            if entry.listed and hook_entries.differs(there, entry.value):
                return True
            if not entry.listed and is_athena(there) and there | {"command": entry.value["command"]} != entry.value:
                return True
        return False

    def known(self, record: Record) -> list[Entry]:
        """Return the entries that were there before us, and that are to come back."""
        keep = parsed(record.before(self.path), self.form.parse)
        return [one for one in self.entries if not one.listed and json_edit.lookup(keep, one.path) is not None]

    def without(self, record: Record, before: str | None) -> str | None:
        """Return what a file is without us: as it was, if nobody has changed it since."""
        if before is None:
            return None
        known = record.before(self.path)
        if record.untouched(self.path, before):
            return known
        keep, comes_back = parsed(known, self.form.parse), self.known(record)
        after = before
        for entry in self.entries:
            if entry.listed:
                after = hook_entries.take(after, entry.path, keep)
            elif entry in comes_back:
                there = json_edit.lookup(parsed(after, self.form.parse), entry.path)
                after = self.form.restore(after, entry.path, known or "") if is_ours(there) else after
            else:
                after = self.form.take(after, entry.path, is_ours, keep)
        made = record.knows(self.path) and known is None
        return None if made and not parsed(after, self.form.parse) else after


class Folder(NamedTuple):
    """A folder with files of ours; what somebody else put there, or wrote into ours, stays."""

    path: Path
    texts: Mapping[str, str]
    changed: bool = False  # the texts have words of somebody else, which are kept
    ours: Collection[str] = ()  # files that are ours, whatever the record says
    left: Mapping[str, str] | None = None  # what is left of files that have more than ours

    def differs(self) -> bool:
        return self.changed

    def plan(self, record: Record, remove: bool) -> Sequence[Change]:
        mine: list[Change] = []
        theirs: list[Change] = []
        left = self.left or {}
        for name, text in self.texts.items():
            path = self.path / name
            change = Change(path, files.read(path), left.get(name) if remove else text)
            ours = name in self.ours or change.before in (None, text) or record.untouched(path, change.before)
            if change.before != change.after:
                (mine if ours else theirs).append(change)
        if theirs and not remove:
            raise Conflict(f"{theirs[0].path} is not ours, or was changed", hint="move it away; nothing was changed")
        return mine

    def run(self, record: Record, remove: bool) -> Sequence[Change]:
        changes = self.plan(record, remove)
        for change in changes:
            files.write(change, 0o755 if (change.after or "").startswith("#!") else 0o644)
        self._note(record, remove)
        if remove and changes:
            self._tidy()
        return changes

    def _note(self, record: Record, remove: bool) -> None:
        """Remember which files are as we wrote them: these may be written anew and removed."""
        for name, text in self.texts.items():
            path = self.path / name
            if remove:
                record.forget(path)
            elif name not in self.ours and not record.untouched(path, text):
                record.keep(path, None, text)

    def _tidy(self) -> None:
        """Remove the folders that are left empty."""
        inside = {Path(name).parent for name in self.texts} | {Path()}
        inside |= {above for one in set(inside) for above in one.parents}
        for one in sorted(inside, key=lambda one: len(one.parts), reverse=True):
            try:
                (self.path / one).rmdir()
            except OSError:
                continue  # somebody put something there, or it was never made


def tell(words: list[str], place: Place) -> str:
    """Say something to a client's own command, and return what it answers."""
    try:
        done = subprocess.run(
            words,
            cwd=place.folder,
            env=dict(place.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{shlex.join(words)}: {type(error).__name__}", hint="run it by hand to see why") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise Unavailable(f"{shlex.join(words)} failed: {said}", hint="run it by hand to see why")
    return done.stdout


def parsed(text: str | None, read: Callable[[str], Any]) -> Any:
    """Return what a configuration says; nothing is an empty one."""
    return read(text) if text and text.strip() else {}
