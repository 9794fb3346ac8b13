"""The attack set: programs and values from data files, and the ways in which they are wrapped.

A program stands below a line `== name | engines verdict flags`. The verdict says what containment means for it:

F  it fails                             A  no approval is made: it waits, fails or returns a false value
N  it fails, or returns a false value   V  what it wrote reaches no briefing
L  a limit stops it                     D  it is done: its value must not fail it after its writes
H  it may end as it likes

Flags: `W` other projects and the skills that ship stay as they are; `raw` its text is the attack, so nothing wraps it.
For every attack: no canary in the answer, no byte at a listener, no file outside, no process left, a defined end, and
the next program of the workspace works.
"""

import ast
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
# Speaks the worker's own protocol past its checks.
FORGE = """import os, struct, json
def send(frame):
    data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    data = struct.pack('>I', len(data)) + data
    while data: data = data[os.write(1, data):]
def receive():
    def read(n):
        data = b''
        while len(data) < n: data += os.read(0, n - len(data))
        return data
    return json.loads(read(struct.unpack('>I', read(4))[0]))"""


@dataclass(frozen=True)
class Attack:
    """A program, what runs before it in its workspace, and what containment means for it."""

    name: str
    where: str  # both, python or monty
    verdict: str
    code: str
    flags: frozenset[str] = frozenset()
    before: tuple[tuple[str, str], ...] = ()  # engine ("" for the same) and source of earlier programs
    skill: str = ""  # a skill that is saved first
    after: str = "1 + 1"  # the next program
    group: str = field(default="")

    @property
    def engines(self) -> tuple[str, ...]:
        return ("monty", "python") if self.where == "both" else (self.where,)


def read_table(path: Path) -> Iterator[Attack]:
    """Read the attacks of one file."""
    for part in path.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        head, _, code = part.partition("\n")
        name, _, rest = head.rpartition(" | ")
        words = rest.split()
        flags = {*words[2:], *words[1][1:]}
        yield Attack(
            f"{path.stem}: {name}", words[0], words[1][0], code.rstrip("\n"), frozenset(flags), group=path.stem
        )


# --- programs ---------------------------------------------------------------------------------------------------------

_LONG_SOURCES: dict[str, Callable[[], str]] = {
    "import_chain": lambda: "import " + ".".join("a" * 30_000),
    "attribute_chain": lambda: "x = 1\nx" + ".a" * 30_000,
    "sum": lambda: "1" + " + 1" * 15_000,
    "brackets": lambda: "[" * 30_000 + "]" * 30_000,
    "indentation": lambda: "\n".join(" " * i + "if 1:" for i in range(300)) + "\n" + " " * 300 + "1",
    "strings": lambda: "'x' " * 15_000,
    "fstrings": lambda: "f'{f\"{" * 40 + "1" + "}\"}'" * 40,
    "decorators": lambda: "@print\n" * 8_000 + "def f(): pass",
    "names": lambda: "\n".join(f"a{i} = {i}" for i in range(5_000)) + "\n1",
    "comparisons": lambda: "1" + " < 2" * 15_000,
    "digits": lambda: "x = " + "9" * 60_000 + "\nx",
    "lambdas": lambda: "lambda: " * 7_000 + "1",
    "parallel": lambda: "parallel([" + "memory.list_tags(), " * 2_500 + "])",
    "unknown": lambda: "\n".join(f"memory.nothing_{i}(a{i}=1)" for i in range(2_000)),
    "match": lambda: "match 1:\n    case " + " | ".join(str(i) for i in range(2, 9_000)) + ":\n        pass",
    "comprehensions": lambda: "[" * 90 + "x" + " for x in [1]]" * 90,
    "unary": lambda: "not " * 14_000 + "1",
    "large": lambda: "x = 1\n" * 12_000,
    "zeros": lambda: "x = '\0\0'\n\0",
    "surrogate": lambda: "x = '\ud800'\nx",
}
# Numbers stand for what the server or a listener has, so that programs can be parsed before that is known.
NUMBERS = {"TCP": "9990001", "UDP": "9990002", "PORT": "9990003", "PID": "9990004"}
_SIGNS = {"CR": "\r", "FF": "\f", "RLO": "\u202e", "LRI": "\u2066", "PDI": "\u2069", "TAB": "\t", "EMPTY": ""}


def _fill_in(code: str) -> str:
    code = re.sub(r"@GEN:(\w+)@", lambda match: _LONG_SOURCES[match[1]](), code)
    code = re.sub(r"@(CR|FF|RLO|LRI|PDI|TAB|EMPTY)@", lambda match: _SIGNS[match[1]], code)
    code = re.sub(r"@(TCP|UDP|PORT|PID)@", lambda match: NUMBERS[match[1]], code)
    return code.replace("@FORGE@", FORGE)


class _CannotWrap(Exception):
    """The program has a form that this wrapper would change."""


def _parse(code: str) -> ast.Module:
    try:
        tree = ast.parse(code)
    except SyntaxError:
        raise _CannotWrap from None
    nodes = list(ast.walk(tree))
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        raise _CannotWrap
    if any(isinstance(node, ast.Await | ast.Global) for node in nodes) or not isinstance(tree.body[-1], ast.Expr):
        raise _CannotWrap
    return tree


def _define(code: str, name: str = "attack", keyword: str = "return") -> str:
    """Return a function that does what the program does."""
    tree = _parse(code)
    last = ast.unparse(tree.body.pop())
    body = "\n".join([*(ast.unparse(node) for node in tree.body), f"{keyword} {last}"])
    return f"def {name}():\n{textwrap.indent(body, '    ')}"


def _store_result(code: str) -> str:
    tree = _parse(code)
    last = ast.unparse(tree.body.pop())
    return "\n".join([*(ast.unparse(node) for node in tree.body), f"result_ = {last}"])


def _wrap_code(template: str) -> Callable[[Attack], Attack]:
    return lambda one: replace(one, code=template.replace("DEFINE", _define(one.code)))


def _wrap_generator(one: Attack) -> Attack:
    code = _define(one.code, keyword="yield") + "\nlist(attack())[0]"
    return replace(one, code=code, where=_python_only(one))


def _wrap_async(one: Attack) -> Attack:
    return replace(one, code="async " + _define(one.code) + "\nawait attack()")


def _wrap_class(one: Attack) -> Attack:
    code = "class Attack:\n    @property\n" + textwrap.indent(_define(one.code).replace("()", "(self)", 1), "    ")
    return replace(one, code=code + "\nAttack().attack", where=_python_only(one))


def _wrap_exec(one: Attack) -> Attack:
    return replace(one, code=f"exec({_store_result(one.code)!r})\nresult_", where=_python_only(one))


def _wrap_earlier_function(one: Attack) -> Attack:
    return replace(one, code="attack()", before=(("", _define(one.code)),))


def _wrap_function_of_other_engine(one: Attack) -> Attack:
    return replace(one, code="attack()", before=(("other", _define(one.code)),))


def _wrap_earlier_text(one: Attack) -> Attack:
    before = (("", f"source_ = {_store_result(one.code)!r}"),)
    return replace(one, code="exec(source_)\nresult_", before=before, where=_python_only(one))


def _wrap_skill(one: Attack) -> Attack:
    if len(one.code) > 8_000 or one.verdict in "V":
        raise _CannotWrap
    body = _define(one.code).partition("\n")[2]
    skill = 'def attack(go: bool = False) -> object:\n    """Attack."""\n    if not go:\n        return None\n' + body
    return replace(one, code="skills.attack(go=True)", skill=skill)


def _wrap_skill_by_name(one: Attack) -> Attack:
    code = (
        "r = skills.run(name='attack', arguments={'go': True})\nif r['status'] != 'done':\n    raise ToolError('x')\n"
    )
    return replace(_wrap_skill(one), code=code + "r['result']")


def _python_only(one: Attack) -> str:
    if one.where == "monty":
        raise _CannotWrap
    return "python"


WRAPPERS: dict[str, Callable[[Attack], Attack]] = {
    "in a function": _wrap_code("DEFINE\nattack()"),
    "in a skill": _wrap_skill,
    "in a comprehension": _wrap_code("DEFINE\n[attack() for _ in range(1)][0]"),
    "from an earlier run": _wrap_earlier_function,
    "in a handler": _wrap_code("DEFINE\ntry:\n    raise KeyError('x')\nexcept KeyError:\n    r = attack()\nr"),
    "by exec": _wrap_exec,
    "in a generator": _wrap_generator,
    "in a skill by its name": _wrap_skill_by_name,
    "async": _wrap_async,
    "in finally": _wrap_code("DEFINE\ntry:\n    r = None\nfinally:\n    r = attack()\nr"),
    "from the other engine": _wrap_function_of_other_engine,
    "in parallel": _wrap_code("DEFINE\nparallel([lambda: attack()])[0]"),
    "in a property": _wrap_class,
    "as a key": _wrap_code("DEFINE\nr = []\nsorted([1], key=lambda n: r.append(attack()) or n)\nr[0]"),
    "from a text of an earlier run": _wrap_earlier_text,
}


def list_programs() -> list[Attack]:
    """Return all programs: each as it is, and half of those that can be wrapped in one more form, by turns."""
    plain = [
        replace(attack, code=_fill_in(attack.code))
        for path in sorted((HERE / "programs").glob("*.txt"))
        for attack in read_table(path)
    ]
    wrappers = itertools.cycle(WRAPPERS.items())
    wrapped = []
    for attack in [one for one in plain if one.verdict != "L" and "raw" not in one.flags][::2]:
        for how, wrap in itertools.islice(wrappers, len(WRAPPERS)):
            try:
                wrapped.append(replace(wrap(attack), name=f"{attack.name}, {how}"))
            except _CannotWrap:
                continue
            break
    return plain + wrapped


# --- values -----------------------------------------------------------------------------------------------------------

_PLACES = ("[make_(), [make_()]]", "(make_(), (make_(), 1))", "{'a': make_(), 'b': {'c': make_()}}")
_KEYS = ("{make_(): 1}", "{make_()}", "[{(make_(), 1): 2}]")
_USES = (
    "memory.recall(query=make_())",
    "memory.remember(content='x', metadata={'m': make_()})",
    "workspace.write(path='v.json', content=make_())\nworkspace.read(path='v.json')",
    "print(make_())",
    "raise ValueError(make_())",
    "skills.run(name='weekly_summary', arguments={'days': make_()})",
    "graph.open_nodes(names=[make_()])",
    "parallel([memory.recall(query=make_()), make_()])",
    "memory.remember_batch(items=[make_()])",
    "workspace.write(path='v.csv', content=[{'a': make_()}])",
)
_TEXT_USES = (
    "memory.remember(content=make_())",
    "getattr(memory, make_())()",
    "memory.recall(**{make_(): 1})",
    "workspace.write(path=make_(), content='x')",
    "memory.remember(content='x', tags=[make_()])",
)
_FRAME_PLACES = {
    "as the value": b'{"op": "done", "value": %s, "variables": {}, "lost": [], "gone": []}',
    "as a variable": b'{"op": "done", "value": 1, "variables": {"v": %s}, "lost": [], "gone": []}',
    "as an argument": b'{"op": "call", "id": 1, "path": "memory.recall", "args": [%s], "kwargs": {}}',
    "in an argument": b'{"op": "call", "id": 1, "path": "memory.remember", "args": ["x"], "kwargs": {"metadata": %s}}',
    "as a list of names": b'{"op": "done", "value": 1, "variables": {}, "lost": %s, "gone": []}',
    "as an error": b'{"op": "done", "error": "ValueError", "message": %s, "line": %s, "hint": %s}',
}


def list_values() -> list[Attack]:
    """Return hostile values: as results, variables, parts, keys, arguments and forged frames."""
    made, places, keys = [], itertools.cycle(_PLACES), itertools.cycle(_KEYS)
    uses, texts = itertools.cycle(_USES), itertools.cycle(_TEXT_USES)
    for path in (HERE / "values.txt",):
        for part in path.read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
            head, _, code = part.partition("\n")
            name, _, rest = head.rpartition(" | ")
            where, *kinds = rest.split()
            define = _define(code.rstrip("\n"), "make_")
            forms = ["make_()", "v = make_()\n1", next(places), next(uses)]
            forms += [next(keys)] if "hashable" in kinds else []
            forms += [next(texts)] if "text" in kinds else []
            for form in forms:
                after = "v is None" if form.startswith("v = ") else "1 + 1"
                shown = form.replace("\n", "; ")
                made.append(
                    Attack(f"value: {name} in {shown}", where, "H", f"{define}\n{form}", after=after, group="values")
                )
    for part in (HERE / "frames.txt").read_text(encoding="utf-8").removeprefix("== ").split("\n== "):
        name, _, code = part.partition("\n")
        for place, frame in _FRAME_PLACES.items():
            # the next program loads the variables on Monty too
            sending = f"{FORGE}\ndata_ = {code.rstrip()}\nsend({frame!r}.replace(b'%s', data_))"
            after = "v is None" if place == "as a variable" else "1 + 1"
            made.append(Attack(f"frame: {name} {place}", "python", "H", sending, after=after, group="frames"))
    return made
