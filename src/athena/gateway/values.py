"""Values of servers: status and tools as operations return them, and the result of a call as plain JSON."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from athena.core.attachments import Attachment, create_attachment
from athena.core.types import MAX_JSON_DEPTH, is_too_deep
from athena.errors import InvalidInput, LimitExceeded
from athena.gateway import sanitize

Status = Literal["ready", "connected", "waiting", "changed", "failing", "disabled"]
HideWords = Callable[[str], str]  # takes what a server says
MAX_ERROR_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class ConnectedServer:
    name: str  # in programs
    kind: Literal["stdio", "http"]
    status: Status
    tools: int  # number of tools that can be called
    detail: str = ""  # the problem and what to do
    refused: list[str] = field(default_factory=list)  # tools that are not as they were approved
    renamed: dict[str, str] = field(default_factory=dict)  # the server's own names to ours


@dataclass(frozen=True, slots=True)
class ServerTool:
    name: str
    summary: str
    effect: str
    approval: bool  # a person must approve each call
    signature: str


@dataclass(frozen=True, slots=True)
class ToolReview:
    """A tool of a server as a person decides on it."""

    name: str  # on the server
    state: str  # new, changed, gone, same; approved, or why it is refused
    effect: str  # what the server says that it does: reads, destroys
    definition: str  # the whole definition as JSON, hidden characters escaped
    differences: list[str]  # from the approved definition
    has_hidden_text: bool
    as_read: list[str] = field(default_factory=list)  # lines of it as a model will read it


@dataclass(frozen=True, slots=True)
class ServerDetails:
    """A server as it is configured and approved."""

    server: ConnectedServer
    about: list[str]  # command or address, folder, environment
    changes: list[str]  # in that since the approval
    approved_at: float | None
    tools: list[ToolReview]
    log: list[str]  # the end of what it wrote to its standard error


@dataclass(frozen=True, slots=True)
class ServerReview:
    """What a server offers now; `subject` names exactly this, for the approval."""

    name: str
    tools: list[ToolReview]
    left_out: int
    subject: str


class ToolResult(NamedTuple):
    """The value of a call, and the binary data whose handles it contains."""

    value: Any
    attachments: list[Attachment]


def convert_tool_result(path: str, result: Any) -> ToolResult:
    """Return the value of an SDK result; raise the tool's own message if it failed."""
    blocks = list(result.content or ())
    if result.is_error:
        message = " ".join(block.text for block in blocks if block.type == "text") or "it does not say why"
        raise InvalidInput(
            f"{path} failed: {sanitize.sanitize_text(sanitize.hide_words.get()(message), MAX_ERROR_CHARS)}",
            hint="these are the server's words",
        )
    values = [_convert_block(block) for block in blocks]
    attachments = [value for value in values if isinstance(value, Attachment)]
    structured = result.structured_content
    if structured is not None:
        if is_too_deep(structured):
            raise LimitExceeded(f"{path} answered with more than {MAX_JSON_DEPTH} levels", hint="ask it for less")
        is_wrapped = isinstance(structured, dict) and list(structured) == ["result"]
        return ToolResult(
            _add_attachments(structured["result"] if is_wrapped else structured, attachments), attachments
        )
    values = [value.handle if isinstance(value, Attachment) else value for value in values]
    return ToolResult(values[0] if len(values) == 1 else values or None, attachments)


def _add_attachments(value: Any, attachments: list[Attachment]) -> Any:
    """Return a structured value with the handles of what came beside it."""
    if not attachments:
        return value
    fields = value if isinstance(value, dict) and "attachments" not in value else {"result": value}
    return fields | {"attachments": [attachment.handle for attachment in attachments]}


def _convert_block(block: Any) -> Any:
    if block.type == "text":
        return _parse_text(block.text)
    if block.type in ("image", "audio"):
        return create_attachment(block.type, block.data)
    if block.type == "resource_link":
        return {"type": "resource_link", "uri": str(block.uri), "name": block.name}
    resource = getattr(block, "resource", None)
    uri = str(getattr(resource, "uri", ""))
    if isinstance(blob := getattr(resource, "blob", None), str):
        return create_attachment("resource", blob, uri=uri)
    return {"type": str(block.type), "uri": uri, "text": str(getattr(resource, "text", ""))}


def _parse_text(text: str) -> Any:
    """Parse a JSON object or list; any other text stays text, even if it is a JSON number."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    from pydantic_core import from_json  # comes with the SDK; refuses what cannot be dumped again

    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return text if is_too_deep(value) else value


class RemoteTool(NamedTuple):
    """One tool of a server, as a call needs it."""

    server: str
    name: str  # on the server
    path: str  # in programs
    is_read_only: bool
    needs_approval: bool
    private_mark: str = ""
