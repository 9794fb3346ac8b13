"""The limits of one program, all on by default; the error of a program that exceeds one names it."""

import os
from dataclasses import dataclass, field


def _default_run_count() -> int:
    return (os.cpu_count() or 1) + 2


@dataclass(frozen=True, slots=True)
class Limits:
    source_bytes: int = 64 << 10
    wall_s: float = 600.0  # from start to end, calls included
    own_s: float = 60.0  # the same, without waiting for tools of servers
    cpu_s: float = 10.0  # of the program itself
    turn_s: float = 5.0  # of the program itself between two calls (Monty)
    memory_mb: int = 128  # Monty's heap
    python_memory_mb: int = 512  # CPython's address space
    calls: int = 25_000
    parallel: int = 16  # calls of one program at once
    output_chars: int = 20_000
    result_chars: int = 8_000  # of the value as JSON, to the model; more stays in `Run.value`
    result_tokens: int = 1_900
    value_nodes: int = 200_000  # of a value, an argument or a call's result
    value_bytes: int = 4 << 20
    state_bytes: int = 16 << 20  # variables between runs
    journal_bytes: int = 8 << 20  # replies to a CPython program's calls; with more it cannot wait for approval
    runs: int = field(default_factory=_default_run_count)  # at once in this process
    lent_runs: int = 32  # more of them, while others wait for tools of servers
    waiting: int = 200  # runs that wait for their turn
    depth: int = 3  # programs that call operations that run programs
