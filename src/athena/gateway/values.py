"""A connected MCP server and its tools, as they are shown."""

from dataclasses import dataclass, field
from typing import Any, Literal

from athena.core.types import MAX_JSON_DEPTH, is_too_deep
from athena.errors import InvalidInput, LimitExceeded
from athena.gateway import sanitize

Status = Literal["ready", "connected", "waiting", "changed", "failing", "disabled"]


@dataclass(frozen=True, slots=True)
class ConnectedServer:
    name: str  # as programs write it
    kind: Literal["stdio", "http"]
    status: Status
    tools: int  # that can be called
    detail: str = ""  # what is wrong and what to do
    refused: list[str] = field(default_factory=list)  # tools that are not as they were approved
    renamed: dict[str, str] = field(default_factory=dict)  # the server's own names to ours


@dataclass(frozen=True, slots=True)
class ServerTool:
    name: str
    summary: str
    effect: str
    approval: bool  # a person has to agree to each call
    signature: str


MAX_ERROR_CHARS = 1_000  # characters of an error


def convert_tool_result(path: str, result: Any) -> Any:
    """Return the value of an SDK result; a tool's failure is raised with its own words."""
    blocks = list(result.content or ())
    if result.is_error:
        words = " ".join(one.text for one in blocks if one.type == "text") or "it does not say why"
        raise InvalidInput(
            f"{path} failed: {sanitize.sanitize_text(words, MAX_ERROR_CHARS)}", hint="these are the server's words"
        )
    structured = result.structured_content
    if structured is not None:
        if is_too_deep(structured):
            raise LimitExceeded(f"{path} answered with more than {MAX_JSON_DEPTH} levels", hint="ask it for less")
        wrapped = isinstance(structured, dict) and list(structured) == ["result"]
        return structured["result"] if wrapped else structured
    values = [_convert_block(one) for one in blocks]
    return values[0] if len(values) == 1 else values or None


def _convert_block(block: Any) -> Any:
    if block.type == "text":
        return _parse_text(block.text)
    if block.type in ("image", "audio"):
        return {"type": block.type, "mimeType": block.mime_type, "bytes": len(block.data) * 3 // 4}
    if block.type == "resource_link":
        return {"type": "resource_link", "uri": str(block.uri), "name": block.name}
    inner = getattr(block, "resource", None)
    made: dict[str, Any] = {"type": str(block.type), "uri": str(getattr(inner, "uri", ""))}
    if isinstance(text := getattr(inner, "text", None), str):
        return made | {"text": text}
    return made | {"bytes": len(getattr(inner, "blob", "") or "") * 3 // 4}


def _parse_text(text: str) -> Any:
    """Read an object or a list; a number or a word that happens to be JSON stays text."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    from pydantic_core import from_json  # with the SDK; takes nothing that cannot be written again

    try:
        made = from_json(text, allow_inf_nan=False)
    except ValueError:
        return text
    return text if is_too_deep(made) else made
