"""The Monty engine: a pool of jailed worker processes of the Monty interpreter, each behind a client process."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from athena.core.threads import ThreadPool
from athena.errors import Misconfigured, Unavailable
from athena.programs.sandbox import jail
from athena.programs.sandbox.calls import MAX_NESTED_CALLS
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty import types as monty_types
from athena.programs.sandbox.monty.client import MontyClient, MontyCrashed, MontyFailed, MontyRaised

MAX_SESSIONS_PER_WORKER = 200
MAX_IDLE_CLIENTS = 2
MAX_READY_WORKERS = 3
SLOT_POLL_S = 0.1  # how often a run that waits for a worker checks whether it was stopped
INITIAL_FEED_COUNT = 2  # sources that a new session has seen: the prelude and its test
END_TIMEOUT_S = 0.2  # to end a session: a new client takes longer to start
MAX_PRELUDE_DUMP_BYTES = 16 << 20


@dataclass(slots=True)
class MontyWorker:
    """A session that one run uses."""

    client: MontyClient
    has_prelude: bool = False  # the prelude is loaded
    must_kill: bool = False  # it met a limit of memory or time, so nothing more may run in it
    is_leased: bool = False  # a run has it, and is counted


class Monty:
    """A pool of warm workers."""

    name = "monty"

    def __init__(self, limits: Limits, layer_choices: Sequence[jail.Layers]) -> None:
        self.limits, self._layer_choices = limits, layer_choices
        self.layers: jail.Layers | None = None
        self.version = ""
        self.prelude_dump = b""
        self.prelude_spans = prelude.find_prelude_spans(limits)
        self._launch_script: jail.LaunchScript | None = None
        self._ready_workers: list[MontyWorker] = []
        self._next_has_prelude = True  # what the last run needed: a session with variables loads its own dump
        # Workers that run or are ready. They are slow to start: one at first, and one more each time that a run had to
        # wait for a start.
        self._target_count = 1
        self._leased_count = 0
        self._idle_clients: list[MontyClient] = []  # without a session
        # Each run may have MAX_NESTED_CALLS others inside, and so on.
        max_workers = limits.runs * sum(MAX_NESTED_CALLS**depth for depth in range(limits.depth))
        max_workers += limits.lent_runs
        self._ends, self._refills = ThreadPool(1, "athena-monty-end"), ThreadPool(1, "athena-monty-start")
        self._free_slots = threading.Semaphore(max_workers)
        self._pending_count = 0  # clients that are free or ready in a moment
        self._guard = threading.Condition(threading.Lock())
        self._opening = threading.Lock()
        self._closed = False

    @property
    def dump_format(self) -> str:
        """The version and the limits that a dump was made with; only the same can read it."""
        limits = self.limits
        limit_values = (
            limits.memory_mb,
            limits.cpu_s,
            limits.turn_s,
            limits.calls,
            limits.value_nodes,
            limits.value_bytes,
        )
        return f"monty {self.version} {prelude.PRELUDE_VERSION} {limit_values}"

    def open(self) -> None:
        """Start the first worker in the strongest jail that works."""
        with self._opening:
            if self._launch_script is None:
                self._find_layers()

    def _find_layers(self) -> None:
        # The jail binds the real file, not a link to it.
        binary = os.path.realpath(_find_binary())
        spec = jail.build_monty_spec(binary, memory_mb=self.limits.memory_mb * 2 + 1_024)
        for layers in self._layer_choices:
            script, client = jail.LaunchScript(jail.build_command(spec, layers)), MontyClient()
            try:
                self._open_client(client, script)
                self._load_prelude(client)
            except (MontyCrashed, MontyFailed, MontyRaised, OSError):
                client.terminate()
                script.close()
                continue
            self._launch_script, self.layers = script, layers
            self._release_client(client)
            return
        raise Misconfigured(
            "no jail for programs works on this machine",
            hint="athena doctor says which layers are missing; a setting allows Monty without one",
        )

    def _open_client(self, client: MontyClient, script: jail.LaunchScript) -> None:
        options = {
            "min_processes": 1,
            "max_processes": 2,
            "checkout_timeout": 20.0,
            "request_timeout": self.limits.cpu_s + 30.0,
            "max_checkouts_per_worker": MAX_SESSIONS_PER_WORKER,
        }
        self.version = client.request("open", binary=script.path, options=options)["version"]

    def _load_prelude(self, client: MontyClient) -> None:
        """Test a worker; its dump after the prelude becomes the start of every program."""
        client.enter(self.limits, self._resource_limits())
        client.feed(prelude.build_prelude(self.limits))
        if client.feed("sorted([2, 1])").get("value") != [1, 2]:
            raise MontyFailed("Monty failed its self-test")
        dump = client.dump(MAX_PRELUDE_DUMP_BYTES)
        if dump is None or not client.exit():
            raise MontyFailed("Monty failed its self-test")
        self.prelude_dump = dump

    def _resource_limits(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "max_memory": limits.memory_mb << 20,
            "max_feed_duration_secs": limits.cpu_s,
            "max_turn_duration_secs": limits.turn_s,
            "max_suspensions": limits.calls * 4,
        }

    def check_types(self, code: str, stubs: str) -> str:
        """Return the type checker's report on a program as JSON, without running it."""
        self.open()
        worker = self._create_worker(stubs)
        try:
            return str(worker.client.request("check", source=f"{monty_types.UNDEFINED_NAME}\n{code}")["report"])
        except (MontyCrashed, MontyFailed, MontyRaised):
            return "[]"
        finally:
            self._discard_worker(worker)

    # --- workers ----------------------------------------------------------------------------------------------------

    def acquire_worker(
        self, is_over: Callable[[], bool], load: Callable[[MontyClient], object] | None = None
    ) -> MontyWorker:
        """Return a worker whose session holds the prelude, or what `load` loads; replace one that died while idle."""
        self.open()
        self._next_has_prelude = load is None
        for _ in range(MAX_READY_WORKERS + 3):
            self._wait_for_slot(is_over)
            try:
                worker = self._take_ready(has_prelude=load is None) or self._create_worker()
            except BaseException:
                self._free_slots.release()
                raise
            self._count_lease(worker, is_leased=True)
            try:
                if load is not None:
                    load(worker.client)
                elif not worker.has_prelude:
                    worker.client.load(self.prelude_dump)
                return worker
            except MontyCrashed:  # nothing has run
                self._discard_worker(worker)
            except BaseException:
                self._discard_worker(worker)
                raise
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _wait_for_slot(self, is_over: Callable[[], bool]) -> None:
        while not self._free_slots.acquire(timeout=SLOT_POLL_S):
            if is_over():
                raise Unavailable("all workers of the sandbox were busy")

    def _take_ready(self, *, has_prelude: bool) -> MontyWorker | None:
        """Return a ready worker, with the prelude only if it is wanted."""
        with self._guard:
            self._wait_for_client()
            for kind in (True, False) if has_prelude else (False,):
                for index in reversed(range(len(self._ready_workers))):  # the newest is still in the CPU caches
                    worker = self._ready_workers[index]
                    if worker.has_prelude == kind and worker.client.is_alive:
                        return self._ready_workers.pop(index)
        return None

    def _take_client(self) -> MontyClient | None:
        """Return an idle client, or end the session of a ready one."""
        with self._guard:
            self._wait_for_client()
            if self._idle_clients:
                return self._idle_clients.pop()
            if not self._ready_workers:
                return None
            client = self._ready_workers.pop().client
        if client.exit():
            return client
        client.terminate()
        return None

    def _wait_for_client(self) -> None:
        self._guard.wait_for(
            lambda: self._ready_workers or self._idle_clients or not self._pending_count, END_TIMEOUT_S
        )

    def _count_lease(self, worker: MontyWorker, *, is_leased: bool) -> None:
        with self._guard:
            worker.is_leased = is_leased
            self._leased_count += 1 if is_leased else -1

    def _add_pending(self, change: int) -> None:
        with self._guard:
            self._pending_count += change
            self._guard.notify_all()

    def _discard_worker(self, worker: MontyWorker) -> None:
        self._add_pending(1)
        self._run_later(self._ends, lambda: self._end_and_count(worker))

    def release_worker(self, worker: MontyWorker) -> None:
        """End this session and prepare the next ones."""

        self._discard_worker(worker)
        self._run_later(self._refills, self._refill_ready)

    def _run_later(self, threads: ThreadPool, job: Callable[[], None]) -> None:
        """Run a job in the background; with two pools no session waits for its end behind a start."""

        def run_quietly() -> None:
            with suppress(Exception):
                job()

        with self._guard:
            if not self._closed:
                threads.submit(run_quietly)
                return
        run_quietly()

    def _refill_ready(self) -> None:
        with self._guard:
            dead = [worker for worker in self._ready_workers if not worker.client.is_alive]
            self._ready_workers = [worker for worker in self._ready_workers if worker.client.is_alive]
        for worker in dead:
            self._end_worker(worker)
        while not self._closed and len(self._ready_workers) < self._target_count:
            with self._guard:
                self._guard.wait_for(lambda: self._idle_clients or not self._pending_count, END_TIMEOUT_S)
                client = self._idle_clients.pop() if self._idle_clients else None
                is_idle = client is not None
                if not is_idle and len(self._ready_workers) + self._leased_count >= self._target_count:
                    return
                self._pending_count += is_idle
            try:
                if not self._prepare_ready(client or self._start_client()):
                    return
            finally:
                self._add_pending(-is_idle)

    def _prepare_ready(self, client: MontyClient) -> bool:
        """Begin the next run's session in advance; False if the client ended, or the engine was closed meanwhile."""
        likely = self._next_has_prelude
        kinds = [worker.has_prelude for worker in self._ready_workers]
        has_prelude = likely if kinds.count(likely) <= kinds.count(not likely) else not likely
        try:
            client.enter(self.limits, self._resource_limits())
            if has_prelude:
                client.load(self.prelude_dump)
        except (MontyCrashed, MontyFailed, MontyRaised):
            client.terminate()
            return False
        with self._guard:
            if not self._closed:
                self._ready_workers.append(MontyWorker(client, has_prelude))
                return True
        client.terminate()
        return False

    def _create_worker(self, stubs: str | None = None) -> MontyWorker:
        for _ in range(MAX_READY_WORKERS + MAX_IDLE_CLIENTS + 3):
            client = self._take_client()
            if client is None:
                self._target_count = min(self._target_count + 1, MAX_READY_WORKERS)
                client = self._start_client()
            try:
                client.enter(self.limits, self._resource_limits(), stubs)
            except (MontyCrashed, MontyFailed, MontyRaised):  # it ended while it was idle
                client.terminate()
                continue
            return MontyWorker(client)
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _start_client(self) -> MontyClient:
        if self._launch_script is None:
            raise Unavailable("the sandbox is closed")
        client = MontyClient()
        try:
            self._open_client(client, self._launch_script)
        except (MontyCrashed, MontyFailed, MontyRaised):
            client.terminate()
            raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor") from None
        return client

    def _release_client(self, client: MontyClient) -> None:
        """Keep a client without a session for the next one, or end it."""
        with self._guard:
            if len(self._idle_clients) < MAX_IDLE_CLIENTS and not self._closed:
                self._idle_clients.append(client)
                return
        client.terminate()

    def _end_and_count(self, worker: MontyWorker) -> None:
        try:
            self._end_worker(worker)
        finally:
            self._add_pending(-1)

    def _end_worker(self, worker: MontyWorker) -> None:
        client = worker.client
        is_reusable = not worker.must_kill and client.is_alive and client.session_count < MAX_SESSIONS_PER_WORKER
        if is_reusable and client.exit():
            self._release_client(client)
        else:
            client.terminate()
        if worker.is_leased:
            self._count_lease(worker, is_leased=False)
            self._free_slots.release()

    def discard_ready(self) -> None:
        """End the idle workers: the cause of one death may have killed all."""
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for worker in waiting:
            worker.must_kill = True
            self._discard_worker(worker)

    def close(self) -> None:
        """End all workers."""
        with self._guard:
            self._closed = True
            clients = [*self._idle_clients, *(worker.client for worker in self._ready_workers)]
            self._ready_workers, self._idle_clients = [], []
        for client in clients:
            client.terminate()
        if self._launch_script is not None:
            self._launch_script.close()
        self._launch_script = None
        self._ends.close()
        self._refills.close()


def _find_binary() -> str:
    """Find Monty's binary without an import of its client, which takes 50 ms and which this process does not need."""
    package = find_spec("pydantic_monty")
    if package is None or package.origin is None:
        raise Misconfigured("pydantic-monty is not installed", hint="pip install pydantic-monty")
    finder = spec_from_file_location("_monty_binary", Path(package.origin).with_name("_binary.py"))
    assert finder is not None
    assert finder.loader is not None
    module = module_from_spec(finder)
    finder.loader.exec_module(module)
    try:
        return str(module.find_monty_binary())
    except FileNotFoundError:
        raise Misconfigured("the binary of pydantic-monty is missing", hint="pip install pydantic-monty") from None
