"""SQL stands in storage/ and in modules of rows, and names the scope on every table that has one."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from athena.storage.migrations import STEPS

SOURCE = Path(__file__).parents[2] / "src" / "athena"
STATEMENT = re.compile(r"\bSELECT\s.+\sFROM\s|\bINSERT INTO\s|\bUPDATE\s+\S+\s+SET\s|\bDELETE FROM\s", re.DOTALL)
TABLE = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE)\s+(\w+|\{\})")
SCOPE = re.compile(r"\bscopes?\b")
UNKNOWN = "{}"  # stands for a part of a statement that is known only when it runs
# Modules that work on the whole store, whatever the project.
WHOLE_STORE = {
    "storage/sqlite/": "an index covers the whole store; searches pass the scopes they may see as a Selection",
    "storage/postgres/": "the same",
    "storage/copying": "copies every table whole",
    "storage/migrations": "changes every table whole",
    "memory/check_rows": "verify and health look at the whole store",
}
# Single functions whose statements name no scope.
UNSCOPED = {
    "memory/link_rows:insert_link": "the other memory may belong to the user's project",
    "memory/rows:add_marks": "the same",
    "memory/rows:": "SELECT_ROWS_SQL is the beginning of statements that name the scope",
    "memory/rows:delete_memory": "links from other scopes to a purged memory go with it",
    "memory/link_rows:list_quoting_rows": "a purge must reach every copy of a text, in whichever project",
    "memory/link_rows:list_rows_that_quoted": "a purge must reach every copy of a text, in whichever project",
    "memory/rows:list_queued_memories": "the queue of rows to index is one for the whole store",
    "memory/sessions/rows:fetch_session_project": "finds the project that a session belongs to",
    "memory/consolidation/rows:fetch_marks": "reads no text, of rows that the run has read",
    "memory/consolidation/rows:clear_progress": "an unfinished run of any project may hold a purged text",
    "storage/usage:has_calls": "says of the whole store whether a surface was used",
    "storage/passages:begin_missing": "says of the whole store whether vectors are missing",
    "storage/passages:count_pending": "the background encodes the passages of all projects",
    "storage/passages:count_replaced": "the same",
    "storage/passages:count_stale": "the same",
    "storage/calls:_prune_calls": "old calls and receipts are removed for all projects",
    "storage/calls:list_recent_calls": "token_savings reports on the whole store",
    "memory/history_rows:list_call_changes": "a call of the project may have changed memories of the user's project",
    "storage/counts:": "beginnings of statements that name the scope where they run",
    "storage/counts:forget_empty": "a purge leaves no trace in any project",
    "storage/counts:recount_all": "a copied store is counted whole",
    "storage/counts:count_kinds": "export, backup, migrate and doctor count the whole store",
    "storage/counts:list_all": "verify looks at the whole store",
    "storage/vault_rows:list_readable_rows": "a new key encrypts the values of all projects",
    "storage/vault_rows:list_used_keys": "which keys are needed, in all projects",
    "storage/vault_rows:remove_receiver": "a removed server loses its leave in all projects",
    "storage/vault_rows:allocate_numbers": "one sequence of numbers for the whole store: no two projects share a token",
    "storage/usage:sum_usage": "token_savings reports on the whole store",
    "storage/usage:list_usage": "report_use does so, too, and says so by its reach",
    "storage/calls:list_durations": "the same",
    "memory/transfer/peer_rows:iter_table_rows": "reads the file of another program, not a store",
}


class Statement(NamedTuple):
    module: str  # relative to athena, without .py
    function: str
    sql: str


def list_scoped_tables() -> set[str]:
    tables = re.findall(r"CREATE TABLE (\w+) \((.*?)(?=CREATE|\Z)", "\n".join(STEPS), re.DOTALL)
    return {name for name, columns in tables if re.search(r"\bscope (?:BIGINT|TEXT)\b", columns)}


def collect_strings(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the names that are set to a string or to a filter's condition in a module or function, with the value."""
    found: dict[str, ast.expr] = {}
    for statement in body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Assign):
                continue
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp | ast.BinOp):
                found[target.id] = value
            if isinstance(target, ast.Tuple) and "build_where_clause" in ast.unparse(value):
                found[target.elts[0].id] = ast.Constant("m.scope IN ()")  # type: ignore[attr-defined]
    return found


def to_sql(node: ast.expr | None, strings: Mapping[str, ast.expr]) -> str:
    """Return a string expression as text, as far as its parts are known without running it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(to_sql(part, strings) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in strings:
            known = {other: value for other, value in strings.items() if other != name}
            return to_sql(strings[name], known)
        case ast.BinOp(left=left, right=right):
            return to_sql(left, strings) + to_sql(right, strings)
        case ast.IfExp(body=body, orelse=orelse):  # a part that may be left out cannot be relied on
            return min(to_sql(body, strings), to_sql(orelse, strings), key=len)
    return UNKNOWN


def iter_statements() -> Iterator[Statement]:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    constants: dict[str, ast.expr] = {}
    for tree in trees.values():
        constants |= collect_strings([node for node in tree.body if isinstance(node, ast.Assign)])
    for path, tree in trees.items():
        module = str(path.relative_to(SOURCE).with_suffix(""))
        yield from iter_expressions(tree, module, "", constants)


def iter_expressions(node: ast.AST, module: str, function: str, strings: dict[str, ast.expr]) -> Iterator[Statement]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            own = strings | collect_strings(child.body)
            yield from iter_expressions(child, module, function or child.name, own)
        elif isinstance(child, ast.Constant | ast.JoinedStr):
            sql = to_sql(child, strings)
            if STATEMENT.search(sql):
                yield Statement(module, function, sql)
        else:
            yield from iter_expressions(child, module, function, strings)


@pytest.fixture(scope="module")
def statements() -> list[Statement]:
    return list(iter_statements())


def names_scope(sql: str) -> bool:
    if sql.lstrip().startswith("INSERT"):
        return bool(SCOPE.search(sql.partition(")")[0]))
    return bool(SCOPE.search(sql.partition("WHERE")[2]))


def test_sql_stays_in_storage_and_rows(statements: list[Statement]) -> None:
    assert len(statements) > 150
    modules = {statement.module for statement in statements if not statement.module.startswith("storage/")}
    assert not {module for module in modules if not re.fullmatch(r"(.*/)?(\w+_)?rows", module)}


def test_scoped_statements_name_scope(statements: list[Statement]) -> None:
    scoped = list_scoped_tables()
    assert {"memories", "history", "relations", "runs", "files"} <= scoped
    unscoped: dict[str, list[str]] = {}
    for module, function, sql in statements:
        if module.startswith(tuple(WHOLE_STORE)):
            continue
        if {*TABLE.findall(sql)} & {*scoped, UNKNOWN} and not names_scope(sql):
            unscoped.setdefault(f"{module}:{function}", []).append(" ".join(sql.split()))
    assert not {name: sql for name, sql in unscoped.items() if name not in UNSCOPED}
    assert not {*UNSCOPED} - {*unscoped}, "remove the exceptions that are not needed any more"
