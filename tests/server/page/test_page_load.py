"""Twenty pages open while an agent writes twenty times a second: nothing grows, no update is missed.

It runs with ATHENA_TEST_FULL=1, for a minute; ATHENA_TEST_PAGE_LOAD_S=600 makes it ten.
The figures are in docs/page.md.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from page_tools import Visitor

from conftest import FULL
from http_tools import RunningServer, run_server

Visit = Callable[..., Visitor]
DURATION_S = float(os.environ.get("ATHENA_TEST_PAGE_LOAD_S", "60"))
WRITES_PER_S = 20
PATHS = ("/", "/memories", "/memories", "/timeline", "/programs")  # of the tabs of each person
PEOPLE = 4
SETTLE_S = 15.0  # caches fill at the beginning
SAMPLE_INTERVAL_S = 10.0
MAX_GROWTH = 1.25  # of the memory, between the second quarter of the time and the end
COUNT_CHANGES = """() => {
  window.counted = 0;
  const channel = new BroadcastChannel(`athena-live ${document.body.dataset.project}`);
  channel.onmessage = (event) => { window.counted += event.data.count; };
}"""


def read_memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    raise AssertionError(pid)


class Agent(threading.Thread):
    """Writes at a steady rate until it is told to stop."""

    def __init__(self, server: RunningServer) -> None:
        super().__init__(daemon=True)
        self.server, self.stopping = server, threading.Event()
        self.writes, self.late, self.refused = 0, 0, 0

    def run(self) -> None:
        began = time.monotonic()
        while not self.stopping.is_set():
            text = f"Note {self.writes}: the shelf {self.writes % 97} was counted again"
            if self.server.execute("remember", {"content": text}).status != 200:  # the machine is busy: again, later
                self.refused += 1
                continue
            self.writes += 1
            ahead_s = self.writes / WRITES_PER_S - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(ahead_s)
            else:
                self.late += 1


@pytest.mark.timeout(2 * DURATION_S + 300)
@pytest.mark.skipif(not FULL, reason="takes minutes: ATHENA_TEST_FULL=1")
def test_many_pages_follow_busy_agent(visit: Visit, tmp_path: Path) -> None:
    with run_server(tmp_path) as server:
        people = [visit(server) for _ in range(PEOPLE)]
        tabs = []
        for person in people:
            person.go(PATHS[0])
            tabs += [person.page, *(person.context.new_page() for _ in PATHS[1:])]
            for tab, path in zip(tabs[-len(PATHS) :], PATHS, strict=True):
                tab.goto(person.origin + path)
        assert len(tabs) == 20
        people[0].page.wait_for_timeout(6_000)  # what happened while a page was loaded is told again: let that pass
        for tab in tabs:
            tab.evaluate(COUNT_CHANGES)
        agent = Agent(server)
        agent.start()
        began, samples = time.monotonic(), []
        while time.monotonic() - began < DURATION_S:
            people[0].page.wait_for_timeout(SAMPLE_INTERVAL_S * 1_000)
            heaps = [tab.evaluate("performance.memory.usedJSHeapSize / 1048576") for tab in tabs]
            samples.append((time.monotonic() - began, read_memory_mb(server.process.pid), max(heaps)))
        agent.stopping.set()
        agent.join(30)
        elapsed_s = time.monotonic() - began
        last = server.call("remember", content="The last note of the day, which every page shows")
        writes = agent.writes + 1
        people[0].page.wait_for_timeout(6_000)
        counts = [tab.evaluate("window.counted") for tab in tabs]
        assert counts == [writes] * len(tabs), (writes, counts)
        for tab in (tab for tab in tabs if tab.url.endswith("/memories")):
            assert f"-{last['id']}" in str(tab.locator("[data-id]").first.get_attribute("data-id"))
        later = [sample for sample in samples if sample[0] > max(SETTLE_S, DURATION_S / 4)]
        report = [
            f"{at:5.0f} s: server {server_mb:.0f} MB, largest page {page_mb:.1f} MB"
            for at, server_mb, page_mb in samples
        ]
        print(
            "\n".join(
                [
                    *report,
                    f"{writes} writes, {writes / elapsed_s:.1f} a second, {agent.late} late, {agent.refused} refused",
                ]
            )
        )
        for position in (1, 2):
            first, end = later[0][position], min(sample[position] for sample in later[-3:])
            assert end <= MAX_GROWTH * first + 5, report
