"""Time session hooks as whole processes, with and without a daemon."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from athena.core.home import daemon, lock
from athena.hooks import launcher
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, percentile

TIMES, WARM, SLOWEST, DEAD = 4, 0.100, 0.150, 0.400
HUNG_MS = 2_000
BARE = [sys.executable, "-I", "-S", "-c", "pass"]
PROMPT = "How did we deploy the last release, and what went wrong?"


def run(run: Run) -> Result:
    rounds = 10 if run.quick else 200
    home = run.stores.copy(run.ordinary)
    environ, folder = run.environment(home), create_repository(run.folder)
    hook = launcher.install_launchers(str(home))
    os.environ.update({name: value for name, value in environ.items() if name.startswith("ATHENA_")})
    daemon.start_daemon(str(home))
    try:
        for _ in range(5):
            time_hook([hook, "session-start"], environ, start_payload(folder))
        time.sleep(2 if run.quick else 10)  # until the daemon has loaded everything
        bare, warm, prompts, tools = [], [], [], []
        for _ in range(rounds):
            bare.append(time_hook(BARE, environ, b""))
            warm.append(time_hook([hook, "session-start"], environ, start_payload(folder)))
            prompts.append(time_hook([hook, "user-prompt-submit"], environ, event_payload(folder, prompt=PROMPT)))
            tools.append(time_hook([hook, "post-tool-use"], environ, event_payload(folder, tool_name="Bash")))
        slow = environ | {"ATHENA_HOOKS_TIMEOUT_MS": str(HUNG_MS)}
        hung = time_with_hung_daemon(home, hook, slow, folder, 3 if run.quick else 10)
        dead = time_without_daemon(home, hook, environ, folder, 3 if run.quick else 20)
    finally:
        daemon.start_daemon(str(home))  # another process may be starting one already
        daemon.stop_daemon(str(home))
    at_bare, at_warm = median(bare), median(warm)
    rows = [
        Row(
            "A session-start hook, warm",
            f"median at most {TIMES}x a bare `python -I -S -c pass` and under {format_ms(WARM)}",
            f"{format_ms(at_warm)}, {at_warm / at_bare:.1f}x",
            at_warm <= TIMES * at_bare and at_warm < WARM,
        ),
        Row(
            "The slowest of a hundred of them",
            f"under {format_ms(SLOWEST)}",
            format_ms(percentile(warm, 0.99)),
            percentile(warm, 0.99) < SLOWEST,
        ),
        Row(
            "The same with a dead daemon",
            f"within {format_ms(DEAD)}, with an answer",
            format_least(dead),
            median(dead) <= DEAD,
        ),
        Row(
            f"With one that hangs, and `timeout_ms` = {HUNG_MS:,}",
            "within `timeout_ms`",
            f"{format_ms(max(hung))} at most",
            max(hung) <= HUNG_MS / 1000,
        ),
    ]
    lines = [
        ("python -I -S -c pass", bare),
        ("session-start, warm", warm),
        ("user-prompt-submit, warm", prompts),
        ("post-tool-use, warm", tools),
        ("session-start, daemon dead", dead),
        (f"session-start, daemon hung, {HUNG_MS} ms", hung),
    ]
    shares = (0.0, 0.5, 0.95, 0.99)
    table = Table(
        ("process", "runs", "least", "median", "p95", "p99"),
        [(name, str(len(times)), *(format_ms(percentile(times, share)) for share in shares)) for name, times in lines],
    )
    return Result(
        "Session hooks",
        "`$ATHENA_HOME/bin/athena-hook EVENT`, the whole process with the client's JSON on its input, on "
        f"{run.ordinary:,} memories and a git repository, in turn with a bare Python, {rounds} of each. A daemon that "
        "is dead was killed right before; the hook starts another, which competes for the same cores, and answers by "
        "words meanwhile.",
        rows,
        [table],
    )


def format_least(values: Sequence[float]) -> str:
    return f"median {format_ms(median(values))}, {format_ms(max(values))} at most"


_number = iter(range(1_000_000))


def event_payload(folder: Path, **more: str) -> bytes:
    return json.dumps({"session_id": f"bench {next(_number)}", "cwd": str(folder), **more}).encode()


def start_payload(folder: Path) -> bytes:
    return event_payload(folder, hook_event_name="SessionStart", source="startup")


def time_hook(command: Sequence[str], environ: Mapping[str, str], payload: bytes, answer: bool = False) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, input=payload, env=environ, capture_output=True, check=True)
    took = time.perf_counter() - began
    assert done.stdout or not answer, done
    return took


def time_without_daemon(home: Path, hook: str, environ: Mapping[str, str], folder: Path, rounds: int) -> list[float]:
    """Kill the daemon and time the next hook."""
    times = []
    for _ in range(rounds):
        os.kill(daemon.start_daemon(str(home))["pid"], signal.SIGKILL)
        while not lock.is_home_free(str(home)):
            time.sleep(0.01)
        times.append(time_hook([hook, "session-start"], environ, start_payload(folder), answer=True))
    return times


def time_with_hung_daemon(home: Path, hook: str, environ: Mapping[str, str], folder: Path, rounds: int) -> list[float]:
    pid = daemon.start_daemon(str(home))["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        return [time_hook([hook, "session-start"], environ, start_payload(folder)) for _ in range(rounds)]
    finally:
        os.kill(pid, signal.SIGCONT)


def create_repository(parent: Path) -> Path:
    """Create a small git repository with some commits and changes."""
    folder = parent / "repository"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for number in range(6):
        (folder / f"deploy_{number}.py").write_text(f"number = {number}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"deploy step {number}"], check=True)
    (folder / "deploy_0.py").write_text("number = 99\n")
    return folder
