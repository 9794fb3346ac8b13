"""A working day's traffic against one server, compressed: memory, descriptors, files and logs must stay flat."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import growth

from athena.client import AthenaClient
from athena.core.home import lock
from athena.errors import AthenaError
from athena.hooks import launcher
from campaign.model import Findings
from campaign.result import Failure, Tally
from campaign.work import WORDS

PROJECT = "bench"
MEMORIES = 10_000
CALLS_PER_DAY = 14_400  # eight hours, a call every two seconds
FULL_DAY_S = 1_800.0  # into which a day is compressed; less time makes a shorter day
CALLERS = 4
SAMPLE_INTERVAL_S = 1.0
START_TIMEOUT_S = 60.0
IDLE_S = 100.0  # after the day; the server frees what was not used for a minute, then gives memory back
MAX_GROWN_BYTES = 16 * 2**20
MAX_IDLE_BYTES = 200 * 2**20
MAX_GROWN_FILES = 4  # descriptors, and files of the data folder
MAX_LOG_BYTES = 4 * 2**20
PROGRAM = """
hits = memory.recall(query="{word}", k=20)
memory.remember(content="{word} number {number} was counted: " + str(len(hits)), tags=["counted"])
len(hits)
"""


class Sample(NamedTuple):
    at: float
    memory: int
    descriptors: int
    threads: int
    files: int
    logs: int

    @classmethod
    def take(cls, pid: int, home: Path) -> "Sample":
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        files = [file for file in home.rglob("*") if file.is_file()]
        logs = sum(file.stat().st_size for file in files if ".log" in file.name)
        memory = int(status["VmRSS"].split()[0]) * 1024
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return cls(time.monotonic(), memory, descriptors, int(status["Threads"]), len(files), logs)


class Day:
    seconds = 0.0
    memories, calls, idle_s = MEMORIES, CALLS_PER_DAY, IDLE_S
    is_judged = True

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._environment = {"ATHENA_HOME": str(self.home), "ATHENA_PROJECT": PROJECT}
        self._samples: list[Sample] = []
        self._errors: list[str] = []

    def make_small(self) -> None:
        """Make few calls, whose memory says nothing."""
        self.memories, self.calls, self.idle_s, self.seconds = 0, 60, 0.0, 1.0
        self.is_judged = False

    def run_round(self, seed: int, tally: Tally) -> None:
        self.home.mkdir(parents=True, mode=0o700)
        os.environ.update(self._environment)  # also this process stores in the project, and reads the token
        if self.memories:
            growth.grow(self.home, 0, self.memories)
        server = self._start_server()
        try:
            client = AthenaClient(self._url, project=PROJECT, timeout=120)
            done = self._make_calls(client, server.pid, seed)
            client.close()
            time.sleep(self.idle_s)
            idle = Sample.take(server.pid, self.home)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        tally.add(rounds=1, acknowledged=done)
        tally.notes.append(self._describe(idle))
        if self.is_judged and (grown := self._find_growth(idle)):
            raise Failure(Findings(grown=tuple(grown)))
        if self._errors:
            raise Failure(Findings(raw=tuple(self._errors[:20])))

    def _start_server(self) -> "subprocess.Popen[bytes]":
        launcher.install_launchers(str(self.home))
        (self.home / "logs").mkdir(exist_ok=True)
        with open(self.home / "logs" / "serve.log", "wb") as log:
            command = [sys.executable, "-m", "athena", "serve", "--port", "0"]
            server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.home)
        deadline = time.monotonic() + START_TIMEOUT_S
        while (info := lock.find_server(str(self.home))) is None:
            if time.monotonic() > deadline:
                raise RuntimeError((self.home / "logs" / "serve.log").read_text())
            time.sleep(0.05)
        self._url = str(info["url"])
        return server

    def _make_calls(self, client: AthenaClient, pid: int, seed: int) -> int:
        """Make a day's calls on a few threads, spread over the time; return how many succeeded."""
        rng = random.Random(seed)
        words = [" ".join(rng.sample(WORDS, 4)) for _ in range(200)]
        count = min(self.calls, max(60, round(self.calls * self.seconds / FULL_DAY_S)))
        calls = iter([_choose_call(rng, number, count, words, self.home, client) for number in range(count)])
        interval_s = max(0.0, self.seconds - self.idle_s) / count
        guard, began, done, begun = threading.Lock(), time.monotonic(), 0, 0

        def make_calls() -> None:
            nonlocal done, begun
            while True:
                with guard:
                    call = next(calls, None)
                    due = began + begun * interval_s
                    begun += 1
                if call is None:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    call()
                except AthenaError as error:
                    self._errors.append(f"{error!r}")
                done += 1

        threads = [threading.Thread(target=make_calls) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self._samples.append(Sample.take(pid, self.home))
            time.sleep(SAMPLE_INTERVAL_S)
        return done - len(self._errors)

    def _find_growth(self, idle: Sample) -> list[str]:
        second, last = _split(self._samples)
        grown: list[str] = []
        if (more := _median(last, "memory") - _median(second, "memory")) > MAX_GROWN_BYTES:
            grown.append(f"memory by {more / 2**20:.0f} MB")
        others = {name: _median(last, name) - _median(second, name) for name in ("descriptors", "threads", "files")}
        grown += [f"{name} by {more:.0f}" for name, more in others.items() if more > MAX_GROWN_FILES]
        if idle.logs > MAX_LOG_BYTES:
            grown.append(f"logs to {idle.logs} bytes")
        if idle.memory > MAX_IDLE_BYTES:
            grown.append(f"memory to {idle.memory / 2**20:.0f} MB when idle")
        return grown

    def _describe(self, idle: Sample) -> str:
        second, last = _split(self._samples)
        peak = max(sample.memory for sample in self._samples) / 2**20
        parts = [
            f"{_median(second, name) / size:.{places}f} to {_median(last, name) / size:.{places}f}{unit} {what}"
            for name, size, places, unit, what in (
                ("memory", 2**20, 0, " MB", "of memory"),
                ("descriptors", 1, 0, "", "descriptors"),
                ("threads", 1, 0, "", "threads"),
                ("files", 1, 0, "", "files"),
                ("logs", 1024, 0, " KB", "of logs"),
            )
        ]
        return f"second quarter to last: {'; '.join(parts)}; {peak:.0f} MB at most, {idle.memory / 2**20:.0f} MB idle"


def _split(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the second and the last quarter; in the first the server loads what it needs."""
    quarter = max(1, len(samples) // 4)
    return samples[quarter : 2 * quarter] or samples, samples[-quarter:]  # a quick day may have one sample


def _median(samples: list[Sample], name: str) -> float:
    return float(statistics.median(getattr(sample, name) for sample in samples))


def _choose_call(
    rng: random.Random, number: int, count: int, words: list[str], home: Path, client: AthenaClient
) -> Callable[[], Any]:
    word, chance = rng.choice(words), rng.random()
    if number % (count // 8) == count // 16:  # each hour of the day
        return lambda: client.call_tool("consolidate", strategy="balanced")
    if number % (count // 4) == count // 5:
        return lambda: client.call_tool("verify")
    if chance < 0.40:
        return lambda: client.call_tool("recall", query=word, k=rng.choice((5, 20)))
    if chance < 0.60:
        return lambda: client.call_tool("remember", content=f"{word}, said at {number}", tags=["day"])
    if chance < 0.61:
        return lambda: client.call_tool("remember_batch", items=[f"{word} {number} {i}" for i in range(20)])
    if chance < 0.70:
        return lambda: client.call_tool("forget_by_tag", tags=f"none{number}", expect=0)
    if chance < 0.85:
        name = rng.choice(("list_memories", "stats", "list_tags", "health", "expertise", "briefing"))
        return lambda: client.call_tool(name)
    if chance < 0.90:
        return lambda: client.call_tool("execute_code", code=PROGRAM.format(word=word.replace('"', ""), number=number))
    event = {"session_id": f"s{number // 50}", "prompt": word, "cwd": str(home), "hook_event_name": "UserPromptSubmit"}
    return lambda: _run_hook(home, event)


def _run_hook(home: Path, event: dict[str, Any]) -> None:
    command = [str(home / "bin" / "athena-hook"), "user-prompt-submit"]
    subprocess.run(command, input=json.dumps(event).encode(), capture_output=True, timeout=60, check=True)


@contextmanager
def open_rounds(folder: Path) -> Generator[Day]:
    yield Day(folder)
