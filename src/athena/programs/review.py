"""What a person sees before a paused program goes on: the call that waits, the whole source, and what follows."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from athena.core.approval import digest_subject
from athena.core.catalog import Catalog
from athena.core.operation import Effect
from athena.core.values import Scope
from athena.programs.reach import Reach, find_reach, has_frozen_values
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.state import MAX_KNOWN_NAMES, State, read_pause, unpack_content
from athena.programs.sandbox.values import ProgramRejected
from athena.programs.values import Removal, RunReview, Skill
from athena.storage import runs, workspaces
from athena.storage.database import Transaction
from athena.storage.workspaces import FileRow

MAX_SHOWN_FILE_BYTES = 64 << 10  # of all files of a workspace
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


def add_files(review: RunReview, files: Sequence[FileRow], texts: Mapping[str, str]) -> RunReview:
    """Return the review with the files of its workspace; the approval then holds for these alone."""
    versions = [str(part) for file in files for part in file]
    return replace(
        review,
        files={path: split_lines(text) for path, text in texts.items()},
        unshown_files={file.path: file.size for file in files if file.path not in texts},
        subject=f"run {review.run_id} {digest_subject(review.subject, *versions)}",
    )


def add_removal(review: RunReview, removal: Removal) -> RunReview:
    """Return the review with what the call would remove for good; the approval then holds for exactly this."""
    subject = f"run {review.run_id} {digest_subject(review.subject, removal.digest)}"
    return replace(review, removal=removal, subject=subject)


async def read_files(scope: Scope, workspace: str, tx: Transaction) -> tuple[list[FileRow], dict[str, str]]:
    """Return the files of a workspace, and the texts of the smallest ones, as many as a person can look at."""
    files = await workspaces.list_files(tx, scope, workspace)
    texts: dict[str, str] = {}
    bytes_left = MAX_SHOWN_FILE_BYTES
    for file in sorted(files, key=lambda file: (file.size, file.path)):
        bytes_left -= file.size
        if bytes_left < 0:
            break
        texts[file.path] = await workspaces.fetch_file(tx, scope, workspace, file.path) or ""
    return files, texts


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
    path: str = head["path"]
    operations = [operation for operation in catalog if operation.effect is Effect.EXECUTE and not operation.is_foreign]
    finder = _ReachFinder({name for operation in operations for name in operation.names})
    definitions, named_skills = finder.collect(
        code, state.sources, {name: skill.code for name, skill in skills.items()}
    )
    reach, known = finder.reach, {*state.known, *state.plain, *state.sources}
    if row.engine == "monty":
        frozen = [name for name, text in definitions.items() if has_frozen_values(text)]
        reach.reasons += [f"{name} holds values from an earlier program" for name in frozen]
    words = reach.names | known if reach.reasons else set(reach.names)
    unknown_names = sorted(words & known - set(state.plain) - set(state.sources))
    if state.known_names is None:
        unknown_names.append(f"all after the first {MAX_KNOWN_NAMES:,}")
    names = {path.rpartition(".")[2]}
    if path in catalog:
        names |= set(catalog.get_operation(path).names)
    others = [*definitions.values(), *named_skills.values()]
    is_known = not (reach.reasons or unknown_names or reach.has_late_code or head.get("inputs"))
    call_lines, next_line = _locate_call(code, names, others if is_known else None)
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
        unknown_names,
        reach.reasons,
        {name: counts["done"] + counts["failed"] for name, counts in head["made"].items()},
        row.private.split(),
        head.get("request", {}).get("passphrase", ""),
        f"run {row.id} {digest_subject(project, row.snapshot, *shown_skills)}",
    )


def split_lines(text: str) -> list[str]:
    """Split a source where Python ends a line, so that a lone carriage return hides no code behind a comment."""
    return _LINE_END_PATTERN.split(text.rstrip("\r\n"))


class _ReachFinder:
    """Collects what a program can reach: by the names in its texts, or everything where a text can compute a name."""

    def __init__(self, runners: set[str]) -> None:
        self.reach, self._runners = Reach(), runners

    def collect(
        self, code: str, sources: Mapping[str, str], skills: Mapping[str, str]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the definitions and the skills that the code can run."""
        definitions: dict[str, str] = {}
        named_skills: dict[str, str] = {}
        todo = [("the program", code)]
        while todo:
            title, text = todo.pop()
            self.reach.add(find_reach(text, title, self._runners))
            for titles, texts, named in (("", sources, definitions), ("the skill ", skills, named_skills)):
                new = {
                    name: text
                    for name, text in texts.items()
                    if name not in named and (self.reach.reasons or name in self.reach.names)
                }
                named |= new
                todo += [(f"{titles}{name}", text) for name, text in new.items()]
        return definitions, named_skills


def _locate_call(code: str, names: set[str], others: list[str] | None) -> tuple[list[int], int | None]:
    """Return the lines that name the operation, and the first line that may run after the call if that is certain.

    `others` are all other texts that may run; None if they are not all known.
    """
    try:
        tree = ProgramSource(code, len(code) * 4 + 1).tree
    except ProgramRejected:  # of another version
        return [], None
    places: list[tuple[ast.expr, ast.stmt | None]] = []  # with the innermost statement; None where it repeats
    todo: list[tuple[ast.AST, ast.stmt | None]] = [(child, child) for child in tree.body]
    while todo:
        node, statement = todo.pop()
        if (isinstance(node, ast.Attribute) and node.attr in names) or (
            isinstance(node, ast.Name) and node.id in names
        ):
            places.append((node, statement))
        if statement is None or isinstance(node, _REPEATING_NODES):
            statement = None
        elif isinstance(node, ast.stmt):
            statement = node
        todo += [(child, statement) for child in ast.iter_child_nodes(node)]
    lines = sorted({node.end_lineno or node.lineno for node, _ in places})
    is_elsewhere = others is None or any(name in text for name in names for text in others)
    if len(places) != 1 or is_elsewhere:
        return lines, None
    [(place, statement)], [line] = places, lines
    if statement is None:
        return lines, None
    touching = [node for node in tree.body if node.lineno <= line <= (node.end_lineno or line)]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    is_plain = isinstance(value, ast.Call) and value.func is place and all(isinstance(t, ast.Name) for t in targets)
    if touching == [statement] and is_plain:
        return lines, (statement.end_lineno or line) + 1
    # something in the same line may follow, too; so may earlier lines of the statement: `a[f()] = call()`
    return lines, min(line, statement.lineno)
