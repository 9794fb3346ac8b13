"""Log files of bounded size. Standard library only."""

import os
from contextlib import suppress

from athena.core.files import create_private_folder

LOG_FOLDER = "logs"
MAX_LOG_BYTES = 1 << 20  # the previous file is kept with the suffix .1


class StderrLog:
    """A log file that replaces standard error, for native code too, and is rotated when it is full."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, home: str, name: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        folder = os.path.join(home, LOG_FOLDER)
        create_private_folder(folder)
        self.path, self._max_bytes = os.path.join(folder, name), max_bytes
        self._open_file()

    def _open_file(self) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(file, 2)  # native code writes to the descriptor, not to sys.stderr
        os.close(file)

    def write(self, text: str) -> int:
        if os.fstat(2).st_size > self._max_bytes:
            with suppress(OSError):  # the file was removed: go on with the old descriptor
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
