"""Kill a server under clients of HTTP, MCP programs and hooks; what it has acknowledged is there once."""

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from athena.client import AthenaClient
from athena.core.home import lock
from athena.errors import AthenaError, Unavailable
from athena.hooks import launcher
from athena.operations import CATALOG
from athena.storage.sqlite.store import Sqlite
from campaign.kills import BATCH_SIZE, MAX_STEPS, ROUNDS_PER_STORE, letters, wait_for_work
from campaign.model import Model, format_state
from campaign.processes import PROJECT, Child, do_upkeep, fork_child, open_app
from campaign.result import Failure, Tally
from campaign.work import FileJournal, Writer

CLIENT_TIMEOUT_S = 6.0
START_TIMEOUT_S = 60.0
PROTOCOL = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "campaign", "version": "1"}}


class SurfaceKills:
    seconds = 0.0
    max_journal_bytes = 60_000

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._rounds = 0
        self._model = Model()

    def make_small(self) -> None:
        self.max_journal_bytes = 8_000

    def run_round(self, seed: int, tally: Tally) -> None:
        rng = random.Random(seed)
        if self._rounds % ROUNDS_PER_STORE == 0:
            self._model = Model()
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir(parents=True, mode=0o700)
            os.environ.update(ATHENA_HOME=str(self.home), ATHENA_PROJECT=PROJECT)
            launcher.install_launchers(str(self.home), timeout_ms=2_000)
        self._rounds += 1
        server = fork_child(self.home / f"server-{seed}", self._serve)
        url = self._wait_for_server(server)
        writers = self._start_writers(rng, seed, url)
        wait_for_work(writers, rng.randrange(self.max_journal_bytes))
        server.kill()
        kills, restarts = 1, 0
        server.wait()
        if rng.random() < 0.5:  # the clients go on with the next server
            server = fork_child(self.home / f"server-{seed}-again", self._serve)
            self._wait_for_server(server)
            restarts = 1
            wait_for_work(writers, rng.randrange(2 * self.max_journal_bytes))
        for child in rng.sample([*writers, server], len(writers) + 1):
            child.kill()
            kills += 1
        before = self._model.acknowledged
        for child in (*writers, server):
            with suppress(ChildProcessError):
                child.wait()
        journals = [self.home / f"server-{seed}", self.home / f"server-{seed}-again"]
        for journal in (*journals, *(child.journal for child in writers)):
            if journal.exists():
                self._model.read_journal(journal)
        tally.add(rounds=1, kills=kills, restarts=restarts, acknowledged=self._model.acknowledged - before)
        app = open_app(Sqlite(self.home / "athena.db"))
        try:
            findings = self._model.compare(app)
        finally:
            app.close()
        if findings:
            raise Failure(findings)

    def _serve(self, _: FileJournal) -> None:
        from athena.server.serve import AthenaServer

        with open(self.home / "serve.log", "a", encoding="utf-8") as sys.stderr:
            app = open_app(Sqlite(self.home / "athena.db"))
            AthenaServer(app, str(self.home), PROJECT, "127.0.0.1", 0, auth=True, hosts=()).run()

    def _wait_for_server(self, server: Child) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (info := lock.find_server(str(self.home))) is None or info["pid"] != server.pid:
            if time.monotonic() > deadline or server.has_ended():
                raise RuntimeError("the server did not start: " + (self.home / "serve.log").read_text()[-2_000:])
            time.sleep(0.01)
        return str(info["url"])

    def _start_writers(self, rng: random.Random, seed: int, url: str) -> list[Child]:
        works: list[Callable[[FileJournal], None]] = [
            self._write_by_http(url, f"h{letters(seed)}", rng.randrange(2**32)),
            self._write_by_mcp(f"m{letters(seed)}", rng.randrange(2**32)),
        ]
        if rng.random() < 0.3:
            works.append(self._send_hooks(f"e{letters(seed)}", rng.randrange(2**32)))
        if rng.random() < 0.2:
            open_store = lambda: Sqlite(self.home / "athena.db")  # noqa: E731
            works.append(do_upkeep(open_store, self.home, rng.randrange(2**32), MAX_STEPS))
        return [fork_child(self.home / f"journal-{seed}-{i}", work) for i, work in enumerate(works)]

    def _write_by_http(self, url: str, name: str, seed: int) -> Callable[[FileJournal], None]:
        def work(journal: FileJournal) -> None:
            client = AthenaClient(url, project=PROJECT, timeout=CLIENT_TIMEOUT_S)
            writer = Writer(name, random.Random(seed), client.call_tool, journal, BATCH_SIZE)
            for _ in range(MAX_STEPS):
                if not writer.take_step() and (info := lock.find_server(str(self.home))) is not None:
                    client = AthenaClient(str(info["url"]), project=PROJECT, timeout=CLIENT_TIMEOUT_S)
                    writer.call = client.call_tool

        return work

    def _write_by_mcp(self, name: str, seed: int) -> Callable[[FileJournal], None]:
        def work(journal: FileJournal) -> None:
            connection = McpClient(self.home)
            writer = Writer(name, random.Random(seed), connection.run_program, journal, BATCH_SIZE)
            # a program's answer is a text for a model, without ids
            kinds = ("remember_batch", "remember", "create_entities", "write_file")
            writer.steps = {kind: writer.steps[kind] for kind in kinds}
            for _ in range(MAX_STEPS):
                if not writer.take_step():
                    connection.close()
                    time.sleep(0.05)

        return work

    def _send_hooks(self, name: str, seed: int) -> Callable[[FileJournal], None]:
        """Send prompts; a hook promises nothing, so each may be there once."""

        def work(journal: FileJournal) -> None:
            rng = random.Random(seed)
            for number in range(MAX_STEPS):
                key = f"key{name}{number}"
                text = f"{key} how do we deploy the {rng.choice(('lamp', 'harbour', 'parser'))}?"
                journal.begin({key: format_state(text, (), "prompt")})
                event = {"session_id": f"s{name}", "prompt": text, "cwd": str(self.home)}
                command = [str(self.home / "bin" / "athena-hook"), "user-prompt-submit"]
                subprocess.run(command, input=json.dumps(event).encode(), capture_output=True, timeout=60, check=True)

        return work


class McpClient:
    """Runs operations in programs, over the socket that `athena mcp` uses."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lines: Any = None
        self._numbers = itertools.count(1)

    def run_program(self, name: str, /, **arguments: Any) -> list[dict[str, Any]] | dict[str, Any]:
        code = f"{CATALOG.get_operation(name).path}(**{arguments!r})\n'all of it'"
        try:
            if self._lines is None:
                self._connect()
            answer = self._ask("tools/call", name="execute_code", arguments={"code": code})
        except (OSError, ValueError) as error:
            self.close()
            raise Unavailable(f"the connection was lost: {error}") from None
        if answer.get("isError") or "all of it" not in answer["content"][0]["text"]:
            raise AthenaError(str(answer))
        return [{"id": 0}] * len(arguments["items"]) if "items" in arguments else {"id": 0}

    def close(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            with suppress(OSError):  # it sends what it still has
                lines.close()

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CLIENT_TIMEOUT_S)
        connection.connect(str(self._home / "mcp.sock"))
        self._lines = connection.makefile("rwb")
        connection.close()  # the file keeps it
        self._send({"tools": "default", "project": PROJECT})
        self._read()
        self._ask("initialize", **PROTOCOL)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        while (message := self._read()).get("id") != number:
            pass
        if "error" in message:
            raise AthenaError(str(message["error"]))
        return dict(message["result"])

    def _send(self, message: dict[str, Any]) -> None:
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("it was closed")
        return dict(json.loads(line))


@contextmanager
def open_rounds(folder: Path) -> Generator[SurfaceKills]:
    before = {name: os.environ.get(name) for name in ("ATHENA_HOME", "ATHENA_PROJECT")}
    try:
        yield SurfaceKills(folder)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
