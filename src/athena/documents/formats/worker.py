"""The jailed process that reads documents: a script of the standard library, this folder and pypdfium2.

In, on descriptor 0: frames of four bytes of length and their content, first the file's name as JSON, then parts of the
file, then an empty frame. Out, on descriptor 1: frames with blocks as JSON. The host believes none of them.
"""

import importlib.util
import json
import os
import resource
import struct
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec

MAX_FRAME_BLOCKS = 2_000
MAX_FRAME_CHARS = 1_000_000


class PackageFinder:
    """Find the packages that the jail shows; their parent folders cannot be listed there."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = {os.path.basename(folder): folder for folder in folders}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._folders:
            return None
        folder = self._folders[name]
        return importlib.util.spec_from_file_location(
            name, f"{folder}/__init__.py", submodule_search_locations=[folder]
        )


def read_exactly(length: int) -> bytes:
    parts = []
    while length:
        part = os.read(0, min(length, 1 << 20))
        if not part:
            os._exit(0)  # the host has ended
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def receive_frame() -> bytes:
    return read_exactly(struct.unpack(">I", read_exactly(4))[0])


def send_frame(frame: object) -> None:
    data = json.dumps(frame).encode()
    data = struct.pack(">I", len(data)) + data
    while data:
        data = data[os.write(1, data) :]


def send_blocks(items: list[list[str | int]]) -> None:
    start = 0
    while start < len(items):
        end, chars = start, 0
        while end < len(items) and end - start < MAX_FRAME_BLOCKS and chars < MAX_FRAME_CHARS:
            chars += len(str(items[end][-1]))
            end += 1
        send_frame({"op": "done", "blocks": items[start:end]})
        start = end
    send_frame({"op": "end"})


def main(cpu_s: int, memory_mb: int, folders: list[str]) -> None:
    limits = {resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_AS: memory_mb << 20, resource.RLIMIT_CORE: 0}
    for limit, value in limits.items():
        with suppress(ValueError, OSError):  # the jail has set lower ones already
            resource.setrlimit(limit, (value, value))
    sys.meta_path.append(PackageFinder(folders))
    from formats import detect  # type: ignore[import-not-found]  # the jail shows this folder under its last name
    from formats.blocks import Refused  # type: ignore[import-not-found]

    send_frame({"op": "ready"})
    while True:
        name = json.loads(receive_frame())
        parts = []
        while part := receive_frame():
            parts.append(part)
        try:
            items = detect.read_document(name, b"".join(parts)).items
        except Refused as error:
            send_frame({"op": "refused", "reason": str(error)[:300]})
        except MemoryError:
            send_frame({"op": "refused", "reason": "it needs too much memory"})
        except RecursionError:
            send_frame({"op": "refused", "reason": "it is nested too deep"})
        except Exception as error:  # noqa: BLE001  # a reader failed on a broken file
            send_frame({"op": "refused", "reason": f"broken ({type(error).__name__})"})
        else:
            send_blocks(items)
            items.clear()
        parts.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
