"""Files, sockets and texts that no program may reach."""

import base64
import gzip
import os
import secrets
import socket
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

CANARY_WORDS = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron"),
    *("inlet", "juniper", "kelp", "lilac", "maple", "nectar", "otter", "pine"),
)


class Traps:
    """Files, sockets and texts that no program may reach; each text is a canary of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.leak = f"leak-{secrets.token_hex(8)}"  # what programs send to listeners
        self._canaries: dict[str, str] = {}
        self.file = folder / "secret.txt"
        self.file.write_text(f"the secret canary is {self.canary('file')}\n")
        self.file.chmod(0o666)
        inner = folder / "folder"
        self._fill_folder(inner)
        self.project_template = folder / "template"
        self._fill_project(self.project_template)
        self.projects = folder / "projects"
        self.projects.mkdir()
        self.received: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self.tcp, self.udp = self._listen(), self._receive_datagrams()
        self.socket_path = folder / "trap.sock"
        self.abstract = f"athena-trap-{secrets.token_hex(4)}"
        for address in (str(self.socket_path), "\0" + self.abstract):
            self._accept(socket.socket(socket.AF_UNIX), address)
        self.socket_path.chmod(0o777)

    def canary(self, kind: str) -> str:
        # plain words: redaction would take random characters for a key, and remove them before anybody can leak them
        words = "-".join(secrets.choice(CANARY_WORDS) for _ in range(5))
        return self._canaries.setdefault(kind, f"canary-{kind}-{words}")

    def add_secret(self, kind: str, text: str) -> None:
        self._canaries[kind] = text

    def _fill_folder(self, folder: Path) -> None:
        folder.mkdir()
        text = f"secret {self.canary('folder')}"
        for name in ("inside.txt", "config.ini", ".netrc"):
            (folder / name).write_text(f"[x]\nmachine a login b password {text}\n")
        for name in ("code.py", "code_of_a_stranger.py"):
            (folder / name).write_text(f"SECRET = {text!r}\n")
        with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
            archive.writestr("inside.txt", text)
        (folder / "inside.gz").write_bytes(gzip.compress(text.encode()))
        os.mkfifo(folder / "pipe")

    def _fill_project(self, folder: Path) -> None:
        for name in (".ssh", ".git", "notes"):
            (folder / name).mkdir(parents=True)
        (folder / "readme.md").write_text("# A project\n\nThe deploy is on Friday.\n")
        text = f"the secret canary is {self.canary('hidden')}\n"
        for name in (".env", ".netrc", ".ssh/id_ed25519", ".git/config", "id_rsa", "secrets.json", "notes/.hidden.md"):
            (folder / name).write_text(text)
        os.symlink(self.file, folder / "link.txt")
        os.symlink(self.folder / "folder", folder / "folder")
        os.mkfifo(folder / "pipe")

    def _listen(self) -> int:
        listening = socket.socket()
        self._accept(listening, ("127.0.0.1", 0))
        return int(listening.getsockname()[1])

    def _accept(self, listening: socket.socket, address: Any) -> None:
        listening.bind(address)
        listening.listen()
        self._sockets.append(listening)

        def accept_all() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connection.settimeout(1)
                    with connection, suppress(OSError):
                        self.received.append(b"connected " + connection.recv(1_000))

        threading.Thread(target=accept_all, daemon=True).start()

    def _receive_datagrams(self) -> int:
        receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiving.bind(("127.0.0.1", 0))
        self._sockets.append(receiving)

        def receive_all() -> None:
            with suppress(OSError):
                while True:
                    self.received.append(b"datagram " + receiving.recv(1_000))

        threading.Thread(target=receive_all, daemon=True).start()
        return int(receiving.getsockname()[1])

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def find_leaks(self, answer: bytes) -> Iterator[str]:
        """Name each canary that stands in an answer, plainly or in a common encoding."""
        for kind, text in self._canaries.items():
            raw = text.encode()
            forms = [raw, raw[::-1], raw.hex().encode(), base64.b32encode(raw)]
            # Base64 of a text inside another depends on where it stands; the outer letters depend on its neighbours.
            forms += [base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
            if any(form in answer for form in forms):
                yield f"the answer holds the canary {kind}"

    def find_damage(self) -> Iterator[str]:
        if self.received:
            yield f"a listener received {self.received[:3]}"
        if self.canary("file") not in self.file.read_text() or self.file.stat().st_mode & 0o777 != 0o666:
            yield "the file was changed"
        for path in Path("/tmp").glob(f"{self.out_prefix}*"):
            yield f"{path} was created"

    @property
    def out_prefix(self) -> str:
        return f"athena-escaped-{self.leak[-8:]}"
