"""The Monty engine: a pool of jailed worker processes of the Monty interpreter."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from athena.errors import Misconfigured, Unavailable
from athena.programs.sandbox import jail
from athena.programs.sandbox.calls import MAX_NESTED_CALLS
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty import types as monty_types
from athena.programs.sandbox.spawner import ProcessHandle, Spawner

if TYPE_CHECKING:
    import pydantic_monty

T = TypeVar("T")
_opened_pid = 0  # the process whose threads Monty's runtime has

MAX_SESSIONS_PER_WORKER = 200
READY_WORKER_COUNTS = {
    True: 2,
    False: 1,
}  # by whether the prelude is loaded: a session with variables loads its own dump
SLOT_POLL_S = 0.1  # how often a run that waits for a worker checks whether it was stopped
INITIAL_FEED_COUNT = 2  # sources that a new session has seen: the prelude and its test


@dataclass(slots=True)
class MontyWorker:
    """A worker that one run uses."""

    session: "pydantic_monty.MontySession"
    handle: ProcessHandle
    has_prelude: bool = False  # the prelude is loaded
    must_kill: bool = False  # it met a limit of memory or time, so nothing more may run in it
    is_leased: bool = False  # a run has it, and is counted


class Monty:
    """A pool of warm workers."""

    name = "monty"

    def __init__(self, limits: Limits, spawner: Spawner, layer_choices: Sequence[jail.Layers]) -> None:
        self.limits, self._spawner, self._layer_choices = limits, spawner, layer_choices
        self.layers: jail.Layers | None = None
        self.version = ""
        self.prelude_dump = b""
        self.prelude_spans = prelude.find_prelude_spans(limits)
        self._pool: pydantic_monty.Monty | None = None
        self._launch_script: jail.LaunchScript | None = None
        self._ready_workers: list[MontyWorker] = []
        # Each run may have MAX_NESTED_CALLS others inside, and so on. Nothing waits on the spawner's thread: it must
        # always be able to end workers, or none would ever become free.
        self._max_workers = limits.runs * sum(MAX_NESTED_CALLS**depth for depth in range(limits.depth))
        self._max_workers += limits.lent_runs
        self._free_slots = threading.Semaphore(self._max_workers)
        self._guard = threading.Lock()
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
            if self._pool is None:
                self._spawner.run_job(self._open_pool)

    def _open_pool(self) -> None:
        global _opened_pid
        if _opened_pid not in (0, os.getpid()):
            # Its runtime shares an epoll with the parent: using it here would hang both.
            raise Misconfigured("Monty was opened before this process was forked", hint="start processes by spawning")
        _opened_pid = os.getpid()
        try:
            import pydantic_monty  # 50 ms that only programs pay
        except ImportError:
            raise Misconfigured("pydantic-monty is not installed", hint="pip install pydantic-monty") from None
        from pydantic_monty._binary import find_monty_binary

        self.version = pydantic_monty.__version__
        # The jail binds the real file, not a link to it.
        spec = jail.build_monty_spec(os.path.realpath(find_monty_binary()), memory_mb=self.limits.memory_mb * 2 + 1_024)
        for layers in self._layer_choices:
            script = jail.LaunchScript(jail.build_command(spec, layers))
            pool = pydantic_monty.Monty(
                binary_path=script.path,
                min_processes=1,
                max_processes=self._max_workers + sum(READY_WORKER_COUNTS.values()) + 2,
                checkout_timeout=20.0,
                request_timeout=self.limits.cpu_s + 30.0,
                max_checkouts_per_worker=MAX_SESSIONS_PER_WORKER,
            )
            try:
                self._probe_pool(pool)
            except (pydantic_monty.MontyError, OSError, RuntimeError, TimeoutError):
                with suppress(Exception):
                    pool.__exit__(None, None, None)
                script.close()
                continue
            self._pool, self._launch_script, self.layers = pool, script, layers
            return
        raise Misconfigured(
            "no jail for programs works on this machine",
            hint="athena doctor says which layers are missing; a setting allows Monty without one",
        )

    def _probe_pool(self, pool: "pydantic_monty.Monty") -> None:
        """Run a worker; its dump after the prelude becomes the start of every program."""
        pool.__enter__()
        with pool.checkout(limits=self._resource_limits(), os_policy={"sleep": "call_host"}) as session:
            session.feed_run(prelude.build_prelude(self.limits))
            if session.feed_run("sorted([2, 1])") != [1, 2]:
                raise RuntimeError("Monty failed its self-test")
            self.prelude_dump = session.dump()

    def _resource_limits(self) -> "pydantic_monty.ResourceLimits":
        limits = self.limits
        return {
            "max_memory": limits.memory_mb << 20,
            "max_feed_duration_secs": limits.cpu_s,
            "max_turn_duration_secs": limits.turn_s,
            "max_suspensions": limits.calls * 4,
        }

    def check_types(self, code: str, stubs: str) -> str:
        """Return the type checker's report on a program as JSON, without running it."""
        import pydantic_monty

        self.open()
        worker = self._spawner.run_job(lambda: self._create_worker(stubs))
        try:
            worker.session.feed_run(f"{monty_types.UNDEFINED_NAME}\n{code}")
        except pydantic_monty.MontyTypingError as error:
            return error.display()
        except pydantic_monty.MontyError:  # it does not read all of Python
            return "[]"
        finally:
            self._discard_worker(worker)
        return "[]"

    # --- workers ----------------------------------------------------------------------------------------------------

    def acquire_new(self, is_over: Callable[[], bool]) -> tuple[MontyWorker, None]:
        """Return a worker for a program without variables, unless the run ends first."""
        self._wait_for_slot(is_over)
        if (worker := self._pop_ready(new=True)) is not None:
            worker.is_leased = True
            return worker, None
        self._free_slots.release()
        return self.acquire_loaded(lambda session: session.load_session(self.prelude_dump), is_over)

    def _wait_for_slot(self, is_over: Callable[[], bool]) -> None:
        while not self._free_slots.acquire(timeout=SLOT_POLL_S):
            if is_over():
                raise Unavailable("all workers of the sandbox were busy")

    def acquire_loaded(
        self, load: Callable[["pydantic_monty.MontySession"], T], is_over: Callable[[], bool]
    ) -> tuple[MontyWorker, T]:
        """Return a worker with a loaded session; replace one that died while idle."""
        import pydantic_monty

        self.open()
        for _ in range(sum(READY_WORKER_COUNTS.values()) + 3):
            self._wait_for_slot(is_over)
            try:
                worker = self._pop_ready() or self._spawner.run_job(lambda: self._pop_ready() or self._create_worker())
            except BaseException:
                self._free_slots.release()
                raise
            worker.is_leased = True
            try:
                return worker, load(worker.session)
            except pydantic_monty.MontyCrashedError:  # nothing has run
                self._discard_worker(worker)
            except BaseException:
                self._discard_worker(worker)
                raise
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _discard_worker(self, worker: MontyWorker) -> None:
        self._spawner.submit_job(lambda: self._end_worker(worker))

    def _pop_ready(self, *, new: bool = False) -> MontyWorker | None:
        with self._guard:
            for index in range(len(self._ready_workers) - 1, -1, -1):  # the newest first: it is still in the CPU caches
                if self._ready_workers[index].has_prelude == new and self._ready_workers[index].handle.is_alive:
                    return self._ready_workers.pop(index)
        return None

    def release_worker(self, worker: MontyWorker) -> None:
        """End this session and prepare the next ones."""

        def end_and_refill() -> None:
            self._end_worker(worker)
            self._refill_ready()

        self._spawner.submit_job(end_and_refill)

    def _refill_ready(self) -> None:
        with self._guard:
            dead = [worker for worker in self._ready_workers if not worker.handle.is_alive]
            self._ready_workers = [worker for worker in self._ready_workers if worker.handle.is_alive]
            kinds = [worker.has_prelude for worker in self._ready_workers]
        for worker in dead:
            self._end_worker(worker)
        missing = [kind for kind, count in READY_WORKER_COUNTS.items() if kinds.count(kind) < count]
        if self._closed or not missing:
            return
        worker = self._create_worker()
        if missing[0]:
            worker.session.load_session(self.prelude_dump)
            worker.has_prelude = True
        with self._guard:
            self._ready_workers.append(worker)
        if len(kinds) + 1 < sum(READY_WORKER_COUNTS.values()):
            self._spawner.submit_job(self._refill_ready)  # after the jobs that are already queued

    def _create_worker(self, stubs: str | None = None) -> MontyWorker:
        import pydantic_monty

        if self._pool is None:
            raise Unavailable("the sandbox is closed")
        for attempt in range(3):
            session = self._pool.checkout(
                limits=self._resource_limits(),
                os_policy={"sleep": "call_host"},
                type_check=stubs is not None,
                type_check_stubs=stubs,
                type_check_format="json",
            )
            try:
                session.__enter__()
            except pydantic_monty.MontyCrashedError:  # a worker died while it was idle; the pool has replaced it
                if attempt == 2:
                    raise
                continue
            return MontyWorker(session, ProcessHandle(session.worker_pid or 0))
        raise Unavailable("the sandbox's workers end as soon as they start")

    def _end_worker(self, worker: MontyWorker) -> None:
        if worker.must_kill:
            worker.handle.kill()
        with suppress(Exception):  # the session of a dead worker raises again
            worker.session.__exit__(None, None, None)
        worker.handle.release()
        if worker.is_leased:
            worker.is_leased = False
            self._free_slots.release()

    def discard_ready(self) -> None:
        """End the idle workers: the cause of one death may have killed all."""
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for worker in waiting:
            worker.must_kill = True
            self._discard_worker(worker)

    def close(self) -> None:
        """End all workers, on the spawner's thread."""
        self._closed = True
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for worker in waiting:
            self._end_worker(worker)
        if self._pool is not None:
            with suppress(Exception):
                self._pool.__exit__(None, None, None)
        if self._launch_script is not None:
            self._launch_script.close()
        self._pool = self._launch_script = None
