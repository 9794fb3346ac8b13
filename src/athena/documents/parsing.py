"""Read files in a jailed process with limits: what a file does to its reader stays there."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from athena.core.text import make_storable
from athena.documents.formats import detect
from athena.documents.formats.blocks import (
    CODE,
    HEADING,
    MAX_BLOCKS,
    MAX_FILE_BYTES,
    MAX_TEXT_CHARS,
    PAGE,
    TEXT,
    Block,
    Refused,
)
from athena.programs.sandbox import jail
from athena.programs.sandbox.python_worker import PythonWorker, WorkerBroken
from athena.programs.sandbox.spawner import Spawner

READ_CHUNK_BYTES = 1 << 20
HEAD_BYTES = 1_024
MEMORY_MB = 1_024
CPU_S = 40  # of one worker
MAX_USED_CPU_S = 10.0  # a worker that has used more gets no further file, so that each has 30 s
WALL_S = 120.0  # of one file, where the processor is busy with others
MAX_WORKER_FILES = 500
_FORMATS_PATH = Path(__file__).with_name("formats")
_PACKAGES = ("pypdfium2", "pypdfium2_raw", "pypdfium2_cfg")
_NO_JAIL_REASON = "no jail for its format works on this machine; see athena doctor"


class DocumentParser:
    """Reads files one after another, in a worker that is replaced whenever it may be damaged or spent."""

    def __init__(self) -> None:
        self._spawner = Spawner()
        self._layers: jail.Layers | None = None
        self._worker: PythonWorker | None = None
        self._file_count = 0

    def __enter__(self) -> "DocumentParser":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_worker()
        self._spawner.close(1.0)

    def read_file(self, name: str, file: int) -> list[Block]:
        """Return the blocks of an open file; raise Refused with the reason why it cannot be read."""
        head = os.pread(file, HEAD_BYTES, 0)
        if not head:
            raise Refused("empty")
        is_native = detect.is_native(name, head)
        if is_native:
            self._end_worker()  # it may have read a file that wants to change what this one says
        worker = self._get_worker()
        if self._layers == jail.NO_LAYERS and detect.is_binary(name, head):
            raise Refused(_NO_JAIL_REASON)
        timer = threading.Timer(WALL_S, worker.handle.kill)
        timer.daemon = True
        timer.start()
        is_whole = False
        try:
            _send_file(worker, name, file)
            blocks = _receive_blocks(worker)
            is_whole = True
            return blocks
        except WorkerBroken as error:
            raise Refused(self._describe_end(worker, error)) from None
        except Refused:
            is_whole = not is_native
            raise
        finally:
            timer.cancel()
            if is_native or not is_whole:
                self._end_worker()

    def _get_worker(self) -> PythonWorker:
        """Return a worker that has read few files and has time left."""
        worker = self._worker
        if worker is not None and (self._file_count >= MAX_WORKER_FILES or worker.handle.read_cpu_s() > MAX_USED_CPU_S):
            self._end_worker()
        if self._worker is None:
            self._worker = self._spawner.run_job(self._start_worker)
            self._file_count = 0
        self._file_count += 1
        return self._worker

    def _start_worker(self) -> PythonWorker:
        """Start a worker in the strongest jail that works; without any, only text is read."""
        choices = [*jail.list_layer_choices(), jail.NO_LAYERS] if self._layers is None else [self._layers]
        folders = [str(_FORMATS_PATH), *_list_packages()]
        script = str(_FORMATS_PATH / "worker.py")
        arguments = ["-P", "-s", "-S", "-B", "-X", "utf8", script, str(CPU_S), str(MEMORY_MB), *folders]
        spec = jail.build_python_spec(arguments, cpu_s=CPU_S, memory_mb=MEMORY_MB, files=folders)
        for layers in choices:
            worker = PythonWorker(jail.build_command(spec, layers))
            try:
                worker.wait_ready()
            except WorkerBroken:
                worker.terminate()
                continue
            self._layers = layers
            return worker
        raise Refused("the process that reads documents does not start; see athena doctor")

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._spawner.run_job(self._worker.terminate)
            self._worker = None

    def _describe_end(self, worker: PythonWorker, error: WorkerBroken) -> str:
        if str(error) != "ended":
            return "its reader sent what cannot be read"
        spent = worker.handle.read_cpu_s()
        with suppress(OSError):
            worker.process.wait(1.0)
        if spent > CPU_S - MAX_USED_CPU_S - 1 or worker.process.returncode in (-24, -9):
            return f"reading it takes longer than {CPU_S - int(MAX_USED_CPU_S)} s, or more than {MEMORY_MB} MB"
        return f"its reader ended ({worker.process.returncode})"


def _list_packages() -> list[str]:
    """Return the folders of the packages that a worker may import."""
    specs = [find_spec(name) for name in _PACKAGES]
    return [os.path.dirname(spec.origin) for spec in specs if spec is not None and spec.origin is not None]


def _send_file(worker: PythonWorker, name: str, file: int) -> None:
    worker.write_frame(json.dumps(name).encode())
    position = 0
    while position <= MAX_FILE_BYTES and (chunk := os.pread(file, READ_CHUNK_BYTES, position)):
        worker.write_frame(chunk)
        position += len(chunk)
    worker.write_frame(b"")


def _receive_blocks(worker: PythonWorker) -> list[Block]:
    """Return the blocks of a file as far as they are what a reader may send."""
    blocks: list[Block] = []
    chars = 0
    while (frame := worker.read_frame()).get("op") == "done":
        for item in _list_items(frame):
            block = _check_block(item)
            chars += len(str(block[-1]))
            blocks.append(block)
            if chars > MAX_TEXT_CHARS + MAX_BLOCKS or len(blocks) > MAX_BLOCKS:
                raise WorkerBroken("too much")
    if frame.get("op") == "refused":
        raise Refused(" ".join(make_storable(str(frame.get("reason"))).split())[:300])
    if frame.get("op") != "end":
        raise WorkerBroken("an unknown frame")
    return blocks


def _list_items(frame: dict[str, Any]) -> Iterator[Any]:
    items = frame.get("blocks")
    if not isinstance(items, list):
        raise WorkerBroken("no blocks")
    yield from items


def _check_block(item: Any) -> Block:
    match item:
        case [kind, str(text)] if kind in (TEXT, CODE):
            return [kind, make_storable(text)]
        case ["heading", int(level), str(title)]:
            return [HEADING, max(1, min(level, 9)), " ".join(make_storable(title).split())]
        case ["page", int(number)]:
            return [PAGE, max(1, min(number, 1_000_000))]
    raise WorkerBroken("no block")
