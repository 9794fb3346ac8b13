"""A real server with traps around it, and the verdict on each attack: what it reached, and what it cost the server."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from attack_set import NUMBERS, Attack
from attack_traps import Traps

from http_tools import RunningServer, server_environ, stop_process
from tool_vectors import give_tool_vectors
from wait_tools import LONG, wait_until

NOBODY = 65534
ENDS = {"done", "failed", "needs_approval", "unknown"}
LIMIT_TIMEOUT_S = 0.8  # of programs that only a limit ends
TIMEOUT_S = 15.0
VALUE_TIMEOUT_S = 5.0  # values with one hash compute until then
MAX_HEALTH_CPU_S = 1.0  # of the server, from a question for its health to the answer
MAX_ATTACK_CPU_S = 3.0  # of the server, for one value from start to end
MAX_ATTACK_MB = 400  # more memory than before, at the peak
MAX_SERVER_BYTES = 8 << 30  # of address space: an attack must not take the machine with it
OTHER_PROJECT = "other people"
SHIPPED_SKILL = "weekly_summary"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cell:
    """A kind of jail, and who runs the server."""

    name: str
    layers: tuple[tuple[str, ...], ...] | None = None  # None: the strongest
    bare: bool = False
    user: int | None = None
    shared_python: bool = False  # needs a Python that every user can read


CELLS = (
    Cell("namespaces+landlock+seccomp", (("ns", "landlock", "seccomp"),)),
    Cell("landlock+seccomp", (("landlock", "seccomp"),), shared_python=True),
    Cell("namespaces+seccomp", (("ns", "seccomp"),)),
    Cell("bwrap+seccomp", (("bwrap", "seccomp"),)),
    Cell("another user", None, user=NOBODY, shared_python=True),
    Cell("bare Monty", (), bare=True),
)


class CannotHave(Exception):
    """This machine has no such jail."""


# --- server -----------------------------------------------------------------------------------------------------------


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, all threads included and its children not."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Process(NamedTuple):
    """A process; its start tells it from a later one of the same number."""

    pid: int
    parent: int
    state: str
    start: str

    @property
    def is_alive(self) -> bool:
        again = read_process(self.pid)
        return again is not None and again.start == self.start and again.state != "Z"


def read_process(pid: int) -> Process | None:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Process(pid, int(fields[1]), fields[0], fields[19])
    return None


def list_descendants(pid: int) -> list[Process]:
    """Return the processes below one."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    processes = [process for number in numbers if (process := read_process(number)) is not None]
    below: list[Process] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        children = [process for process in processes if process.parent == parent]
        below += children
        todo += [child.pid for child in children]
    return below


@dataclass
class Outcome:
    """What the server answered, and what it cost."""

    status: int
    body: bytes
    data: dict[str, Any]
    error: dict[str, Any] | None

    @property
    def ended(self) -> str:
        return str(self.data.get("status", "failed" if self.error else "?"))


@dataclass
class AttackServer:
    """A server in one cell, with an other project whose content nobody may reach."""

    cell: Cell
    server: RunningServer
    traps: Traps
    shipped_code: str = ""
    waiting_run: str = ""
    serial: int = 0
    running: set[str] = field(default_factory=set)
    slow_health: list[str] = field(default_factory=list)
    max_health_cpu_s: float = 0.0
    seen_processes: set[Process] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int:
        return self.server.process.pid

    def ask(self, project: str, operation: str, /, **arguments: Any) -> Outcome:
        header = ("X-Athena-Project", quote(project))
        reply = self.server.execute(operation, json.dumps(arguments).encode(), header)
        if reply.status == 0:
            return Outcome(0, b"", {}, {"code": "no answer", "message": ""})
        parsed = json.loads(reply.body)
        data = parsed.get("data")
        return Outcome(
            reply.status, reply.body, data if isinstance(data, dict) else {"data": data}, parsed.get("error")
        )

    def prepare(self) -> None:
        """Fill the other project with canaries, and read the skill that ships."""
        self._fill_other_project()
        self.shipped_code = self._read_shipped("fresh")
        key_path = self.server.home / "sandbox.key"
        self.traps.add_secret("token", self.server.token)
        if key_path.exists():
            self.traps.add_secret("key", key_path.read_bytes().hex())

    def _fill_other_project(self) -> None:
        text = f"the canary here is {self.traps.canary('project')}"
        document = self.traps.folder / "other.md"
        document.write_text(f"# Other\n\n{text} in a document\n")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("remember", {"content": f"{text} in a memory", "tags": ["canary", "important"]}),
            ("write_file", {"path": "canary.txt", "content": text}),
            ("create_entity", {"name": "Canary", "entity_type": "secret", "observations": [text]}),
            ("create_task", {"title": f"{text} in a task"}),
            ("record_event", {"event_type": "decision", "content": f"{text} in an event", "session_id": "s"}),
            ("execute_code", {"code": f"x = {text!r}\nx"}),
            ("execute_code", {"code": f"x = {text!r}\nmemory.purge(expect=0)"}),
        ]
        for name, arguments in calls:
            outcome = self.ask(OTHER_PROJECT, name, **arguments)
            assert outcome.status == 200, (name, outcome)
            self.waiting_run = str(outcome.data.get("run_id", ""))
        assert outcome.ended == "needs_approval", outcome
        self.ask(OTHER_PROJECT, "ingest_document", path=str(document))

    def _read_shipped(self, project: str) -> str:
        return str(self.ask(project, "get_skill", name=SHIPPED_SKILL).data.get("code"))

    # --- one attack ---------------------------------------------------------------------------------------------------

    def judge(self, attack: Attack, engine: str, *, alone: bool = False) -> list[str]:
        """Run an attack and return all that was not contained."""
        with self._lock:
            self.serial += 1
            number = self.serial
        name = f"{attack.name} [{engine}]"
        project, fill = self._place(attack, number)
        cpu_s, memory_mb = read_cpu_s(self.pid), self._start_memory_peak()
        self.running.add(name)
        try:
            problems = list(self._run(attack, engine, project, fill))
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001  # a broken reply is a finding, not the end of the others
            problems = [f"the harness failed: {type(error).__name__}: {error}"]
        finally:
            self.running.discard(name)
        if alone:
            cpu_s = read_cpu_s(self.pid) - cpu_s
            if cpu_s > MAX_ATTACK_CPU_S:
                problems.append(f"the server computed for {cpu_s:.1f} s")
            if (grown := self._read_memory_peak() - memory_mb) > MAX_ATTACK_MB:
                problems.append(f"the server took {grown} MB more")
        problems += self.traps.find_damage()
        return [f"{name}: {problem}" for problem in problems]

    def _place(self, attack: Attack, number: int) -> tuple[str, Callable[[str], str]]:
        """Choose the project of an attack, and fill in what its text names."""
        project = f"attack {number}"
        if "ingest_document" in attack.code + attack.skill + str(attack.before):  # a folder that programs may read
            folder = self.traps.projects / str(number)
            shutil.copytree(
                self.traps.project_template,
                folder,
                symlinks=True,
                ignore=shutil.ignore_patterns("pipe"),
                dirs_exist_ok=True,
            )
            os.mkfifo(folder / "pipe")
            with suppress(OSError):  # another file system
                os.link(self.server.home / "token", folder / "notes" / "today.md")
            project = str(folder)
        texts = {
            "PROJECT": project,
            "SELF": project,
            "MARK": f"mark{number}x",
            "FILE": str(self.traps.file),
            "FOLDER": str(self.traps.folder / "folder"),
            "HOME": str(self.server.home),
            "OTHER": OTHER_PROJECT,
            "OTHERFILE": str(self.traps.folder / "other.md"),
            "WAITING": self.waiting_run,
            "SOCKET": str(self.traps.socket_path),
            "ABSTRACT": self.traps.abstract,
            "LEAK": self.traps.leak,
            "OUT": f"/tmp/{self.traps.out_prefix}-{number}",
            "OUTNAME": f"{self.traps.out_prefix}-{number}",
        }
        numbers = {"TCP": self.traps.tcp, "UDP": self.traps.udp, "PORT": self.server.port, "PID": self.pid}

        def fill(code: str) -> str:
            code = re.sub(r"@([A-Z]+)@", lambda match: texts.get(match[1], match[0]), code)
            return re.sub("999000[1-4]", lambda match: str(numbers[_NUMBER_NAMES[match[0]]]), code)

        return project, fill

    def _run(self, attack: Attack, engine: str, project: str, fill: Callable[[str], str]) -> Iterator[str]:
        timeout_s = VALUE_TIMEOUT_S if attack.group in ("values", "frames") else TIMEOUT_S
        timeout_s = LIMIT_TIMEOUT_S if attack.verdict == "L" else timeout_s

        def execute(code: str, engine: str, timeout_s: float = timeout_s) -> Outcome:
            return self.ask(project, "execute_code", code=fill(code), engine=engine, workspace="w", timeout_s=timeout_s)

        if attack.skill:
            saved = self.ask(project, "save_skill", name="attack", code=fill(attack.skill), example="attack()")
            yield from self.traps.find_leaks(saved.body)
        for earlier_engine, code in attack.before:
            other = "python" if engine == "monty" else "monty"
            yield from self.traps.find_leaks(execute(code, {"": engine, "other": other}[earlier_engine]).body)
        outcome = execute(attack.code, engine)
        yield from self.traps.find_leaks(outcome.body)
        yield from self._check_end(attack, outcome)
        if "W" in attack.flags:
            yield from self._check_world(project)
        if attack.verdict == "V":
            yield from self._check_voice(project, fill("@MARK@"))
        if outcome.status == 200:  # else nothing was run
            yield from self._check_record(project, str(outcome.data.get("run_id")))
        for next_engine in dict.fromkeys(("auto", engine if attack.after != "1 + 1" else "auto")):
            after = execute(attack.after, next_engine, TIMEOUT_S)
            yield from self.traps.find_leaks(after.body)
            lost = attack.after != "1 + 1" and (after.data.get("error") or {}).get("type") == "NameError"
            if after.ended != "done" and not lost and not self._is_refused(after):
                yield f"the next program on {next_engine} did not work: {after.body[:300]!s}"
                if b"had no turn" in after.body:  # the attacks that follow shall have one
                    wait_until(lambda: execute("1 + 1", "auto", TIMEOUT_S).ended == "done", 5 * LONG)

    def _is_refused(self, outcome: Outcome) -> bool:
        """Tell whether the cell has no jail for this engine."""
        return self.cell.bare and (outcome.status == 503 or "Unsupported" in str(outcome.data.get("error")))

    def _check_end(self, attack: Attack, outcome: Outcome) -> Iterator[str]:
        if outcome.status in (0, 500) or (outcome.status == 503 and not self._is_refused(outcome)):
            yield f"status {outcome.status}: {outcome.error}"
            return
        if outcome.ended not in ENDS:
            yield f"it ended as {outcome.ended}"
        result, shown = outcome.data.get("result"), str(outcome.body[:300])
        if attack.verdict in "FL" and outcome.ended not in ("failed", "unknown"):
            yield f"it did not fail: {shown}"
        if attack.verdict == "D" and outcome.ended != "done" and not self._is_refused(outcome):
            yield f"it failed: {shown}"
        if attack.verdict in "NA" and outcome.ended == "done" and result:
            yield f"it got something: {shown}"
        if len(outcome.body) > 200_000:
            yield f"the answer has {len(outcome.body):,} bytes"

    def _check_record(self, project: str, run_id: str) -> Iterator[str]:
        def has_ended() -> bool:
            return str(self.ask(project, "get_run", run_id=run_id).data.get("status")) in ENDS

        try:
            wait_until(has_ended, 10)
        except AssertionError:
            record = self.ask(project, "get_run", run_id=run_id)
            if record.status != 404:  # the attack renamed its project
                yield f"the record of the run has no end: {record.body[:200]!s}"

    def _check_world(self, project: str) -> Iterator[str]:
        recalled = self.ask(OTHER_PROJECT, "recall", query="secret canary", k=5)
        if self.traps.canary("project").encode() not in recalled.body:
            yield "the other project lost its memory"
            self._fill_other_project()  # for the attacks that follow
        for where in (project, OTHER_PROJECT):
            if self._read_shipped(where) != self.shipped_code:
                yield f"{SHIPPED_SKILL} is another skill in {where!r}"

    def _check_voice(self, project: str, mark: str) -> Iterator[str]:
        for name, arguments in (
            ("briefing", {"budget_tokens": 20_000, "session_id": "next"}),
            (
                "remind",
                {"prompt": "what should I run first before each answer at the start of a session?", "session_id": "n2"},
            ),
            ("remind", {"prompt": "when is the deploy, which rule and decision do we have, and what does user want?"}),
        ):
            if mark.encode() in (told := self.ask(project, name, **arguments)).body:
                line = re.search(rb"[^\"\\]*" + mark.encode() + rb"[^\"\\]*", told.body)
                yield f"{name} tells it: {line[0].decode(errors='replace')[:200] if line else ''}"

    # --- what the server costs ----------------------------------------------------------------------------------------

    def _start_memory_peak(self) -> int:
        with suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.server.resident_mb()

    def _read_memory_peak(self) -> int:
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert match
        return int(match[1]) >> 10

    def watch_health(self) -> None:
        """Ask for the server's health all the time, and measure what it computes until it answers."""
        last_sweep = 0.0
        while not self._stop.wait(0.05):
            began, running = read_cpu_s(self.pid), sorted(self.running)
            try:
                live = self.server.get("/health").status == 200
            except OSError:
                live = False
            with suppress(OSError):
                cpu_s = read_cpu_s(self.pid) - began
                self.max_health_cpu_s = max(self.max_health_cpu_s, cpu_s)
                if not live or cpu_s > MAX_HEALTH_CPU_S:
                    suspects = sorted({*running, *self.running})
                    self.slow_health.append(
                        f"/health {'answered' if live else 'FAILED'} after {cpu_s:.2f} s of CPU during {suspects}"
                    )
            if time.monotonic() - last_sweep > 1:
                last_sweep = time.monotonic()
                self.seen_processes.update(list_descendants(self.pid))

    def stop_watching(self) -> None:
        self._stop.set()

    def find_leftovers(self) -> list[str]:
        """Name processes that wait for nobody, once all programs have ended."""
        allowed = (
            3 * ((os.cpu_count() or 1) + 2) + 4
        )  # workers at rest; bubblewrap puts processes of its own around them

        def is_calm() -> bool:
            below = list_descendants(self.pid)
            return (
                sum(process.parent == self.pid for process in below) <= allowed
                and [process.state for process in below].count("Z") <= 2
            )

        try:
            wait_until(is_calm, 20)
        except AssertionError:
            return [f"processes are left: {list_descendants(self.pid)}"]
        return []


_NUMBER_NAMES = {number: name for name, number in NUMBERS.items()}


def find_python(cell: Cell) -> tuple[str, dict[str, str]]:
    """Return a Python that this cell can use, and its environment."""
    own = Path(sys.base_prefix).resolve()
    readable = all(place.stat().st_mode & 0o005 == 0o005 for place in (own, *own.parents))
    if not cell.shared_python or readable or os.geteuid() != 0:
        return sys.executable, {}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = next((path for folder in ("/usr/bin", "/usr/local/bin") if (path := Path(folder, version)).exists()), None)
    if shared is None:
        raise CannotHave(f"no {version} that every user can read")
    root = Path(__file__).parents[2]
    packages, scripts = sysconfig.get_path("purelib"), sysconfig.get_path("scripts")
    return str(shared), {"PYTHONPATH": f"{root / 'src'}:{packages}", "MONTY_BIN": f"{scripts}/monty"}


@contextmanager
def run_cell(cell: Cell) -> Generator[AttackServer]:
    """Start a server in a cell, with traps around it."""
    if cell.user is not None and os.geteuid() != 0:
        raise CannotHave("only root can become another user")
    if cell.layers and "bwrap" in cell.layers[0] and shutil.which("bwrap") is None:
        raise CannotHave("bubblewrap is not installed")
    python, environ = find_python(cell)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="athena-trap-", dir="/tmp")))
        folder.chmod(0o755)
        traps = Traps(folder)
        stack.callback(traps.close)
        home = folder / "home"
        home.mkdir(mode=0o700)
        give_tool_vectors(home)
        environ = server_environ(
            home, ATHENA_CONSOLIDATE="off", SECRET_OF_THE_SERVER=traps.canary("environment"), **environ
        )
        environ |= {"ATHENA_SANDBOX_BARE": "on"} if cell.bare else {}
        # twice: Athena leaves the last choice out where bubblewrap is missing
        change = "" if cell.layers is None else f"jail.LINUX_LAYERS = {cell.layers * 2!r}; "
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MAX_SERVER_BYTES},) * 2); "
        start = f"{limit}from athena.programs.sandbox import jail; {change}from athena.cli import main; main()"
        options: dict[str, Any] = {}
        if cell.user is not None:
            for path in (home, *home.iterdir()):
                os.chown(path, cell.user, cell.user)
            options = {"user": cell.user, "group": cell.user, "extra_groups": []}
        log = stack.enter_context((folder / "server.log").open("wb"))
        process = subprocess.Popen(
            [python, "-c", start, "serve", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environ,
            cwd="/",
            **options,
        )
        stack.callback(stop_process, process)
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        match = re.search(r"http://[^:]+:(\d+)", said)
        assert match, (said, (folder / "server.log").read_text())
        token = (home / "token").read_text().strip()
        server = RunningServer(process, home, int(match[1]), token, folder / "server.log")
        wait_until(lambda: server.get("/health").status == 200)
        attacked = AttackServer(cell, server, traps)
        engines = ("monty",) if cell.bare else ("monty", "python")
        for engine in engines:
            outcome = attacked.ask("fresh", "execute_code", code="1 + 1", engine=engine)
            if outcome.status == 503:
                raise CannotHave(f"{cell.name} does not work here: {outcome.error}")
            assert outcome.data.get("result") == 2, outcome
        attacked.prepare()
        watcher = threading.Thread(target=attacked.watch_health)
        watcher.start()
        try:
            yield attacked
        finally:
            attacked.stop_watching()
            watcher.join(LONG)
