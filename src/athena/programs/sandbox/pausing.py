"""A run that waits for a person, written down so that any process can go on with it."""

import json
from collections.abc import Mapping
from typing import Any

from athena.errors import InvalidInput
from athena.programs.sandbox.program import Pause
from athena.programs.sandbox.state import packed, seal, unpacked, unseal

MOST_SHOWN = 64 << 10  # bytes of arguments that a person is asked about


class Unpaused(Exception):
    """A run that should wait, and cannot."""


def paused(
    key: bytes, owner: str, head: Mapping[str, Any], dump: bytes, request: Mapping[str, Any], most: int
) -> Pause:
    """Write down a run where it stands, unless it holds too much."""
    path, arguments, content = head["path"], head["arguments"], packed(head, dump)
    if len(json.dumps(arguments)) > MOST_SHOWN:
        raise Unpaused(f"{path} waits for a person, who cannot look at more than {MOST_SHOWN:,} bytes of arguments")
    if len(content) > most * 2:  # with the variables as they were
        raise Unpaused(f"{path} waits for a person, and the program holds more than {most >> 20} MB (state_bytes)")
    return Pause(seal(key, "pause", owner, content), path, arguments, request)


def opened_pause(key: bytes, owner: str, snapshot: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what a paused run wrote down, and the whole of it for `Drive.resume`."""
    content = unseal(key, "pause", owner, snapshot)
    try:
        return unpacked(content)[0], content
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"this paused run cannot be read: {error}") from None
