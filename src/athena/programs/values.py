"""Runs of programs, skills, and the context in which a program is run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from athena.core.approval import Approval
from athena.core.operation import Caller
from athena.core.values import Call, Scope
from athena.storage.privacy import PrivateReads

if TYPE_CHECKING:
    from athena.core.catalog import Catalog
    from athena.memory.store import Store

Status = Literal["done", "failed", "needs_approval", "unknown"]
EngineName = Literal["auto", "monty", "python"]
TYPE_CHARS_FACTOR = 20
ARGUMENTS_VARIABLE = "given__"  # holds the arguments in the program that calls a skill


class ProgramCaller(Caller, Protocol):
    """The context of an operation that runs a program, and of the calls that the program makes."""

    @property
    def store(self) -> "Store": ...

    @property
    def catalog(self) -> "Catalog": ...

    @property
    def scope(self) -> Scope: ...

    @property
    def call(self) -> Call: ...

    @property
    def run_id(self) -> str | None:
        """The run of the program that makes this call; None outside of programs."""
        ...

    @property
    def approval(self) -> Approval | None:
        """A person's leave for this call, if it needs one."""
        ...

    @property
    def private_reads(self) -> PrivateReads:
        """What the program that makes this call has read."""
        ...

    @property
    def pinned_skills(self) -> Mapping[str, "Skill"] | None:
        """The skills that a person saw before the run went on: it may use no others. None: it uses the stored ones."""
        ...

    @property
    def hides_values(self) -> bool:
        """Return whether texts in the store hold tokens in place of personal values."""
        ...

    async def hide_values(self, value: Any, *, by_program: bool = False) -> Any:
        """Return a value as it may be stored, or shown to a model."""
        ...

    async def reveal_values(self, value: Any) -> Any:
        """Return a stored value as the caller may see it."""
        ...

    async def reveal_program(self, source: str) -> str:
        """Return a program with the values that it may see."""
        ...

    def pin_skills(self, skills: Mapping[str, "Skill"]) -> Self: ...

    def for_program(
        self, run_id: str, workspace: str, is_run_closed: Callable[[], bool], private_reads: PrivateReads
    ) -> Self: ...


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of a program."""

    type: str
    message: str
    line: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person's approval."""

    operation: str
    arguments: dict[str, Any]
    reason: str = ""  # why it waits, if not because the operation always does


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a program, as its caller gets it."""

    success: bool
    status: Status
    output: str
    result: Any
    error: Fault | None
    elapsed_ms: float
    calls: int
    run_id: str
    truncated: bool = False
    handle: str | None = None  # path of the workspace file with the whole value
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """A stored run, as lists show it."""

    run_id: str
    workspace: str
    status: Literal["running", "done", "failed", "refused", "needs_approval", "unknown"]  # refused: by a person
    started: float
    elapsed_ms: float | None
    calls: int
    engine: str
    error: str | None
    waiting: Waiting | None
    answer: Result | None = None  # only `get_run` fills it, while the answer is stored


@dataclass(frozen=True, slots=True)
class WatchedProgram:
    """A program that this process runs or ran lately, as a person may see it; what follows `tokens_read` is whole."""

    run_id: str
    line: str  # its first one
    tokens_written: int  # by whoever wrote it
    tokens_read: int  # of its answer
    source: str | None = None
    output: str = ""  # so far
    calls: dict[str, int] = field(default_factory=dict, hash=False)  # by operation
    answer: Result | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """What a purge would remove for good: what the call names, None for all that is forgotten, and exactly which."""

    refs: list[int | str] | None
    digest: str  # empty if something that it names is not there: then the call removes nothing


@dataclass(frozen=True, slots=True)
class RunReview:
    """A paused run as a person must see it; `subject` names exactly this, for the approval."""

    run_id: str
    workspace: str
    engine: str
    operation: str
    arguments: dict[str, Any]
    lines: list[str]  # of the program
    call_lines: list[int]  # that name the operation, from 1; none if the program reaches it in another way
    next_line: int | None  # the first line that may run after the call; None if any line may
    definitions: dict[str, list[str]]  # of earlier programs in the workspace, that this one uses, as lines
    skills: dict[str, list[str]]  # that the program names, as lines
    variables: dict[str, Any]  # of earlier programs, that this one uses
    unknown_names: list[str]  # of earlier programs, whose source or value is not stored
    unforeseen: list[str]  # why code may run that is not shown; then all that is stored is shown whole
    calls_made: dict[str, int]  # before the pause, by operation
    private_reads: list[str]  # what it has read that is private: files, or server:NAME
    passphrase: str  # the identity of the one that was set when the run paused; empty if none was
    subject: str
    files: dict[str, list[str]] = field(default_factory=dict)  # of the workspace, as lines, where they may run as code
    unshown_files: dict[str, int] = field(default_factory=dict)  # and those too long to show, with their bytes
    removal: Removal | None = None  # of a purge


@dataclass(frozen=True, slots=True)
class Skill:
    name: str
    description: str
    code: str
    signature: str  # as Python writes it: "name: str, limit: int = 5"
    returns: str
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)  # as JSON Schema
    example: str = ""

    @property
    def chars(self) -> int:
        """About how many characters the skill takes while it is held; its types take far more than they are long."""
        text_chars = len(self.code) + len(self.description) + len(self.example)
        return text_chars + TYPE_CHARS_FACTOR * (len(self.signature) + len(self.parameters.get("properties", ())))

    @property
    def program(self) -> str:
        """A program that calls the skill with the arguments in `ARGUMENTS_VARIABLE`."""
        return f"{self.code.rstrip()}\n\n{self.name}(**{ARGUMENTS_VARIABLE})\n"


@dataclass(frozen=True, slots=True)
class KeptSkill:
    """A skill with its usage, as operations return it."""

    name: str
    description: str
    code: str
    signature: str
    returns: str
    example: str
    uses: int
    version: int
    updated: float | None  # None: it comes with Athena
    id: int | None  # for memory_history
    project: str | None


@dataclass(frozen=True, slots=True)
class FoundSkill:
    """A skill in search results."""

    name: str
    signature: str
    returns: str
    description: str
    uses: int
