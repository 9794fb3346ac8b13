"""Keep the memory of a process small: check its limit before large libraries are loaded, and give freed memory back."""

import os
import sys
from typing import Any

from athena.errors import Unavailable

NUMPY_BYTES = 130 << 20  # address space that numpy takes with its first product of matrices
MODEL_BYTES = 280 << 20  # that the bundled model takes, numpy included
STATM_FILE = "/proc/self/statm"
BLAS_SPIN_VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
SHORTEST_BLAS_SPIN = "4"  # 2**4 cycles
# Parameters of mallopt, and their values.
M_ARENA_MAX, MAX_ARENAS = -8, 2
M_MMAP_THRESHOLD, MAX_HEAP_BLOCK_BYTES = -3, 1 << 20
M_TRIM_THRESHOLD, MAX_FREE_HEAP_BYTES = -1, 4 << 20


def check_room(module: str, needed_bytes: int, what: str) -> None:
    """Raise Unavailable where a module is not loaded yet and a memory limit (ulimit -v) leaves no room for it."""
    if module in sys.modules:
        return
    limit, used = _read_limit_and_size()
    if limit is None or limit - used >= needed_bytes:
        # OpenBLAS reserves memory for each thread; with a limit, one has to do.
        if limit is not None:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _import_numpy()
        return
    raise Unavailable(
        f"the memory limit of this process, {limit >> 20:,} MB, is too low for {what}",
        hint=f"raise it to {(used + needed_bytes) >> 20:,} MB or more (ulimit -v)",
        retry=False,
    )


def _import_numpy() -> None:
    """Import numpy so that the threads of its OpenBLAS sleep as soon as they have nothing to do.

    By default they spin for 2**26 cycles first, also at the start: that is a tenth of a cold search. OpenBLAS reads the
    variable while it is loaded.
    """
    if "numpy" in sys.modules or BLAS_SPIN_VARIABLE in os.environ:
        return
    os.environ[BLAS_SPIN_VARIABLE] = SHORTEST_BLAS_SPIN
    try:
        import numpy  # noqa: F401  # slow to load
    finally:
        del os.environ[BLAS_SPIN_VARIABLE]


def _read_limit_and_size() -> tuple[int | None, int]:
    """Return the limit of the address space, and how much of it is in use; None where there is no limit."""
    try:
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None, 0
        with open(STATM_FILE, encoding="ascii") as statm:
            return limit, int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return None, 0


def limit_heaps() -> None:
    """Let all threads share two heaps, and keep large arrays out of them.

    By default each thread may get a heap, and keeps there what it has freed. An array on a heap that is freed leaves a
    hole; outside of it, it goes back to the system at once. glibc moves arrays of up to 32 MB onto the heap after the
    first of them is freed, unless it is told a limit.
    """
    if mallopt := _find_function("mallopt"):
        mallopt(M_ARENA_MAX, MAX_ARENAS)
        mallopt(M_MMAP_THRESHOLD, MAX_HEAP_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, MAX_FREE_HEAP_BYTES)


def give_back_memory() -> None:
    """Give freed memory back to the system; glibc returns only what is at the end of a heap by itself."""
    if malloc_trim := _find_function("malloc_trim"):
        malloc_trim(0)


def _find_function(name: str) -> Any:
    """Return a function of the C library; None where it has none of this name, as on macOS and with musl."""
    import ctypes  # 10 ms; only servers need it

    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
