"""Read and change other programs' configuration files, and record the originals, so that they can be restored."""

import contextlib
import difflib
import errno
import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

from athena.core.files import FileLock, lock_file, open_beneath, open_folder_beneath, write_file_atomically
from athena.errors import Conflict, Denied, InvalidInput, Misconfigured

MAX_CONFIG_BYTES = 16 << 20
RECORD_FILE = "clients.json"
UNCHANGED = "nothing was changed"


class ConfigFile(NamedTuple):
    """A file of a client, in the user's own folders or in a project.

    A project may come from a stranger, with links to anywhere: we open its files beneath it and follow none. In their
    own folders people keep links to their dotfiles, and we follow those.
    """

    path: Path
    project: Path | None
    is_private: bool = False  # in the data folder: we create it for its owner alone

    def open(self) -> int:
        """Open the file to read it and return its descriptor."""
        if self.project is None:
            return os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe does not block
        return open_beneath(self.project, os.path.relpath(self.path, self.project))

    def open_folder(self, *, create: bool) -> tuple[int, str]:
        """Open the folder of the file and return its descriptor and the file's name in it."""
        mode = (0o700 if self.is_private else 0o755) if create else None
        if self.project is not None:
            folder = os.path.relpath(self.path.parent, self.project)
            return open_folder_beneath(self.project, folder, create_mode=mode), self.path.name
        target = Path(os.path.realpath(self.path))  # a symbolic link stays one
        return open_folder_beneath("/", str(target.parent)[1:], create_mode=mode), target.name

    def remove_folder(self) -> None:
        """Remove the folder of the file if it is empty."""
        with contextlib.suppress(OSError):  # it has other files, or does not exist
            folder, name = self._replace(path=self.path.parent).open_folder(create=False)
            try:
                os.rmdir(name, dir_fd=folder)
            finally:
                os.close(folder)


class FileChange(NamedTuple):
    """The text of a file before and after; None stands for no file."""

    file: ConfigFile
    before: str | None
    after: str | None

    @property
    def path(self) -> Path:
        return self.file.path

    def format_diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def read_config(file: ConfigFile) -> str | None:
    """Return the text of a file, None if it does not exist; raise an error for one that must not be edited."""
    path = file.path
    try:
        with open(file.open(), "rb") as reader:
            if not stat.S_ISREG(os.fstat(reader.fileno()).st_mode):
                raise OSError(0, "it is no plain file")
            data = reader.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = "nothing was changed; in a project Athena follows no links" if error.errno == errno.ELOOP else UNCHANGED
        raise Denied(f"{path} cannot be read ({error.strerror})", hint=hint) from None
    try:
        text = data.decode()
    except ValueError:
        raise InvalidInput(f"{path} is no text (UTF-8)", hint="nothing was changed") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidInput(f"{path} is too large for a configuration", hint="nothing was changed")
    return text


def write_change(change: FileChange, mode: int = 0o644) -> None:
    """Give a file its new text in one step, or remove it; the file keeps its mode.

    Raise Conflict if another program has changed the file since it was read.
    """
    try:
        if change.after is None and change.before is None:
            return
        folder, name = change.file.open_folder(create=change.after is not None)
        try:
            _write_text(change, folder, name, mode)
        finally:
            os.close(folder)
    except OSError as error:
        raise Denied(
            f"{change.path} cannot be written ({error.strerror})", hint="it is as it was; look at who may write there"
        ) from None


def _write_text(change: FileChange, folder: int, name: str, mode: int) -> None:
    if change.after is None:
        _check_unchanged(change)
        os.unlink(name, dir_fd=folder)
        return
    try:
        current_mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
    except FileNotFoundError:
        current_mode = None
    if current_mode is not None and not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(0, "it is read-only")
    write_file_atomically(
        name,
        change.after.encode(),
        mode & (0o700 if change.file.is_private else 0o777) if current_mode is None else current_mode,
        exact_mode=current_mode is not None,
        before_replace=lambda: _check_unchanged(change),
        dir_fd=folder,
    )


def _check_unchanged(change: FileChange) -> None:
    if read_config(change.file) != change.before:
        raise Conflict(f"{change.path} was changed by somebody else just now", hint="nothing was changed; try again")


def setup_lock(home: str) -> FileLock:
    """Take the lock, for `with`, that lets one process at a time change clients' files and the record of them."""
    try:
        return lock_file(os.path.join(home, f"{RECORD_FILE}.lock"))
    except OSError as error:
        raise Denied(f"{home} cannot be written ({error.strerror})", hint="nothing was changed") from None


class BackupRecord:
    """The texts of files before Athena changed them, kept in the data folder, to restore them on removal."""

    def __init__(self, home: str) -> None:
        self._file = ConfigFile(Path(home) / RECORD_FILE, None, is_private=True)
        self._text = read_config(self._file)
        try:
            self._files: dict[str, dict[str, Any]] = dict(json.loads(self._text or "{}"))
        except (ValueError, TypeError):
            raise Misconfigured(
                f"{self._file.path} is damaged", hint="move it away; athena init makes a new one"
            ) from None

    def original_text(self, file: ConfigFile) -> str | None:
        """Return the text of a file without our entries; None if there was no file, or none is recorded."""
        entry = self._files.get(str(file.path))
        return None if entry is None else entry["before"]

    def has_file(self, file: ConfigFile) -> bool:
        return str(file.path) in self._files

    def is_untouched(self, file: ConfigFile, text: str | None) -> bool:
        """Return whether a file has the text that Athena wrote last."""
        entry = self._files.get(str(file.path))
        return entry is not None and entry["after"] == _hash_text(text)

    def save_original(self, file: ConfigFile, before: str | None, after: str | None) -> None:
        """Record the text to restore, the text that Athena wrote, and whether Athena creates the folder too."""
        key = str(file.path)
        creates_folder = self._files.get(key, {}).get("made", not file.path.parent.exists())
        self._files[key] = {"before": before, "after": _hash_text(after), "made": creates_folder}
        self._save()

    def forget_file(self, file: ConfigFile) -> None:
        """Remove a restored file from the record, and its folder if Athena created it and it is empty."""
        if (entry := self._files.pop(str(file.path), None)) is not None:
            self._save()
            if entry.get("made"):
                file.remove_folder()

    def _save(self) -> None:
        text = json.dumps(self._files, indent=2) + "\n" if self._files else None
        write_change(FileChange(self._file, self._text, text))
        self._text = text


def _hash_text(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
