"""No regular expression of ours takes time that grows with the square of a text: its search holds up all threads.

Each pattern is tried on texts that its own parts suggest: what stands before a repetition without end, then what this
repeats, many times, then a character that fits nothing.
"""

import ast
import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]  # Python's own, which has no stubs
from typing import Any, NamedTuple

import athena
from linear_time import is_time_linear

ROOT = Path(athena.__file__).parent
METHODS = frozenset(["search", "finditer", "findall", "sub", "subn", "split", "match", "fullmatch"])
MAX_SAMPLE_CHARS = 200
MAX_SAMPLE_REPEATS = 3
RUN_CHARS, LONG_RUN_CHARS = 1_500, 6_000
QUICK_S = 0.004  # CPU time of a long run that no quadratic pattern reaches
CATEGORY_CHARS = {
    _constants.CATEGORY_DIGIT: "1",
    _constants.CATEGORY_SPACE: " \n",
    _constants.CATEGORY_WORD: "a_1Z",
    _constants.CATEGORY_NOT_DIGIT: "a ",
    _constants.CATEGORY_NOT_SPACE: "a.",
    _constants.CATEGORY_NOT_WORD: " .-",
}
ANY_CHARS = "a .1-_\"'=:/\n\\\t[]{}()<>@#é"
# Patterns whose texts are short, and why they are.
BOUNDED = {
    "athena.cli.clients.toml_edit.TRAILING_COMMENTS_PATTERN": "a client's configuration, which the person names",
    "athena.cli.programs": "what the person types",
    "athena.core.redaction.nearby": "a value of at most 128 characters",
    "athena.core.redaction.prose": "a word of at most 256 characters",
    "athena.core.redaction.settings": "a value of at most 256 characters",
    "athena.documents.formats.markup.ATX_PATTERN": "the jailed process that parses documents has a limit of CPU time",
    "athena.hooks.past_sessions.CODEX_NAME_PATTERN": "the name of a file",
    "athena.memory.sessions.episodes.COMMIT_PATTERN": "MAX_WORK_CHARS of a command",
    "athena.memory.sessions.episodes.TAG_PATTERN": "MAX_WORK_CHARS of a command",
    "athena.memory.sessions.episodes.VALUE_PATTERN": "MAX_WORK_CHARS of a command",
    "athena.memory.sessions.extract.CAUSE_PATTERN": "MAX_SENTENCE_CHARS of a sentence",
    "athena.memory.sessions.extract.CODE_PATTERN": "MAX_SENTENCE_CHARS of a sentence",
    "athena.memory.sessions.orders": "MAX_ORDER_CHARS of a text whose white space is folded",
    "athena.memory.sessions.supersede.SHORT_CHANGE_PATTERN": "a statement of at most MAX_STATEMENT_CHARS",
    "athena.memory.sessions.wording.SUBJECT_PATTERN": "matched at the beginning of a statement only",
    "athena.server.page.rendering": "our own icons",
}


class Usage(NamedTuple):
    """A pattern, and how it is used."""

    where: str
    pattern: "re.Pattern[str]"
    methods: frozenset[str]


def list_usages() -> list[Usage]:
    """Return all patterns of the package that can be known without running it."""
    sources = {path: path.read_text("utf-8") for path in sorted(ROOT.rglob("*.py")) if path.name != "__main__.py"}
    methods: dict[str, set[str]] = {}
    for source in sources.values():
        for name, method in re.findall(r"\b(_?[A-Z][A-Z0-9_]*)\.(\w+)\b", source):
            methods.setdefault(name, set()).add(method)
    usages: dict[tuple[re.Pattern[str], frozenset[str]], Usage] = {}
    for path, source in sources.items():
        module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
        for usage in (*iter_constants(module, methods), *iter_calls(ast.parse(source), module)):
            usages.setdefault((usage.pattern, usage.methods), usage)
    return list(usages.values())


def iter_constants(module: Any, methods: dict[str, set[str]]) -> Iterator[Usage]:
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            used = frozenset(methods.get(name, ())) & METHODS
            yield Usage(f"{module.__name__}.{name}", value, used or frozenset(["finditer"]))


def iter_calls(tree: ast.Module, module: Any) -> Iterator[Usage]:
    """Yield the patterns of calls such as `re.sub(...)` and `compile_pattern(...).search(...)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in METHODS:
            continue
        compiled = node.func.value
        if isinstance(compiled, ast.Call) and "compile" in ast.unparse(compiled.func):
            function = getattr(module, "compile_pattern", re.compile)
            arguments, keywords = compiled.args, compiled.keywords
        elif ast.unparse(compiled) == "re":
            function, arguments = re.compile, node.args[:1]
            keywords = [key for key in node.keywords if key.arg == "flags"]
        else:
            continue
        with suppress(NameError, AttributeError, TypeError):  # put together in a function
            pattern = function(
                *[evaluate(argument, module) for argument in arguments],
                **{str(key.arg): evaluate(key.value, module) for key in keywords},
            )
            if isinstance(pattern.pattern, str):
                yield Usage(f"{module.__name__}:{node.lineno}", pattern, frozenset([node.func.attr]))


def evaluate(node: ast.expr, module: Any) -> Any:
    return eval(compile(ast.Expression(node), "", "eval"), vars(module))


def iter_texts(pattern: "re.Pattern[str]") -> Iterator[tuple[str, str]]:
    """Yield what to begin a text with, and what to repeat."""
    yield from dict.fromkeys(iter_runs(list(_parser.parse(pattern.pattern, pattern.flags)), ""))


def iter_runs(parts: list[Any], before: str) -> Iterator[tuple[str, str]]:
    for kind, details in parts:
        if str(kind).endswith("REPEAT"):
            most, repeated = details[1], list(details[2])
            if most == _constants.MAXREPEAT:
                chars = list_chars(repeated) if len(repeated) == 1 else ""
                for unit in {*chars[:8], create_sample(repeated), create_sample(repeated, 1)} - {""}:
                    yield before, unit
                    yield "", before + unit
            yield from iter_runs(repeated, before)
        elif kind is _constants.SUBPATTERN:
            yield from iter_runs(list(details[3]), before)
        elif kind is _constants.ATOMIC_GROUP:
            yield from iter_runs(list(details), before)
        elif kind is _constants.BRANCH:
            for branch in details[1]:
                yield from iter_runs(list(branch), before)
        before = (before + create_sample([(kind, details)]))[-MAX_SAMPLE_CHARS:]


def create_sample(parts: list[Any], which: int = 0) -> str:
    """Return a text that parts of a pattern match, more or less: lookarounds do not count."""
    text = ""
    for kind, details in parts:
        if str(kind).endswith("REPEAT"):
            least, most, repeated = details
            text += create_sample(list(repeated), which) * min(max(least, 1), most, MAX_SAMPLE_REPEATS)
        elif kind is _constants.SUBPATTERN:
            text += create_sample(list(details[3]), which)
        elif kind is _constants.ATOMIC_GROUP:
            text += create_sample(list(details), which)
        elif kind is _constants.BRANCH:
            text += create_sample(list(details[1][which % len(details[1])]), which)
        else:
            chars = list_chars([(kind, details)])
            text += chars[which % len(chars)] if chars else ""
    return text


def list_chars(parts: list[Any]) -> str:
    """Return some characters that a part of a pattern matches; nothing for what is no character."""
    ((kind, details),) = parts
    if kind is _constants.LITERAL:
        return chr(details)
    if kind in (_constants.NOT_LITERAL, _constants.ANY):
        return "".join(char for char in ANY_CHARS if char != "\n" and (details is None or ord(char) != details))
    if kind is not _constants.IN:
        return ""
    chars, is_negated = "", False
    for item, value in details:
        if item is _constants.NEGATE:
            is_negated = True
        elif item is _constants.LITERAL:
            chars += chr(value)
        elif item is _constants.RANGE:
            chars += chr(value[0]) + chr(value[1])
        elif item is _constants.CATEGORY:
            chars += CATEGORY_CHARS[value]
    if is_negated:
        tested = re.compile("[" + "".join(re.escape(char) for char in chars) + "]") if chars else None
        return "".join(char for char in ANY_CHARS if tested is None or not tested.match(char))
    return chars


def try_pattern(usage: Usage, text: str) -> None:
    text += "\x00"
    if "fullmatch" in usage.methods:
        usage.pattern.fullmatch(text)
    if "match" in usage.methods:
        usage.pattern.match(text)
    if usage.methods - {"match", "fullmatch"}:
        for _ in usage.pattern.finditer(text):
            pass


def find_slow_texts(usage: Usage) -> list[tuple[str, str]]:
    return [(before, unit) for before, unit in iter_texts(usage.pattern) if is_slow(usage, before, unit)]


def is_slow(usage: Usage, before: str, unit: str) -> bool:
    began = time.process_time()
    try_pattern(usage, before + unit * (LONG_RUN_CHARS // len(unit)))
    if time.process_time() - began < QUICK_S:
        return False
    return not is_time_linear(partial(try_pattern, usage), before, unit, RUN_CHARS)


def test_every_pattern_takes_linear_time() -> None:
    usages = list_usages()
    assert len(usages) > 400
    slow = {usage.where: find_slow_texts(usage) for usage in usages if usage.where.partition(":")[0] not in BOUNDED}
    assert {where: texts for where, texts in slow.items() if texts} == {}


def test_quadratic_patterns_are_noticed() -> None:
    for source in (r"^\s*worktree\s*=", r"\[[A-Z][A-Z0-9_]*[_:]\w+\]", r"(?:a|b)+c", r"x\s*\n\s*y", r"<!--.*?-->"):
        assert find_slow_texts(Usage("", re.compile(source, re.MULTILINE | re.DOTALL), frozenset(["search"]))), source
    assert not find_slow_texts(Usage("", re.compile(r"(?<!a)a++b|\b\w+\b"), frozenset(["search"])))
