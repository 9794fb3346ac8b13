"""What a person approves is what runs: a review shows the code that can run, or says that it cannot."""

from typing import Any

import pytest

from athena.app.compose import App
from athena.cli.programs import format_review
from athena.core.approval import Approval
from athena.core.threads import run_sync
from athena.errors import Denied
from conftest import FULL
from person_tools import decide_run

pytestmark = pytest.mark.sqlite_only("what is shown does not depend on the store")
ENGINES = pytest.mark.parametrize("runs_on", ["monty", "python"])
GOOD = "def helper(x):\n    return x.upper()\nhelper('a')"
EVIL = "def evil(x):\n    memory.remember(content='EVIL ' + x)\n    return x\n"
CALL = "memory.purge(expect=0)\nhelper('later')"
WARNING = "IT CAN RUN OTHER CODE"


def call(app: App, name: str, /, surface: str = "mcp", leave: Approval | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", surface, approval=leave), **arguments))


def run(app: App, code: str, runs_on: str = "auto") -> Any:
    result = call(app, "execute_code", code=code, engine=runs_on)
    assert result.status in ("done", "needs_approval"), result.error
    return result


def show(app: App, run_id: str) -> str:
    return "\n".join(format_review(run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))))


@ENGINES
@pytest.mark.parametrize(
    "code",
    [
        EVIL + "helper = evil",
        EVIL + "if True:\n    def helper(x):\n        return evil(x)",
        EVIL + "def outer():\n    global helper\n    def helper(x):\n        return evil(x)\nouter()",
        EVIL + "helper = lambda x: evil(x)",
        EVIL + "def helper(x):\n    return x\nhelper = evil",
        EVIL + "[helper := evil for _ in [0]]",
        EVIL + "for helper in [evil]:\n    pass",
    ],
)
def test_name_with_another_value_is_not_shown_as_its_old_source(app: App, code: str, runs_on: str) -> None:
    run(app, GOOD, runs_on)
    run(app, code + "\n1", runs_on)
    result = call(app, "execute_code", code=CALL, engine=runs_on)
    if result.status == "failed":  # CPython has lost it
        return
    text = show(app, result.run_id)
    decide_run(app, result.run_id)
    ran_evil = any("EVIL" in memory.content for memory in call(app, "list_memories", "cli"))
    assert not ran_evil or "EVIL" in text or "with no source to show: helper" in text


@ENGINES
@pytest.mark.parametrize("name", ["℘", "a·b"])
def test_every_identifier_is_found(app: App, name: str, runs_on: str) -> None:
    run(app, f"def {name}(x):\n    return memory.remember(content='EVIL ' + x)\n1", runs_on)
    result = run(app, f"memory.purge(expect=0)\n{name}('later')", runs_on)
    assert "EVIL" in show(app, result.run_id)


@ENGINES
def test_default_value_of_earlier_program_is_not_shown_as_newer_one(app: App, runs_on: str) -> None:
    run(app, f"{EVIL}def helper(x, f=evil):\n    return f(x)\n1", runs_on)
    run(app, "def evil(x):\n    return x\n1", runs_on)
    text = show(app, run(app, CALL, runs_on).run_id)
    assert runs_on == "python" or WARNING in text  # CPython defines it again, with the newer one


@ENGINES
@pytest.mark.parametrize(
    "code",
    [
        "getattr(memory, 'pur' + 'ge')(expect=0)\nmemory.remember(content='x')\nif 0: memory.purge(expect=0)",
        "def go(f):\n    return f(expect=0)\np = [memory.purge]\nfor f in p:\n    go(f)\n1",
        "print(memory.purge(expect=0),\n  memory.remember(content='x'))",
        "memory.purge(expect=0); memory.remember(content='x')",
    ],
)
def test_lines_that_follow_are_not_denied(app: App, code: str, runs_on: str) -> None:
    assert "no line follows" not in show(app, run(app, code, runs_on).run_id)


@ENGINES
@pytest.mark.parametrize(
    "code",
    [
        "d[\n    memory.remember(content='x').get('id')\n] = memory.purge(expect=0)",
        "d[\n    memory.remember(content='x').get('id')\n]: int = memory.purge(expect=0)",
        "d = (\n    memory.remember(content='x')\n    if memory.purge(expect=0) == 0 else 1)",
    ],
)
def test_earlier_lines_that_follow_are_named(app: App, code: str, runs_on: str) -> None:
    waits = run(app, f"d = {{}}\n{code}", runs_on)
    assert not call(app, "list_memories", "cli")  # line 3 has not run yet
    assert "lines 2 to 4 follow it" in show(app, waits.run_id)


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __enter__(self): return 1\n    def __exit__(self, *_): memory.remember(content='x')\n"
        "with A():\n    memory.purge(expect=0)",
        "def g():\n    try:\n        yield 1\n    finally:\n        memory.remember(content='x')\n"
        "i = g()\nnext(i)\nmemory.purge(expect=0)",
    ],
)
def test_code_at_the_end_is_not_denied(app: App, code: str) -> None:
    assert "no line follows" not in show(app, run(app, code, "python").run_id)


@pytest.mark.parametrize(
    "rest",
    [
        "exec(v)",
        "eval('e' + 'v')",
        "import json\njson.codecs.builtins.exec(v)",
        "type(memory)('skills.' + v)()",
        "from operator import attrgetter\nattrgetter('re' + 'member')(memory)(content='x')",
        "(i for i in []).gi_frame.f_globals['v']",
        "memory.__class__",
        "skills.run_skill(name='pe' + 'ek')",
        "f = skills.run_skill\nf(name=v)",
        "skills.save_skill(name='a', code=v, example='a()')",
        "match memory:\n    case object(__class__=c):\n        c('memory.stats')()",
    ],
)
def test_code_that_cannot_be_known_is_announced(app: App, rest: str) -> None:
    run(app, f"v = {'harmless ' * 100 + 'END'!r}\n1", "python")
    text = show(app, run(app, f"memory.purge(expect=0)\n{rest}", "python").run_id)
    assert WARNING in text
    assert "harmless END" in text  # whole
    assert "any line may follow" in text


# the name of an unsafe builtin is bound somewhere, or is not bound at the time: it still reads the builtin
HIDDEN_NAMES = [
    "exec = exec\nexec(v)",
    "def f(exec=exec):\n    exec(v)\nf()",
    "(lambda exec=exec: exec(v))()",
    "(exec := exec)(v)",
    "if 0:\n    exec = 1\nexec(v)",
    "[0 for exec in ()]\nexec(v)",
    "try:\n    pass\nexcept Exception as exec:\n    pass\nexec(v)",
    "def g(exec): pass\nexec(v)",
    "if 0:\n    import math as exec\nexec(v)",
    "for eval in [eval]:\n    eval(v)",
    "getattr = getattr\ngetattr(memory, 're' + 'member')(content='x')",
    "globals = globals\nglobals()['hel' + 'per']('x')",
    "if 0:\n    from math import sqrt as exec\nexec(v)",
    "match 1:\n    case exec if 0:\n        pass\nexec(v)",
]


@pytest.mark.parametrize("rest", HIDDEN_NAMES)
def test_bound_name_hides_no_builtin(app: App, rest: str) -> None:
    run(app, f"v = {'harmless ' * 100 + 'END'!r}\ndef helper(x):\n    return 'HELP'\n1", "python")
    text = show(app, run(app, f"memory.purge(expect=0)\n{rest}", "python").run_id)
    assert WARNING in text
    assert "harmless END" in text  # whole
    assert "return 'HELP'" in text
    assert "any line may follow" in text


def test_file_behind_bound_name_is_shown_and_bound(app: App) -> None:
    write_file(app, "a.txt", "memory.remember(content='one')")
    run_id = run(app, "memory.purge(expect=0)\ndef g(exec): pass\nexec(workspace.read(path='a.txt'))").run_id
    review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))
    assert "the file a.txt of the workspace:" in show(app, run_id)
    [leave] = app.approver.grant([review.subject])
    write_file(app, "a.txt", "memory.remember(content='EVIL')")
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", leave, run_id=run_id)


@ENGINES
def test_plain_program_raises_no_alarm(app: App, runs_on: str) -> None:
    code = (
        "import json\nimport statistics as s\nrows = [r['content'] for r in memory.list_memories()]\n"
        "try:\n    x = json.loads('[1]')\nexcept ValueError as e:\n    print(type(e).__name__)\n"
        "print(s.mean([1, 2]), sorted(rows, key=len), ', '.join(rows))\nmemory.purge(expect=0)"
    ).replace("import statistics as s\n", "" if runs_on == "monty" else "import statistics as s\n")
    code = code.replace("s.mean([1, 2])", "1") if runs_on == "monty" else code
    text = show(app, run(app, code, runs_on).run_id)
    assert WARNING not in text
    assert "no line follows it" in text


def save_peek(app: App, body: str) -> None:
    code = f"def peek() -> str:\n    {body}"
    call(app, "save_skill", name="peek", code=code, description="x", example="peek()")


@ENGINES
def test_skill_by_computed_name_is_bound_to_approval(app: App, runs_on: str) -> None:
    save_peek(app, "return 'a'")
    run_id = run(app, "memory.purge(expect=0)\nskills.run_skill(name='pe' + 'ek')['result']", runs_on).run_id
    review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))
    assert "peek" in review.skills
    [leave] = app.approver.grant([review.subject])
    save_peek(app, "return 'b'")
    with pytest.raises(Denied):
        call(app, "approve_run", "cli", leave, run_id=run_id)
    assert decide_run(app, run_id).result == "b"


@ENGINES
def test_approved_run_uses_skills_that_were_shown(app: App, runs_on: str) -> None:
    """Also a skill that the run itself saves after the approval was not shown."""
    save_peek(app, "return 'a'")
    change = "skills.save_skill(name='peek', code='def peek() -> str:\\n    return 1 * \"b\"', description='x')"
    run_id = run(app, f"memory.purge(expect=0)\n{change}\nskills.run_skill(name='peek')", runs_on).run_id
    result = decide_run(app, run_id)
    assert result.error is not None
    assert "changed" in result.error.message


EXEC_FILE = "memory.purge(expect=0)\nexec(workspace.read(path='a.txt'))\n1"


def write_file(app: App, path: str, content: str) -> None:
    call(app, "write_file", path=path, content=content)


def test_file_that_runs_as_code_is_shown_and_bound(app: App) -> None:
    write_file(app, "a.txt", "x = 1\nmemory.remember(content='EVIL 1')\n")
    write_file(app, "big.txt", "y" * 200_000)
    run_id = run(app, EXEC_FILE).run_id
    text = show(app, run_id)
    assert WARNING in text
    assert "the file a.txt of the workspace:" in text
    assert "     2 | memory.remember(content='EVIL 1')" in text
    assert "too long to show: big.txt (200,000 bytes)" in text
    review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))
    for path in ("a.txt", "big.txt", "new.txt"):
        [leave] = app.approver.grant([review.subject])
        write_file(app, path, "memory.remember(content='EVIL 2')")
        with pytest.raises(Denied):
            call(app, "approve_run", "cli", leave, run_id=run_id)
        review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))
    assert decide_run(app, run_id).status == "done"


def test_small_file_is_shown_beside_large_ones(app: App) -> None:
    for number in range(3):
        write_file(app, f"a{number}.txt", "y" * 60_000)
    write_file(app, "z.txt", "memory.remember(content='EVIL')")
    text = show(app, run(app, EXEC_FILE.replace("a.txt", "z.txt")).run_id)
    assert "EVIL" in text
    assert text.count("too long to show") == 1


def test_plain_program_is_not_bound_to_files(app: App) -> None:
    run_id = run(app, "memory.purge(expect=0)").run_id
    review = run_sync(app.programs.review_run(app.create_context("p", "cli"), run_id))
    write_file(app, "a.txt", "x")
    [leave] = app.approver.grant([review.subject])
    assert call(app, "approve_run", "cli", leave, run_id=run_id).status == "done"


# letters that Python takes for others in identifiers (NFKC)
LOOK_ALIKES = ["ｈｅｌｐｅｒ", "ℎelper", "𝐡𝐞𝐥𝐩𝐞𝐫", "helpeʳ", "hᵉlper"]
BINDINGS = [
    "def {}(x):\n    return evil(x)",
    "{} = evil",
    "for {} in [evil]:\n    pass",
    "[{} := evil for _ in [0]]",
    "def outer():\n    global {}\n    {} = evil\nouter()",
]


@ENGINES
@pytest.mark.parametrize("binding", BINDINGS)
def test_look_alike_names_are_one_name(app: App, binding: str, runs_on: str) -> None:
    """What is bound to a look-alike is what runs under the name: a review shows it, or says that it cannot."""
    ran_evil: list[bool] = []
    first = BINDINGS.index(binding)  # each look-alike is tried with two bindings
    names = LOOK_ALIKES if FULL else [LOOK_ALIKES[(first + i) % len(LOOK_ALIKES)] for i in range(2)]
    for number, name in enumerate(names):
        run(app, GOOD, runs_on)
        run(app, f"{EVIL}{binding.format(name, name)}\n1", runs_on)
        for code in (CALL, CALL.replace("helper", name), CALL.replace("purge", "ｐurge")):
            code = code.replace("later", f"{number} {len(ran_evil)}")  # the same text is stored once
            waits = call(app, "execute_code", code=code, engine=runs_on)
            if waits.status == "failed":  # CPython has lost it, or the engine does not take the name
                continue
            assert waits.status == "needs_approval"
            text = show(app, waits.run_id)
            before = len(call(app, "list_memories", "cli", k=100))
            decide_run(app, waits.run_id)
            ran_evil.append(len(call(app, "list_memories", "cli", k=100)) > before)
            assert not ran_evil[-1] or "EVIL" in text or "with no source to show: helper" in text, (name, code)
    assert any(ran_evil) or binding != BINDINGS[0]  # an engine may keep or lose what is no definition
