"""Shutdown of the server: acknowledged writes are stored, and every caller gets a reply."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from http_tools import Reply, RunningServer, read_reply, request, run_server, serve_command, server_environ
from wait_tools import LONG, wait_until

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

CALLERS = 50


class Callers:
    """Threads that store texts until the server is gone, and keep the replies."""

    def __init__(self, served: RunningServer) -> None:
        self.kept: list[str] = []
        self.refused: list[int] = []
        self.unanswered: list[str] = []
        self._served = served
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _call(self, number: int) -> None:
        for turn in range(10_000):
            text = f"caller {number} turn {turn}"
            body = json.dumps({"content": text}).encode()
            headers = [
                *self._served.auth_headers,
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
            ]
            try:
                connection = self._served.connect()
            except OSError:
                return  # the server no longer listens
            with connection:
                try:
                    connection.sendall(request("POST", "/tools/remember/execute", headers, body))
                    reply = read_reply(connection)
                except OSError:
                    reply = None
            if reply is None or reply.status == 0:
                self.unanswered.append(text)
                return
            if reply.status != 200:
                self.refused.append(reply.status)
                return
            self.kept.append(text)


def read_texts(home: Path) -> list[str]:
    """Read all texts in another process."""
    made: list[str] = []
    while True:
        words = [sys.executable, "-m", "athena", "call", "list_memories", "--json"]
        words.append(json.dumps({"k": 1000, "offset": len(made)}))
        done = subprocess.run(words, env=server_environ(home), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        some = [one["content"] for one in json.loads(done.stdout)]
        made += some
        if not some:
            return made


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_acknowledged_text_survives_shutdown(tmp_path: Path, how: signal.Signals) -> None:
    with run_server(tmp_path) as served:
        callers = Callers(served)
        callers.start()
        wait_until(lambda: len(callers.kept) >= 2 * CALLERS)
        served.process.send_signal(how)
        assert served.process.wait(timeout=LONG) == 0
        callers.join()
    assert set(callers.refused) <= {503}
    kept = read_texts(served.home)
    assert len(kept) == len(set(kept))
    assert set(callers.kept) <= set(kept)
    assert not set(kept) & set(callers.unanswered), "kept, but its caller was not told"
    log = served.log.read_text()
    assert '"stopped"' in log
    assert "Traceback" not in log
    assert not (served.home / "athena.sock").exists()
    assert (served.home / "server.json").read_text() == ""


def test_killed_servers_home_is_reusable(tmp_path: Path) -> None:
    with run_server(tmp_path) as first:
        memory = first.call("remember", content="before the kill")
        first.process.kill()
        first.process.wait(timeout=LONG)
        with run_server(tmp_path, home=first.home) as second:
            assert second.token == first.token
            assert second.call("get_memory", memory_id=memory["hash"])["content"] == "before the kill"


def test_unfinished_calls_are_told_on_shutdown(tmp_path: Path) -> None:
    with run_server(tmp_path, command=serve_command("athena.server.serve.DRAIN_TIMEOUT_S = 1")) as served:
        items = [f"note {number}, which the model has to read before it is kept" for number in range(3_000)]
        body = json.dumps({"items": items}).encode()
        headers = [*served.auth_headers, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        callers = [served.connect() for _ in range(5)]
        for caller in callers:
            caller.sendall(request("POST", "/tools/remember_batch/execute", headers, body))
        assert served.get("/info").status == 200  # the server has read the earlier requests by now
        time.sleep(0.5)
        served.process.terminate()
        replies: list[Reply] = [read_reply(caller) for caller in callers]
        for caller in callers:
            caller.close()
    assert {reply.status for reply in replies} <= {200, 503}
    assert 503 in {reply.status for reply in replies}
    assert all(reply.error["code"] == "unavailable" for reply in replies if reply.status == 503)
    assert "Traceback" not in served.log.read_text()


def test_signal_during_log_write_stops_server(tmp_path: Path) -> None:
    script = """
import io, os, signal, sys

class Pipe(io.RawIOBase):
    def writable(self):
        return True

    def write(self, line):
        if b"/info" in bytes(line):
            os.kill(os.getpid(), signal.SIGTERM)  # handled before this returns
        return os.write(2, line)

sys.stderr = io.TextIOWrapper(io.BufferedWriter(Pipe()))
from athena.cli import main
main()
"""
    with run_server(tmp_path, command=[sys.executable, "-c", script, "serve"]) as served:
        served.get("/info")
        assert served.process.wait(timeout=LONG) == 0
    said = [json.loads(line).get("event") for line in (tmp_path / "server.log").read_text().splitlines()]
    assert said[-2:] == ["stopping", "stopped"]
