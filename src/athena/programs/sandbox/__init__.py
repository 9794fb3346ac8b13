"""The sandbox: runs programs of agents in jailed worker processes. See docs/sandbox.md.

`Sandbox(key=...).run(Program(code, names, ...), call)` returns a `Run`. The sandbox does not know
operations: the caller passes their names and a function that calls them. Heavy imports wait for the first program.
"""

from athena.programs.sandbox.calls import is_run_closed
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import Function, Namespace
from athena.programs.sandbox.sandbox import Sandbox
from athena.programs.sandbox.values import CallCounts, Failure, NeedsApproval, Pause, Program, Run

__all__ = [
    "CallCounts",
    "Failure",
    "Function",
    "Limits",
    "Namespace",
    "NeedsApproval",
    "Pause",
    "Program",
    "Run",
    "Sandbox",
    "is_run_closed",
]
