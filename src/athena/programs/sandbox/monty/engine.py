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
from athena.programs.sandbox.calls import NESTED
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty import types as monty_types
from athena.programs.sandbox.spawner import Keeper, Victim

if TYPE_CHECKING:
    import pydantic_monty

T = TypeVar("T")
_opened_in = 0  # the process whose threads Monty's runtime has

RECYCLED_AFTER = 200  # sessions of one worker
READY = {True: 2, False: 1}  # sessions that wait for a program: new ones, and those that a past is loaded into
PATIENCE = 0.1  # seconds between two looks whether a run that waits for a worker is over
FEEDS = 2  # sources that a new session has seen: the prelude and its test


@dataclass(slots=True)
class Seat:
    """A worker of our own for one run."""

    session: "pydantic_monty.MontySession"
    victim: Victim
    new: bool = False  # the prelude is loaded
    spoilt: bool = False  # it met a limit of memory or time: nothing more is run in it
    taken: bool = False  # a run has it, and is counted


class Monty:
    """A few warm workers."""

    name = "monty"

    def __init__(self, limits: Limits, keeper: Keeper, jails: Sequence[jail.Layers]) -> None:
        self.limits, self._keeper, self._jails = limits, keeper, jails
        self.layers: jail.Layers | None = None
        self.version = ""
        self.prelude = b""
        self.at_once = prelude.spots(limits)
        self._pool: pydantic_monty.Monty | None = None
        self._door: jail.Door | None = None
        self._ready: list[Seat] = []
        # Each run may have NESTED others inside, and so on. Nobody waits on the keeper's thread: it must always be
        # able to end workers, or none would ever become free.
        self._most = limits.runs * sum(NESTED**depth for depth in range(limits.depth))
        self._free = threading.Semaphore(self._most)
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._closed = False

    @property
    def wrote(self) -> str:
        """Name what a dump can be read by: it carries the limits that it was made under."""
        limits = self.limits
        carried = (limits.memory_mb, limits.cpu_s, limits.turn_s, limits.calls, limits.value_nodes, limits.value_bytes)
        return f"monty {self.version} {prelude.VERSION} {carried}"

    def open(self) -> None:
        """Start the first worker, behind the strongest walls that it works behind."""
        with self._opening:
            if self._pool is None:
                self._keeper.ask(self._open)

    def _open(self) -> None:
        global _opened_in
        if _opened_in not in (0, os.getpid()):
            # Its runtime shares an epoll with the parent: using it here would hang both.
            raise Misconfigured("Monty was opened before this process was forked", hint="start processes by spawning")
        _opened_in = os.getpid()
        try:
            import pydantic_monty  # 50 ms that only programs pay
        except ImportError:
            raise Misconfigured("pydantic-monty is not installed", hint="pip install pydantic-monty") from None
        from pydantic_monty._binary import find_monty_binary

        self.version = importlib.metadata.version("pydantic-monty")
        # Through a link, the file would be looked for where it is not bound.
        cell = jail.monty_cell(os.path.realpath(find_monty_binary()), memory_mb=self.limits.memory_mb * 2 + 1_024)
        for layers in self._jails:
            door = jail.Door(jail.command(cell, layers))
            pool = pydantic_monty.Monty(
                binary_path=door.path,
                min_processes=1,
                max_processes=self._most + sum(READY.values()) + 2,
                checkout_timeout=20.0,
                request_timeout=self.limits.cpu_s + 30.0,
                max_checkouts_per_worker=RECYCLED_AFTER,
            )
            try:
                self._try(pool)
            except (pydantic_monty.MontyError, OSError, RuntimeError, TimeoutError):
                with suppress(Exception):
                    pool.__exit__(None, None, None)
                door.close()
                continue
            self._pool, self._door, self.layers = pool, door, layers
            return
        raise Misconfigured(
            "no jail for programs works on this machine",
            hint="athena doctor says which layers are missing; a setting allows Monty without one",
        )

    def _try(self, pool: "pydantic_monty.Monty") -> None:
        """Run the real worker; what it returns becomes the start of every program."""
        pool.__enter__()
        with pool.checkout(limits=self._resources(), os_policy={"sleep": "call_host"}) as session:
            session.feed_run(prelude.source(self.limits))
            if session.feed_run("sorted([2, 1])") != [1, 2]:
                raise RuntimeError("Monty cannot count")
            self.prelude = session.dump()

    def _resources(self) -> "pydantic_monty.ResourceLimits":
        limits = self.limits
        return {
            "max_memory": limits.memory_mb << 20,
            "max_feed_duration_secs": limits.cpu_s,
            "max_turn_duration_secs": limits.turn_s,
            "max_suspensions": limits.calls * 4,
        }

    def types(self, code: str, stubs: str) -> str:
        """Return the type checker's report on a program, as JSON; nothing of it is run."""
        import pydantic_monty

        self.open()
        seat = self._keeper.ask(lambda: self._new_seat(stubs))
        try:
            seat.session.feed_run(f"{monty_types.NEVER}\n{code}")
        except pydantic_monty.MontyTypingError as error:
            return error.display()
        except pydantic_monty.MontyError:  # it does not read all of Python
            return "[]"
        finally:
            self._discard(seat)
        return "[]"

    # --- seats ------------------------------------------------------------------------------------------------------

    def new(self, over: Callable[[], bool]) -> tuple[Seat, None]:
        """Give a worker for a program without a past, unless the run is `over` before there is one."""
        self._take_place(over)
        if (seat := self._waiting(new=True)) is not None:
            seat.taken = True
            return seat, None
        self._free.release()
        return self.seated(lambda session: session.load_session(self.prelude), over)

    def _take_place(self, over: Callable[[], bool]) -> None:
        while not self._free.acquire(timeout=PATIENCE):
            if over():
                raise Unavailable("all workers of the sandbox were busy")

    def seated(self, load: Callable[["pydantic_monty.MontySession"], T], over: Callable[[], bool]) -> tuple[Seat, T]:
        """Give a worker whose session has been loaded; one that died while it waited is replaced."""
        import pydantic_monty

        self.open()
        for _ in range(sum(READY.values()) + 3):
            self._take_place(over)
            try:
                seat = self._waiting() or self._keeper.ask(lambda: self._waiting() or self._new_seat())
            except BaseException:
                self._free.release()
                raise
            seat.taken = True
            try:
                return seat, load(seat.session)
            except pydantic_monty.MontyCrashedError:  # nothing has run
                self._discard(seat)
            except BaseException:
                self._discard(seat)
                raise
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _discard(self, seat: Seat) -> None:
        self._keeper.tell(lambda: self._end(seat))

    def _waiting(self, *, new: bool = False) -> Seat | None:
        with self._guard:
            for place in range(len(self._ready) - 1, -1, -1):  # the newest: its worker is still in the caches
                if self._ready[place].new == new and self._ready[place].victim.alive:
                    return self._ready.pop(place)
        return None

    def give_back(self, seat: Seat) -> None:
        """End this session, and have the next ones ready."""

        def renew() -> None:
            self._end(seat)
            self._refill()

        self._keeper.tell(renew)

    def _refill(self) -> None:
        with self._guard:
            dead = [seat for seat in self._ready if not seat.victim.alive]
            self._ready = [seat for seat in self._ready if seat.victim.alive]
            kinds = [seat.new for seat in self._ready]
        for seat in dead:
            self._end(seat)
        missing = [kind for kind, wanted in READY.items() if kinds.count(kind) < wanted]
        if self._closed or not missing:
            return
        seat = self._new_seat()
        if missing[0]:
            seat.session.load_session(self.prelude)
            seat.new = True
        with self._guard:
            self._ready.append(seat)
        if len(kinds) + 1 < sum(READY.values()):
            self._keeper.tell(self._refill)  # after whoever waits already

    def _new_seat(self, stubs: str | None = None) -> Seat:
        import pydantic_monty

        if self._pool is None:
            raise Unavailable("the sandbox is closed")
        for attempt in range(3):
            session = self._pool.checkout(
                limits=self._resources(),
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
            return Seat(session, Victim(session.worker_pid or 0))
        raise Unavailable("the sandbox's workers end as soon as they start")

    def _end(self, seat: Seat) -> None:
        if seat.spoilt:
            seat.victim.kill()
        with suppress(Exception):  # a dead worker's session says so once more
            seat.session.__exit__(None, None, None)
        seat.victim.release()
        if seat.taken:
            seat.taken = False
            self._free.release()

    def distrust(self) -> None:
        """Let go of those that wait: what ended one of them may have ended all, and not have shown yet."""
        with self._guard:
            waiting, self._ready = self._ready, []
        for seat in waiting:
            seat.spoilt = True
            self._discard(seat)

    def close(self) -> None:
        """End all workers; on the keeper's thread."""
        self._closed = True
        with self._guard:
            waiting, self._ready = self._ready, []
        for seat in waiting:
            self._end(seat)
        if self._pool is not None:
            with suppress(Exception):
                self._pool.__exit__(None, None, None)
        if self._door is not None:
            self._door.close()
        self._pool = self._door = None
