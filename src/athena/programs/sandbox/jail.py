"""The jail: operating system layers around a worker process.

This module decides what a worker may read and which layers to try, strongest first. `jail_launcher.py` sets them up,
in the process that becomes the worker. An engine tries the choices in order until a worker answers, and requires those
layers from then on: the launcher refuses to start a worker without all of them.
"""

import os
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import TypedDict

Layers = tuple[str, ...]

LINUX_LAYERS: tuple[Layers, ...] = (
    ("ns", "landlock", "seccomp"),
    ("landlock", "seccomp"),
    ("ns", "seccomp"),
    ("bwrap", "seccomp"),
)
MACOS_LAYERS: tuple[Layers, ...] = (("sandbox-exec",),)
NO_LAYERS: Layers = ()  # nothing but the interpreter's own checks

_LAUNCHER_PATH = Path(__file__).with_name("jail_launcher.py")
# The libraries of the Monty binary; `_read_linker` finds its dynamic linker.
_MONTY_LIBRARIES = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "librt.so.1")
_ZONEINFO_PATH = "/usr/share/zoneinfo"
# macOS cannot forbid all reads: every process maps the shared cache of system libraries.
_MACOS_PROFILE_TEMPLATE = """(version 1)(deny default)(allow process-exec (literal {binary}))(allow sysctl-read)
(allow file-read* (literal {binary}) (subpath "/usr/lib") (subpath "/System/Library") {readable})
(allow file-read-metadata)(allow file-read-data file-write-data (literal "/dev/null") (literal "/dev/urandom"))"""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The command of a worker, the files that it may read, and its limits."""

    profile: str  # of system calls: monty or python
    argv: tuple[str, ...]  # the binary and its arguments
    readable: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    cpu_s: int = 60
    memory_mb: int = 2048


class JailAttempt(TypedDict):
    layers: list[str]
    works: bool
    why: str


class JailReport(TypedDict):
    layers: list[str]  # of the strongest jail that works; empty if none does
    tried: list[JailAttempt]


def list_layer_choices() -> tuple[Layers, ...]:
    """Return the jails that this machine may support, strongest first."""
    if sys.platform == "darwin":
        return MACOS_LAYERS
    return LINUX_LAYERS if which("bwrap") else LINUX_LAYERS[:-1]


def probe_layers() -> JailReport:
    """Try every jail with the Python that runs programs, and report the results for `athena doctor`."""
    spec = build_python_spec(("-I", "-S", "-B", "-c", "pass"))
    attempts: list[JailAttempt] = []
    for layers in list_layer_choices():
        command = build_command(spec, layers)
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False, env={}
        )
        why = process.stderr.decode(errors="replace").strip()[-200:]
        if "No module named 'encodings'" in why:
            why = "Python cannot read its own library there: it is below a folder that only its owner may enter"
        if process.returncode and not why:
            why = f"the worker ended with {process.returncode}"
        attempts.append({"layers": list(layers), "works": process.returncode == 0, "why": why})
    best = next((attempt["layers"] for attempt in attempts if attempt["works"]), [])
    return {"layers": best, "tried": attempts}


# --- readable files --------------------------------------------------------------------------------------------


def build_monty_spec(binary: str, *, cpu_s: int = 3600, memory_mb: int = 2048) -> WorkerSpec:
    """Let Monty see the libraries that it is linked to and the time zones."""
    libraries = [
        str(folder / name)
        for name in _MONTY_LIBRARIES
        for folder in _list_library_folders()
        if (folder / name).exists()
    ]
    firsts = {Path(path).name: path for path in reversed(libraries)}
    readable = [*_read_linker(binary), *firsts.values(), _ZONEINFO_PATH]
    return WorkerSpec("monty", (binary,), _filter_existing(readable), cpu_s=cpu_s, memory_mb=memory_mb)


def build_python_spec(
    arguments: Sequence[str], *, cpu_s: int = 10, memory_mb: int = 512, files: Iterable[str] = ()
) -> WorkerSpec:
    """Let CPython see its standard library, what that is linked to, and the time zones; no installed packages."""
    binary = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    standard = os.path.dirname(os.__file__)
    extensions = [path for path in sys.path if path.endswith("lib-dynload") and not path.startswith(standard + os.sep)]
    own = [path for path in _list_mapped_files() if "libpython" in path]
    readable = [
        *_read_linker(binary),
        *map(str, _list_library_folders()),
        *own,
        standard,
        *extensions,
        _ZONEINFO_PATH,
        *files,
    ]
    hidden = tuple(f"{standard}/{name}" for name in ("site-packages", "dist-packages"))
    return WorkerSpec("python", (binary, *arguments), _filter_existing(readable), hidden, cpu_s, memory_mb)


def _filter_existing(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in dict.fromkeys(paths) if os.path.exists(path))


@cache
def _list_mapped_files() -> tuple[str, ...]:
    """Return the files that this process, the same Python, is made of."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return tuple(dict.fromkeys(line.split(maxsplit=5)[5].rstrip() for line in maps if ".so" in line))
    return ()


@cache
def _list_library_folders() -> tuple[Path, ...]:
    names = ("libc.so", "libc-", "ld-linux", "ld-musl", "libgcc_s", "libm.so")
    folders = [Path(path).parent for path in _list_mapped_files() if Path(path).name.startswith(names)]
    packaged = [folder for folder in dict.fromkeys(folders) if "site-packages" not in folder.parts]
    return tuple(packaged)


@cache
def _read_linker(binary: str) -> list[str]:
    """Read from a 64-bit ELF file which dynamic linker it asks for."""
    with suppress(OSError, struct.error), open(binary, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            return []
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for index in range(count):
            file.seek(offset + index * size)
            entry = file.read(size)
            if struct.unpack_from("<I", entry)[0] == 3:  # PT_INTERP
                start, length = struct.unpack_from("<Q", entry, 8)[0], struct.unpack_from("<Q", entry, 32)[0]
                file.seek(start)
                return [file.read(length).rstrip(b"\0").decode()]
    return []


# --- start -----------------------------------------------------------------------------------------------------


def build_command(spec: WorkerSpec, layers: Layers, *, check: bool = False) -> list[str]:
    """Return the command that starts a worker in this jail, or fails."""
    if layers == NO_LAYERS:
        return list(spec.argv)
    if "sandbox-exec" in layers:
        return ["/usr/bin/sandbox-exec", "-p", _format_macos_profile(spec), *spec.argv]
    python = getattr(sys, "_base_executable", None) or sys.executable
    launcher_layers = [layer for layer in layers if layer != "bwrap"]
    command = [python, "-I", "-S", "-B", str(_LAUNCHER_PATH), "--profile", spec.profile]
    command += ["--layers", ",".join(launcher_layers)]
    command += ["--cpu", str(spec.cpu_s), "--memory", str(spec.memory_mb)]
    if "bwrap" in layers:
        return [*_build_bwrap_argv(spec), *command, *(["--check"] if check else []), "--", *spec.argv]
    for path in spec.readable:
        command += ["--ro", path]
    for path in spec.hidden:
        command += ["--hide", path]
    return [*command, *(["--check"] if check else []), "--", *spec.argv]


def _build_bwrap_argv(spec: WorkerSpec) -> list[str]:
    """Return the bubblewrap command that the launcher runs inside; it may be allowed namespaces where we are not."""
    command = [which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    command += ["--uid", "65534", "--gid", "65534", "--clearenv", "--chdir", "/"]
    for path in _filter_existing(
        [*build_python_spec(()).readable, *build_python_spec(()).argv, *spec.readable, spec.argv[0]]
    ):
        command += ["--ro-bind", os.path.realpath(path), path]
    command += ["--ro-bind", str(_LAUNCHER_PATH), str(_LAUNCHER_PATH)]
    for path in spec.hidden:
        if os.path.isdir(path):
            command += ["--tmpfs", path]
    return [*command, "--"]


def _format_macos_profile(spec: WorkerSpec) -> str:
    readable = " ".join(f'(subpath "{path}")' for path in spec.readable)
    return _MACOS_PROFILE_TEMPLATE.format(binary=f'"{spec.argv[0]}"', readable=readable)


class LaunchScript:
    """An executable file that runs a command, for Monty, which takes only a path."""

    def __init__(self, command: Sequence[str]) -> None:
        script = f'#!/bin/sh\nexec {shlex.join(command)} "$@" 2>/dev/null\n'.encode()
        self._descriptor = -1
        self._file: Path | None = None
        try:
            self.path = self._write_memfd(script)
        except (OSError, AttributeError):  # not Linux, or forbidden there
            self.path = self._write_temp_file(script)

    def _write_memfd(self, script: bytes) -> str:
        # Needs no cleanup, and works where /tmp is mounted noexec.
        written = os.memfd_create("athena-jail")
        try:
            os.write(written, script)
            os.fchmod(written, 0o500)
            self._descriptor = os.open(f"/proc/self/fd/{written}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(written)  # the kernel executes no file that is open for writing
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def _write_temp_file(self, script: bytes) -> str:
        descriptor, path = tempfile.mkstemp(prefix="athena-jail-")
        os.write(descriptor, script)
        os.fchmod(descriptor, 0o500)
        os.close(descriptor)
        self._file = Path(path)
        return path

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._file is not None:
            self._file.unlink(missing_ok=True)
