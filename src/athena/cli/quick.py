"""`athena recall` by the running server, without click, whose import takes several times as long as Python's own start.

Everything that is not a plain search with hits is left to the command itself: other options, mistakes, no hits, errors.
"""

from __future__ import annotations

import os
import sys

from athena.app import connect
from athena.app.compact import format_weaker, split_hits
from athena.app.engine import AnswerLost, EngineUnusable, encode_call
from athena.cli.output import format_memory_line, print_lines
from athena.cli.streams import use_safe_streams
from athena.core.home.paths import current_project
from athena.core.threads import run_sync
from athena.errors import AthenaError

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from typing import Any

    from athena.core.values import Kind

MAX_HITS = 20  # the command may show more of them a page at a time
DEFAULT_HITS = 5
RECALLED_KINDS: tuple[Kind, ...] = ("memory", "entity", "event")  # documents are memories
# What `athena recall` asks for beside its options; a test compares the two.
RECALL_ARGUMENTS: dict[str, Any] = {
    "understand_time": True,
    "kinds": list(RECALLED_KINDS),
    "tags": None,
    "since": None,
    "until": None,
}
TEXT_OPTIONS = {"-t": "tags", "--tag": "tags"} | {f"--{name}": name for name in ("tags", "since", "until", "project")}


def run_recall(argv: list[str]) -> bool:
    """Search and print the hits; return False, without having printed anything, where the command has to do it."""
    arguments = _parse_options(argv)
    if arguments is None or os.environ.get("DEBUG") or not _knows_variables():
        return False
    project = arguments.pop("project", None) or current_project()
    try:
        engine = connect.find_engine()
        request = encode_call("recall", arguments, project, "cli", "")
        if engine is None or request is None:
            return False
        page = run_sync(engine.call(request))
    except (EngineUnusable, AnswerLost, AthenaError):
        return False
    if not page["data"] or page["is_model_off"]:
        return False
    with use_safe_streams():
        hits, left_out = split_hits(page["data"])
        print_lines(map(format_memory_line, hits))
        if weaker := page["weaker"] + left_out:
            print(format_weaker(weaker, "--min-score 0"), file=sys.stderr)
    return True


def _parse_options(argv: list[str]) -> dict[str, Any] | None:
    """Return the arguments of the operation; None for anything that click should see."""
    arguments: dict[str, Any] = RECALL_ARGUMENTS | {"k": DEFAULT_HITS, "min_score": None}
    rest, queries = list(argv), []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            queries.append(word)
            continue
        name, has_value, value = word.partition("=")
        if not has_value:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if name in TEXT_OPTIONS:
            arguments[TEXT_OPTIONS[name]] = value
        elif name in ("-k", "--limit") and value.isascii() and value.isdigit() and 0 < int(value[:4]) <= MAX_HITS:
            arguments["k"] = int(value)
        else:
            return None
    return arguments | {"query": queries[0]} if len(queries) == 1 else None


def _knows_variables() -> bool:
    """Return whether no variable needs a warning, which the command prints."""
    known = {"ATHENA_PROJECT", *connect.list_setting_variables()}
    return all(name in known for name in os.environ if name.startswith("ATHENA_"))


def main(argv: list[str]) -> int | None:
    """Run `athena recall`; return its exit code, or None where click has to parse the line."""
    try:
        return 0 if run_recall(argv) else None
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit must not fail
        return 1
