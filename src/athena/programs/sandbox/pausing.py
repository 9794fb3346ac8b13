"""A run that waits for a person, written down so that any process can go on with it."""

import json
from collections.abc import Mapping
from typing import Any

from athena.errors import InvalidInput
from athena.programs.sandbox.program import Pause
from athena.programs.sandbox.state import pack_content, seal, unpack_content, unseal

MAX_APPROVAL_BYTES = 64 << 10  # bytes of arguments that a person is asked about


class CannotPause(Exception):
    """A run that should wait, and cannot."""


def create_pause(
    key: bytes, owner: str, head: Mapping[str, Any], dump: bytes, request: Mapping[str, Any], most: int
) -> Pause:
    """Write down a run where it stands, unless it holds too much."""
    path, arguments, content = head["path"], head["arguments"], pack_content(head, dump)
    if len(json.dumps(arguments)) > MAX_APPROVAL_BYTES:
        raise CannotPause(
            f"{path} waits for a person, who cannot look at more than {MAX_APPROVAL_BYTES:,} bytes of arguments"
        )
    if len(content) > most * 2:  # with the variables as they were
        raise CannotPause(f"{path} waits for a person, and the program holds more than {most >> 20} MB (state_bytes)")
    return Pause(seal(key, "pause", owner, content), path, arguments, request)


def read_pause(key: bytes, owner: str, snapshot: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what a paused run wrote down, and the whole of it for `Drive.resume`."""
    content = unseal(key, "pause", owner, snapshot)
    try:
        return unpack_content(content)[0], content
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"this paused run cannot be read: {error}") from None
