"""Parameter types that more than one operation uses."""

from typing import Annotated, Any, Literal, TypedDict

from athena.core.types import Param
from athena.core.values import Kind

Content = Annotated[str, Param("The text to keep. Secrets in it are replaced before anything is stored.")]
Question = Annotated[str, Param("What to look for, in plain language.", least=1, most=20_000)]
Limit = Annotated[int, Param("How many to return.", least=1, most=10_000)]
Offset = Annotated[int, Param("How many to skip first.", least=0, most=10**15)]
After = Annotated[
    int | str | None,
    Param(
        "The id or hash of the last memory of the page before: go on after it. Unlike offset it costs no more later."
    ),
]
Tags = Annotated[str | list[str] | None, Param("One tag, several between commas, or a list.")]
Match = Annotated[Literal["any", "all"], Param("Whether any of the tags is enough, or all are needed.")]
MemoryType = Annotated[str | None, Param("The type of memory, e.g. note, decision, preference.")]
Metadata = Annotated[
    dict[str, Any] | None,
    Param("Anything else worth knowing; session_id, speaker, role, source and date are understood."),
]
Importance = Annotated[float, Param("From 0 to 1.", least=0, most=1)]
NewImportance = Annotated[float | None, Param("From 0 to 1.", least=0, most=1)]
Score = Annotated[
    float | None,
    Param("Leave out what answers less probably than this, from 0 to 1; 0 shows chance hits too.", least=0, most=1),
]
When = Annotated[
    str | float | None,
    Param("A time in plain words ('last week', 'Q3 2025', '2026-03-01') or in seconds since 1970."),
]
Ref = Annotated[int | str, Param("The memory's id, its hash, or the beginning of its hash.")]
Refs = Annotated[list[int | str], Param("Ids or hashes.", least=1, most=10_000)]
Workspace = Annotated[
    str | None, Param("Which workspace; by default the program's own, else 'default'.", least=1, most=100)
]
ExpectUpdated = Annotated[
    float | None, Param("Change it only if nobody else did since it was read: its `updated` of then.")
]
OfKind = Annotated[Kind | None, Param("The kind of thing that the id names; by default any.")]
Expect = Annotated[int | None, Param("Exactly how many will be affected; without it the error says how many.", least=0)]


class Item(TypedDict, total=False):
    """One of several memories to keep."""

    content: str
    tags: str | list[str] | None
    memory_type: str
    metadata: dict[str, Any] | None
    importance: float


Items = Annotated[list[str | Item], Param("Texts, or objects with content, tags, memory_type, metadata.", most=10_000)]
