"""Names of servers in programs: identifiers that hide nothing of ours, of Python's, or of each other."""

import builtins
import sys

from athena.core.foreign_operation import to_identifier

RESERVED_NAMES = frozenset({"parallel", "ToolError", "athena", "tools", "skills", "self", "ctx", "result"})


def assign_names(keys: list[str], ours: frozenset[str]) -> dict[str, str]:
    """Give each server of the file its name: `my-server` becomes my_server, `memory` memory_server."""
    made: dict[str, str] = {}
    for key in sorted(keys, key=lambda key: (key != to_identifier(key), key)):  # what is right already keeps its name
        wanted = to_identifier(key)
        if is_name_taken(wanted, ours):
            wanted = f"{wanted.rstrip('_')}_server"
        chosen, count = wanted, 1
        while chosen in made.values() or is_name_taken(chosen, ours):
            count += 1
            chosen = f"{wanted}_{count}"
        made[key] = chosen
    return made


def is_name_taken(name: str, ours: frozenset[str]) -> bool:
    """Tell whether a program would miss what a name stands for already."""
    return name in ours or name in RESERVED_NAMES or hasattr(builtins, name) or name in sys.stdlib_module_names
