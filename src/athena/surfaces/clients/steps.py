"""What setting up a client consists of: parts of files, folders of our own, and words to the client's own command."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from athena.errors import AthenaError, Conflict, Unavailable
from athena.launcher import FOLDER, MCP, NAME
from athena.surfaces.clients import files, jsontext
from athena.surfaces.clients.files import Change, Record

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


def is_athena(value: Any) -> bool:
    """Tell whether an entry runs Athena, whoever wrote it."""
    if not isinstance(value, dict):
        return False
    command, words = value.get("command"), value.get("args")
    by_hand = isinstance(command, str) and os.path.basename(command) in ("athena", "athena-memory")
    return is_ours(value) or (by_hand and isinstance(words, list) and "mcp" in words)


def is_ours(value: Any) -> bool:
    """Tell whether an entry is one that we wrote: it runs one of our launchers."""
    if isinstance(value, dict):
        return any(is_ours(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(is_ours(item) for item in value)
    return isinstance(value, str) and any(f"/{FOLDER}/{name}" in value for name in (NAME, MCP))


def renewed(value: Any, command: str) -> Any:
    """Return an entry of ours with the command of now, and with all else that somebody wrote into it."""
    if isinstance(value, dict):
        return {key: renewed(item, command) for key, item in value.items()}
    if isinstance(value, list):
        return [renewed(item, command) for item in value]
    return command if is_ours(value) and command not in value else value


def _command(value: Any) -> str:
    """Return the command of an entry that we make: the only word in it that is ours."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value if isinstance(value, str) else next(_command(item) for item in inside if is_ours(item))


def _mine(listed: Any) -> Any:
    """Return the element of a list that is ours."""
    return next((one for one in listed if is_ours(one)), None) if isinstance(listed, list) else None


class Form(Protocol):
    """How a kind of file is read and changed."""

    def parse(self, text: str) -> Any: ...
    def put(self, text: str, path: Sequence[str], value: Any, ours: Callable[[Any], bool] | None) -> str: ...
    def take(self, text: str, path: Sequence[str], ours: Callable[[Any], bool], keep: Any) -> str: ...


class Entry(NamedTuple):
    """Something of ours in a file: a value at the end of a path, or an element of the list there."""

    path: tuple[str, ...]
    value: Any
    listed: bool = False


class Edited(NamedTuple):
    """Our entries in a file of somebody else's."""

    path: Path
    entries: Sequence[Entry]
    form: Form = jsontext

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
            files.write(change.path, change.after)
        if remove:
            record.forget(self.path)
        return changes

    def _with(self, before: str | None) -> str:
        text = before or ""
        found = parsed(text, self.form.parse)
        for entry in self.entries:
            there = jsontext.lookup(found, entry.path)
            if not entry.listed and there is not None and not is_athena(there):
                raise Conflict(f"{'.'.join(entry.path)} is not ours", hint="rename or remove it; nothing was changed")
            text = self._put(text, entry, there)
        return text

    def _put(self, text: str, entry: Entry, there: Any) -> str:
        """Put an entry in; where there is one of ours, only its path is renewed, and the words of others stay."""
        if entry.listed:
            mine = _mine(there)
            value = entry.value if mine is None else renewed(mine, _command(entry.value))
            return self.form.put(text, entry.path, value, is_ours)
        if not is_ours(there):
            return self.form.put(text, entry.path, entry.value, None)
        if not is_ours(there.get("command")):
            return text  # somebody has put a command of their own around it
        return self.form.put(text, (*entry.path, "command"), entry.value["command"], None)

    def differs(self) -> bool:
        """Tell whether somebody has changed our entries; another path is no such change."""
        found = parsed(files.read(self.path), self.form.parse)
        for entry in self.entries:
            there = jsontext.lookup(found, entry.path)
            mine = _mine(there) if entry.listed else there if is_ours(there) else None
            if mine is not None and renewed(mine, _command(entry.value)) != entry.value:
                return True
        return False

    def without(self, record: Record, before: str | None) -> str | None:
        """Return what a file is without us: as it was, if nobody has changed it since."""
        if before is None:
            return None
        if record.untouched(self.path, before):
            return record.before(self.path)
        keep = parsed(record.before(self.path), self.form.parse)
        after = before
        for entry in self.entries:
            after = self.form.take(after, entry.path, is_ours, keep)
        made = record.knows(self.path) and record.before(self.path) is None
        return None if made and not parsed(after, self.form.parse) else after


class Folder(NamedTuple):
    """A folder that is ours alone."""

    path: Path
    texts: Mapping[str, str]
    changed: bool = False  # the texts have words of somebody else, which are kept

    def differs(self) -> bool:
        return self.changed

    def plan(self, record: Record, remove: bool) -> Sequence[Change]:
        there = {name: files.read(self.path / name) for name in self.texts}
        if remove:
            return [Change(self.path / name, text, None) for name, text in there.items() if text is not None]
        return [Change(self.path / name, there[name], text) for name, text in self.texts.items() if there[name] != text]

    def run(self, record: Record, remove: bool) -> Sequence[Change]:
        changes = self.plan(record, remove)
        for change in changes:
            files.write(change.path, change.after, 0o755 if (change.after or "").startswith("#!") else 0o644)
        if remove:
            self._tidy()
        return changes

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
