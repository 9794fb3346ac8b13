"""The sandbox: runs programs of agents in jailed worker processes. See docs/sandbox.md.

`Sandbox(key=...).run(Program(code, names, ...), call)` gives a `Run`. The sandbox knows nothing of operations: it is
told names, and is given a function to call for them. Nothing heavy is imported before the first program runs.
"""

from athena.programs.sandbox.calls import is_run_closed
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import Function, Namespace
from athena.programs.sandbox.sandbox import Sandbox
from athena.programs.sandbox.values import Failure, Made, NeedsApproval, Pause, Program, Run

__all__ = [
    "Failure",
    "Function",
    "Limits",
    "Made",
    "Namespace",
    "NeedsApproval",
    "Pause",
    "Program",
    "Run",
    "Sandbox",
    "is_run_closed",
]
