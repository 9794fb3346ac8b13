"""What a person sees before a paused program goes on: the call that waits, the whole source, and what follows."""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from athena.core.approval import digest_subject
from athena.core.catalog import Catalog
from athena.core.text import normalize_text
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.state import State, read_pause, unpack_content
from athena.programs.sandbox.values import ProgramRejected
from athena.programs.values import Skill
from athena.storage import runs

_REPEATING_NODES = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.comprehension,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_LINE_END_PATTERN = re.compile("\r\n|\r|\n")  # the line ends that Python knows
_WORD_PATTERN = re.compile(r"\w+")
# With these, or with any name between double underscores, a program reaches what it does not name, so all is shown.
# fmt: off
_REFLECTIVE_NAMES = frozenset((
    "globals", "locals", "vars", "eval", "exec", "compile", "getattr", "builtins", "f_globals", "f_locals", "sys",
    "inspect", "gc", "operator", "attrgetter", "methodcaller", "importlib", "runpy", "pickle", "types",
))
# fmt: on


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
    next_line: int | None  # the first line that runs after the call; None if any line may
    definitions: dict[str, list[str]]  # of earlier programs in the workspace, that this one uses, as lines
    skills: dict[str, list[str]]  # that the program names, as lines
    variables: dict[str, Any]  # of earlier programs, that this one uses
    unknown_names: list[str]  # of earlier programs, whose source or value is not stored
    calls_made: dict[str, int]  # before the pause, by operation
    private_reads: list[str]  # what it has read that is private: files, or server:NAME
    subject: str


def review_run(
    project: str, row: runs.RunRow, owner: str, key: bytes, catalog: Catalog, skills: Mapping[str, Skill]
) -> RunReview:
    """Read the sealed pause of a run; raise InvalidInput if it was changed."""
    assert row.snapshot is not None
    head, body = read_pause(key, owner, row.snapshot)
    if head.get("engine") != "python":
        state = State(**head["state"])
    else:
        state = State.from_sealed(key, owner, unpack_content(body)[1] or None).add_variables(head["inputs"])
    code: str = head.get("code", "")
    definitions = _collect_named(code, state.sources)
    texts = [code, *definitions.values()]
    named_skills = _collect_named("\n".join(texts), {name: skill.code for name, skill in skills.items()})
    words = _find_words(texts)
    if _is_reflective(words):
        words |= {*state.plain, *state.known}
    path: str = head["path"]
    names = {path.rpartition(".")[2]}
    if path in catalog:
        names |= set(catalog.get_operation(path).names)
    call_lines, next_line = _locate_call(code, names)
    shown_skills = [text for name in sorted(named_skills) for text in (name, named_skills[name])]
    return RunReview(
        row.id,
        row.workspace,
        row.engine,
        path,
        head["arguments"],
        split_lines(code),
        call_lines,
        next_line,
        {name: split_lines(text) for name, text in definitions.items()},
        {name: split_lines(text) for name, text in named_skills.items()},
        {name: value for name, value in state.plain.items() if name in words},
        sorted(words & set(state.known) - set(state.plain) - set(state.sources)),
        {name: counts["done"] + counts["failed"] for name, counts in head["made"].items()},
        row.private.split(),
        f"run {row.id} {digest_subject(project, row.snapshot, *shown_skills)}",
    )


def split_lines(text: str) -> list[str]:
    """Split a source where Python ends a line, so that a lone carriage return hides no code behind a comment."""
    return _LINE_END_PATTERN.split(text.rstrip("\r\n"))


def _find_words(texts: Iterable[str]) -> set[str]:
    # Python folds names, so that a full-width name is the same as a plain one
    return {word for text in texts for word in _WORD_PATTERN.findall(normalize_text("NFKC", text))}


def _is_reflective(words: set[str]) -> bool:
    return bool(words & _REFLECTIVE_NAMES) or any(word.startswith("__") and word.endswith("__") for word in words)


def _collect_named(code: str, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the sources whose names occur in the code, and those that occur in these."""
    named: dict[str, str] = {}
    todo = [code]
    while todo:
        words = _find_words([todo.pop()])
        finds_any = _is_reflective(words)
        new = {name: text for name, text in sources.items() if (finds_any or name in words) and name not in named}
        named |= new
        todo += new.values()
    return named


def _locate_call(code: str, names: set[str]) -> tuple[list[int], int | None]:
    """Return the lines that name the operation, and the first line after the call if that is certain."""
    try:
        tree = ProgramSource(code, len(code) * 4 + 1).tree
    except ProgramRejected:  # of another version
        return [], None
    places: list[tuple[ast.expr, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, repeats = todo.pop()
        if (isinstance(node, ast.Attribute) and node.attr in names) or (
            isinstance(node, ast.Name) and node.id in names
        ):
            places.append((node, repeats))
        repeats = repeats or isinstance(node, _REPEATING_NODES)
        todo += [(child, repeats) for child in ast.iter_child_nodes(node)]
    lines = sorted({node.end_lineno or node.lineno for node, _ in places})
    if len(places) != 1 or places[0][1]:
        return lines, None
    [line] = lines
    statement = next(node for node in tree.body if node.lineno <= line <= (node.end_lineno or line))
    is_compound = any(isinstance(node, ast.stmt) for node in ast.walk(statement) if node is not statement)
    return lines, line + 1 if is_compound else (statement.end_lineno or line) + 1
