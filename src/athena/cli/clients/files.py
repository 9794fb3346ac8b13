"""Read and change other programs' configuration files, and record the originals, so that they can be restored."""

import contextlib
import difflib
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from athena.core.files import FileLock, lock_file, write_file_atomically
from athena.errors import Conflict, Denied, InvalidInput, Misconfigured

MAX_CONFIG_BYTES = 16 << 20
RECORD_FILE = "clients.json"


class FileChange(NamedTuple):
    """The text of a file before and after; None stands for no file."""

    path: Path
    before: str | None
    after: str | None

    def format_diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def read_config(path: Path) -> str | None:
    """Return the text of a file, None if it does not exist; raise an error for one that must not be edited."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # a pipe does not block
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(0, "it is no file")
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Denied(f"{path} cannot be read ({error.strerror})", hint="nothing was changed") from None
    try:
        text = data.decode()
    except ValueError:
        raise InvalidInput(f"{path} is no text (UTF-8)", hint="nothing was changed") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidInput(f"{path} is too large for a configuration", hint="nothing was changed")
    return text


def write_change(change: FileChange, mode: int = 0o644) -> None:
    """Give a file its new text in one step, or remove it; a symbolic link stays one, and the file keeps its mode.

    Raise Conflict if another program has changed the file since it was read.
    """
    target = Path(os.path.realpath(change.path))
    try:
        if change.after is None:
            _check_unchanged(change)
            target.unlink(missing_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        exists = target.exists()
        if exists and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is read-only")
        write_file_atomically(
            target,
            change.after.encode(),
            target.stat().st_mode & 0o777 if exists else mode,
            exact_mode=exists,
            before_replace=lambda: _check_unchanged(change),
        )
    except OSError as error:
        raise Denied(
            f"{change.path} cannot be written ({error.strerror})", hint="it is as it was; look at who may write there"
        ) from None


def _check_unchanged(change: FileChange) -> None:
    if read_config(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by somebody else just now", hint="nothing was changed; try again")


def setup_lock(home: str) -> FileLock:
    """Take the lock, for `with`, that lets one process at a time change clients' files and the record of them."""
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        return lock_file(os.path.join(home, f"{RECORD_FILE}.lock"))
    except OSError as error:
        raise Denied(f"{home} cannot be written ({error.strerror})", hint="nothing was changed") from None


class BackupRecord:
    """The texts of files before Athena changed them, kept in the data folder, to restore them on removal."""

    def __init__(self, home: str) -> None:
        self._path = Path(home) / RECORD_FILE
        self._text = read_config(self._path)
        try:
            self._files: dict[str, dict[str, Any]] = dict(json.loads(self._text or "{}"))
        except (ValueError, TypeError):
            raise Misconfigured(f"{self._path} is damaged", hint="move it away; athena init makes a new one") from None

    def original_text(self, path: Path) -> str | None:
        """Return the text of a file without our entries; None if there was no file, or none is recorded."""
        entry = self._files.get(str(path))
        return None if entry is None else entry["before"]

    def has_file(self, path: Path) -> bool:
        return str(path) in self._files

    def is_untouched(self, path: Path, text: str | None) -> bool:
        """Return whether a file has the text that Athena wrote last."""
        entry = self._files.get(str(path))
        return entry is not None and entry["after"] == _hash_text(text)

    def save_original(self, path: Path, before: str | None, after: str | None) -> None:
        """Record the text to restore, the text that Athena wrote, and whether Athena creates the folder too."""
        creates_folder = self._files.get(str(path), {}).get("made", not path.parent.exists())
        self._files[str(path)] = {"before": before, "after": _hash_text(after), "made": creates_folder}
        self._save()

    def forget_file(self, path: Path) -> None:
        """Remove a restored file from the record, and its folder if Athena created it and it is empty."""
        if (entry := self._files.pop(str(path), None)) is not None:
            self._save()
            if entry.get("made"):
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _save(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps(self._files, indent=2) + "\n" if self._files else None
        write_change(FileChange(self._path, self._text, text), 0o600)
        self._text = text


def _hash_text(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
