"""Describe the machine, the versions and the load during a run."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


def describe_machine() -> list[tuple[str, str]]:
    """Return the machine, the versions and the commit."""
    import apsw

    return [
        ("date", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("commit", _commit()),
        ("CPU", f"{_cpu()}, {os.cpu_count()} cores"),
        ("system", f"{platform.system()} {platform.machine()}"),
        ("Python", platform.python_version()),
        ("SQLite", f"{apsw.sqlite_lib_version()} (apsw {version('apsw')})"),
        ("onnxruntime", version("onnxruntime")),
        ("numpy", version("numpy")),
    ]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src")
        return git("rev-parse", "--short", "HEAD") + (" with uncommitted changes in src" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (not a git checkout)"


class Load(NamedTuple):
    """Measure how busy other processes keep the machine during a run."""

    at: float
    busy: float | None  # CPU seconds of all processes
    ours: float

    @classmethod
    def now(cls) -> "Load":
        t = os.times()
        return cls(time.perf_counter(), _busy(), t.user + t.system + t.children_user + t.children_system)

    def since(self, before: "Load") -> str:
        """Describe the share of CPU time that other processes took."""
        if self.busy is None or before.busy is None:
            return "other jobs' load unknown"
        others = max(0.0, (self.busy - before.busy) - (self.ours - before.ours))
        share = others / max(1e-6, (self.at - before.at) * (os.cpu_count() or 1))
        return f"other jobs took {min(1.0, share):.0%} of all cores meanwhile"


def _busy() -> float | None:
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
