"""The default engine: Monty, an interpreter of its own in worker processes, each behind the jail."""

import importlib.metadata
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

MAX_SESSIONS_PER_WORKER = 200  # sessions of one worker
READY_WORKER_COUNTS = {
    True: 2,
    False: 1,
}  # sessions that wait for a program: new ones, and those that a past is loaded into
SLOT_POLL_S = 0.1  # seconds between two looks whether a run that waits for a worker is over
INITIAL_FEED_COUNT = 2  # sources that a new session has seen: the prelude and its test


@dataclass(slots=True)
class MontyWorker:
    """A worker of our own for one run."""

    session: "pydantic_monty.MontySession"
    handle: ProcessHandle
    has_prelude: bool = False  # the prelude is loaded
    must_kill: bool = False  # it met a limit of memory or time: nothing more is run in it
    is_leased: bool = False  # a run has it, and is counted


class Monty:
    """A few warm workers."""

    name = "monty"

    def __init__(self, limits: Limits, keeper: Spawner, jails: Sequence[jail.Layers]) -> None:
        self.limits, self._spawner, self._layer_choices = limits, keeper, jails
        self.layers: jail.Layers | None = None
        self.version = ""
        self.prelude_dump = b""
        self.prelude_spans = prelude.find_prelude_spans(limits)
        self._pool: pydantic_monty.Monty | None = None
        self._launch_script: jail.LaunchScript | None = None
        self._ready_workers: list[MontyWorker] = []
        # Each run may have NESTED others inside, and so on. Nobody waits on the keeper's thread: it must always be
        # able to end workers, or none would ever become free.
        self._max_workers = limits.runs * sum(MAX_NESTED_CALLS**depth for depth in range(limits.depth))
        self._free_slots = threading.Semaphore(self._max_workers)
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._closed = False

    @property
    def dump_format(self) -> str:
        """Name what a dump can be read by: it carries the limits that it was made under."""
        limits = self.limits
        carried = (limits.memory_mb, limits.cpu_s, limits.turn_s, limits.calls, limits.value_nodes, limits.value_bytes)
        return f"monty {self.version} {prelude.PRELUDE_VERSION} {carried}"

    def open(self) -> None:
        """Start the first worker, behind the strongest walls that it works behind."""
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

        self.version = importlib.metadata.version("pydantic-monty")
        # Through a link, the file would be looked for where it is not bound.
        cell = jail.build_monty_spec(os.path.realpath(find_monty_binary()), memory_mb=self.limits.memory_mb * 2 + 1_024)
        for layers in self._layer_choices:
            door = jail.LaunchScript(jail.build_command(cell, layers))
            pool = pydantic_monty.Monty(
                binary_path=door.path,
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
                door.close()
                continue
            self._pool, self._launch_script, self.layers = pool, door, layers
            return
        raise Misconfigured(
            "no jail for programs works on this machine",
            hint="athena doctor says which layers are missing; a setting allows Monty without one",
        )

    def _probe_pool(self, pool: "pydantic_monty.Monty") -> None:
        """Run the real worker; what it returns becomes the start of every program."""
        pool.__enter__()
        with pool.checkout(limits=self._resource_limits(), os_policy={"sleep": "call_host"}) as session:
            session.feed_run(prelude.build_prelude(self.limits))
            if session.feed_run("sorted([2, 1])") != [1, 2]:
                raise RuntimeError("Monty cannot count")
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
        """Return the type checker's report on a program, as JSON; nothing of it is run."""
        import pydantic_monty

        self.open()
        seat = self._spawner.run_job(lambda: self._create_worker(stubs))
        try:
            seat.session.feed_run(f"{monty_types.UNDEFINED_NAME}\n{code}")
        except pydantic_monty.MontyTypingError as error:
            return error.display()
        except pydantic_monty.MontyError:  # it does not read all of Python
            return "[]"
        finally:
            self._discard_worker(seat)
        return "[]"

    # --- seats ------------------------------------------------------------------------------------------------------

    def acquire_new(self, over: Callable[[], bool]) -> tuple[MontyWorker, None]:
        """Give a worker for a program without a past, unless the run is `over` before there is one."""
        self._wait_for_slot(over)
        if (seat := self._pop_ready(new=True)) is not None:
            seat.is_leased = True
            return seat, None
        self._free_slots.release()
        return self.acquire_loaded(lambda session: session.load_session(self.prelude_dump), over)

    def _wait_for_slot(self, over: Callable[[], bool]) -> None:
        while not self._free_slots.acquire(timeout=SLOT_POLL_S):
            if over():
                raise Unavailable("all workers of the sandbox were busy")

    def acquire_loaded(
        self, load: Callable[["pydantic_monty.MontySession"], T], over: Callable[[], bool]
    ) -> tuple[MontyWorker, T]:
        """Give a worker whose session has been loaded; one that died while it waited is replaced."""
        import pydantic_monty

        self.open()
        for _ in range(sum(READY_WORKER_COUNTS.values()) + 3):
            self._wait_for_slot(over)
            try:
                seat = self._pop_ready() or self._spawner.run_job(lambda: self._pop_ready() or self._create_worker())
            except BaseException:
                self._free_slots.release()
                raise
            seat.is_leased = True
            try:
                return seat, load(seat.session)
            except pydantic_monty.MontyCrashedError:  # nothing has run
                self._discard_worker(seat)
            except BaseException:
                self._discard_worker(seat)
                raise
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _discard_worker(self, seat: MontyWorker) -> None:
        self._spawner.submit_job(lambda: self._end_worker(seat))

    def _pop_ready(self, *, new: bool = False) -> MontyWorker | None:
        with self._guard:
            for place in range(len(self._ready_workers) - 1, -1, -1):  # the newest: its worker is still in the caches
                if self._ready_workers[place].has_prelude == new and self._ready_workers[place].handle.is_alive:
                    return self._ready_workers.pop(place)
        return None

    def release_worker(self, seat: MontyWorker) -> None:
        """End this session, and have the next ones ready."""

        def end_and_refill() -> None:
            self._end_worker(seat)
            self._refill_ready()

        self._spawner.submit_job(end_and_refill)

    def _refill_ready(self) -> None:
        with self._guard:
            dead = [seat for seat in self._ready_workers if not seat.handle.is_alive]
            self._ready_workers = [seat for seat in self._ready_workers if seat.handle.is_alive]
            kinds = [seat.has_prelude for seat in self._ready_workers]
        for seat in dead:
            self._end_worker(seat)
        missing = [kind for kind, wanted in READY_WORKER_COUNTS.items() if kinds.count(kind) < wanted]
        if self._closed or not missing:
            return
        seat = self._create_worker()
        if missing[0]:
            seat.session.load_session(self.prelude_dump)
            seat.has_prelude = True
        with self._guard:
            self._ready_workers.append(seat)
        if len(kinds) + 1 < sum(READY_WORKER_COUNTS.values()):
            self._spawner.submit_job(self._refill_ready)  # after whoever waits already

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

    def _end_worker(self, seat: MontyWorker) -> None:
        if seat.must_kill:
            seat.handle.kill()
        with suppress(Exception):  # a dead worker's session says so once more
            seat.session.__exit__(None, None, None)
        seat.handle.release()
        if seat.is_leased:
            seat.is_leased = False
            self._free_slots.release()

    def discard_ready(self) -> None:
        """Let go of those that wait: what ended one of them may have ended all, and not have shown yet."""
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for seat in waiting:
            seat.must_kill = True
            self._discard_worker(seat)

    def close(self) -> None:
        """End all workers; on the keeper's thread."""
        self._closed = True
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for seat in waiting:
            self._end_worker(seat)
        if self._pool is not None:
            with suppress(Exception):
                self._pool.__exit__(None, None, None)
        if self._launch_script is not None:
            self._launch_script.close()
        self._pool = self._launch_script = None
