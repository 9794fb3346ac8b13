"""Files that say what went on, and never grow for ever. Standard library only."""

import os
from contextlib import suppress

LOG_FOLDER = "logs"
MAX_LOG_BYTES = 1 << 20  # bytes; the file before is kept beside it


class StderrLog:
    """A file of lines that stands for the standard error output, and begins anew when it is long enough."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, home: str, name: str, largest: int = MAX_LOG_BYTES) -> None:
        folder = os.path.join(home, LOG_FOLDER)
        os.makedirs(home, mode=0o700, exist_ok=True)  # of a path, only the last folder gets these rights
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path, self._max_bytes = os.path.join(folder, name), largest
        self._open_file()

    def _open_file(self) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(file, 2)  # what native code has to say belongs here too
        os.close(file)

    def write(self, text: str) -> int:
        if os.fstat(2).st_size > self._max_bytes:
            with suppress(OSError):  # somebody has removed it: what is said goes where it went
                os.replace(self.path, f"{self.path}.1")
                self._open_file()
        data = text.encode(self.encoding, self.errors)
        while data:
            data = data[os.write(2, data) :]
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return 2
