"""A connected MCP server and its tools, as they are shown."""

from dataclasses import dataclass, field
from typing import Literal

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
