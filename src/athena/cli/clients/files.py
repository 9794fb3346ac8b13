"""Files of other programs: read, changed whole or not at all, and given back as they were."""

import contextlib
import difflib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from athena.errors import Conflict, Denied, InvalidInput, Misconfigured

MAX_CONFIG_BYTES = 16 << 20  # bytes of a configuration
RECORD_FILE = "clients.json"


class Change(NamedTuple):
    """What becomes of a file; None is no file."""

    path: Path
    before: str | None
    after: str | None

    def format_diff(self) -> str:
        """Show it as a patch."""
        old, new = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def read_config(path: Path) -> str | None:
    """Return the text of a file, None where there is none; one that we should not touch is refused."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # no pipe holds us up
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


def write_change(change: Change, mode: int = 0o644) -> None:
    """Give a file another text in one step, or remove it; a link to it stays a link, and its mode what it was.

    What somebody else has written meanwhile is not written over.
    """
    path, _, text = change
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
    try:
        if text is None:
            _check_unchanged(change)
            with contextlib.suppress(FileNotFoundError):
                target.unlink()
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        there = target.exists()
        if there and not os.access(target, os.W_OK):
            raise PermissionError(0, "it is read-only")
        mode = target.stat().st_mode & 0o777 if there else mode
        made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(made, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if there:
            part.chmod(mode)  # whatever the umask took away
        _check_unchanged(change)
        part.replace(target)
    except OSError as error:
        raise Denied(
            f"{path} cannot be written ({error.strerror})", hint="it is as it was; look at who may write there"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _check_unchanged(change: Change) -> None:
    if read_config(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by somebody else just now", hint="nothing was changed; try again")


@contextlib.contextmanager
def setup_lock(home: str) -> Iterator[None]:
    """Let one process at a time change clients' files and the record of them; others wait."""
    import fcntl  # only where something is changed

    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        lock = os.open(os.path.join(home, f"{RECORD_FILE}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Denied(f"{home} cannot be written ({error.strerror})", hint="nothing was changed") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class BackupRecord:
    """What files were before we changed them, kept in Athena's home, so that they can be given back."""

    def __init__(self, home: str) -> None:
        self._path = Path(home) / RECORD_FILE
        self._text = read_config(self._path)
        try:
            self._files: dict[str, dict[str, Any]] = dict(json.loads(self._text or "{}"))
        except (ValueError, TypeError):
            raise Misconfigured(f"{self._path} is damaged", hint="move it away; athena init makes a new one") from None

    def original_text(self, path: Path) -> str | None:
        found = self._files.get(str(path))
        return None if found is None else found["before"]

    def has_file(self, path: Path) -> bool:
        return str(path) in self._files

    def is_untouched(self, path: Path, text: str | None) -> bool:
        """Tell whether a file is as we left it."""
        found = self._files.get(str(path))
        return found is not None and found["after"] == _hash_text(text)

    def save_original(self, path: Path, before: str | None, after: str | None) -> None:
        """Remember what to give back, and how we left it; and whether its folder is ours too."""
        made = self._files.get(str(path), {}).get("made", not path.parent.exists())
        self._files[str(path)] = {"before": before, "after": _hash_text(after), "made": made}
        self._save()

    def forget_file(self, path: Path) -> None:
        """Let go of a file that was given back; a folder that we made goes too, if nothing is in it."""
        if (found := self._files.pop(str(path), None)) is not None:
            self._save()
            if found.get("made"):
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _save(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json.dumps(self._files, indent=2) + "\n" if self._files else None
        write_change(Change(self._path, self._text, text), 0o600)
        self._text = text


def _hash_text(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()
