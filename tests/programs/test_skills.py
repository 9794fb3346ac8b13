"""Skills: a working function is saved, found, called and removed; a broken one is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.hashing import create_serial
from athena.core.threads import run_sync, start_in_thread
from athena.core.values import Scope
from athena.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from athena.programs import namespace, skill_source, skills
from athena.programs import rows as skill_rows
from athena.programs.skill_source import load_shipped_skills
from athena.storage import runs
from athena.storage.database import Transaction
from wait_tools import wait_until

TOTAL = '''
def tagged(tag: str, limit: int = 10) -> list[str]:
    """Return what was kept under a tag, shortest first."""
    found = memory.search_by_tag(tags=[tag], k=limit)
    return sorted((one["content"] for one in found), key=len)
'''


def call(
    app: App, name: str, /, project: str = "p", key: str | None = None, surface: str = "python", **arguments: Any
) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, surface, key), **arguments))


def run(app: App, code: str, project: str = "p", **more: Any) -> Any:
    done = call(app, "execute_code", project, code=code, **more)
    assert done.error is None, done.error
    return done.result


def save(
    app: App, name: str = "double", code: str = "def double(n: int) -> int:\n    return 2 * n", **more: Any
) -> Any:
    given = {"description": "Double a number.", "example": "double(2)"} | more
    return call(app, "save_skill", name=name, code=code, **given)


def names(app: App, query: str | None = None, project: str = "p") -> list[str]:
    return [one.name for one in call(app, "find_skills", project, query=query)]


def test_skill_is_called_inside_and_outside(app: App) -> None:
    call(app, "remember", content="a long line about deploys", tags=["deploy"])
    call(app, "remember", content="short", tags=["deploy"])
    kept = save(app, "tagged", TOTAL, description=None, example="tagged('deploy')")
    assert kept.description == "Return what was kept under a tag, shortest first."
    assert kept.signature == "tag: str, limit: int = 10"
    assert (kept.version, kept.uses, kept.project) == (1, 0, "p")
    assert run(app, "skills.tagged('deploy', limit=5)") == ["short", "a long line about deploys"]
    assert run(app, "[len(one) for one in skills.tagged(tag='deploy')]", engine="python") == [5, 25]
    done = call(app, "run_skill", name="tagged", arguments={"tag": "deploy", "limit": 1})
    assert (done.success, len(done.result), done.calls) == (True, 1, 1)
    assert run(app, "skills.run(name='tagged', arguments={'tag': 'none'})")["result"] == []
    wait_until(lambda: call(app, "get_skill", name="tagged").uses >= 4)  # usage is recorded in the background
    assert call(app, "get_skill", name="tagged").uses == 4


@pytest.mark.parametrize("engine_name", ["monty", "python"])
def test_skill_is_called_in_program_that_saves_it(app: App, engine_name: str) -> None:
    code = """
code = "def twice(n: int) -> int:\\n    return 2 * n"
skills.save(name="twice", code=code, description="Double a number.", example="twice(1)")
first = skills.twice(4)
skills.save(name="twice", code=code.replace("2 *", "20 *"), description="Much more of it.", example="twice(1)")
[first, skills.twice(n=1)]
"""
    assert run(app, code, engine=engine_name) == [8, 20]
    missing = call(app, "execute_code", code="skills.save\nskills.thrice(1)", engine=engine_name)
    assert "there is no operation 'skills.thrice'" in missing.error.message
    assert "skills.twice" in str(missing.error)


def test_number_and_size_of_skills_are_limited(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skill_rows, "MAX_SKILLS", 2)
    for name in ("one", "two"):
        save(app, name, f"def {name}() -> int:\n    return 1", example=f"{name}()")
    with pytest.raises(LimitExceeded, match="at most 2"):
        save(app)
    save(app, "two", "def two() -> int:\n    return 2", example="two()")  # a new version takes no place
    old = call(app, "get_skill", name="one")
    assert call(app, "delete_skill", name="one")
    save(app)
    with pytest.raises(LimitExceeded, match="at most 2"):
        call(app, "restore_memory", memory_id=old.id, kind="skill")
    assert call(app, "restore_memory", memory_id=call(app, "remember", content="x").id) is False  # others are no skills
    monkeypatch.setattr(skill_rows, "MAX_SKILLS_CHARS", 200)
    with pytest.raises(LimitExceeded, match="with 200"):
        save(app, "two", "def two() -> int:\n    return 2  # " + "long " * 40, example="two()")


@pytest.mark.parametrize("type_name", ["|".join(["int"] * 1_500), "-" * 1_500 + "1"])
def test_deeply_nested_type_is_refused(app: App, type_name: str) -> None:
    with pytest.raises(InvalidInput, match="nested too deeply"):
        save(app, code=f"def double(n: {type_name} = 1) -> int:\n    return 2")


def test_skill_recursion_is_limited(app: App) -> None:
    save(app)
    save(
        app,
        "quadruple",
        "def quadruple(n: int) -> int:\n    return skills.double(skills.double(n))",
        example="quadruple(1)",
    )
    assert run(app, "skills.quadruple(n=3)") == 12
    save(app, "loop", "def loop(n: int) -> int:\n    return 0", example="loop(1)")
    save(app, "loop", "def loop(n: int) -> int:\n    return skills.loop(n)", example="loop")
    done = call(app, "execute_code", code="skills.loop(1)")
    assert (done.status, "deep" in done.error.message) == ("failed", True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def double(n: int) -> int:\n    return 2 *", "line 2"),
        ("def other(n: int) -> int:\n    return n", "does not define a function 'double'"),
        ("def double(n) -> int:\n    return n", "'n' has no type"),
        ("def double(*n: int) -> int:\n    return n", "named arguments only"),
        ("async def double(n: int) -> int:\n    return n", "plain function"),
        ("def double(n: int) -> int:\n    return n\nprint(1)", "line 3"),
        ("def double(n: int) -> int:\n    return n + 'x'", "does not run: TypeError"),
        ("def double(n: int) -> int:\n    return memory.recal(query='x')", "no operation 'memory.recal'"),
        ("def double(n: int) -> int:\n    if n > 9: memory.recall(que='x')\n    return n", "no parameter 'que'"),
        ("import numpy\ndef double(n: int) -> int:\n    return n", "no module 'numpy'"),
        ("def double(n: int) -> int:\n    return memory.purge(expect=0)", "approval"),
    ],
)
def test_broken_skill_is_not_saved(app: App, code: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        save(app, code=code)
    with pytest.raises(NotFound):
        call(app, "get_skill", name="double")


@pytest.mark.parametrize("name", ["recall", "save", "find", "run", "save_skill", "write_file"])
def test_operation_name_is_taken(app: App, name: str) -> None:
    with pytest.raises(Conflict, match="operation"):
        save(app, name, f"def {name}(n: int) -> int:\n    return n", example=f"{name}(1)")


@pytest.mark.parametrize("name", ["two words", "class", "1st", "_hidden", "", "ä", "x" * 61])
def test_skill_name_must_be_callable(app: App, name: str) -> None:
    with pytest.raises(InvalidInput):
        save(app, name)


def test_skill_with_secret_is_refused(app: App) -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
    with pytest.raises(InvalidInput, match="secret"):
        save(app, code=f"def double(n: int) -> int:\n    token = '{secret}'\n    return 2 * n")


def test_undo_restores_previous_version(app: App) -> None:
    first = save(app)
    second = save(app, code="def double(n: int) -> int:\n    return n + n")
    assert (second.id, second.version) == (first.id, 2)
    assert save(app, code="def double(n: int) -> int:\n    return n + n").version == 2
    history = call(app, "memory_history", memory_id=first.id, kind="skill")
    assert "return 2 * n" in history[1].before["content"]
    call(app, "undo")
    assert "return 2 * n" in call(app, "get_skill", name="double").code
    assert run(app, "skills.double(4)") == 8
    assert call(app, "verify").ok


def test_deleted_skill_returns_by_undo(app: App) -> None:
    save(app)
    assert call(app, "delete_skill", name="double") is True
    assert call(app, "delete_skill", name="double") is False
    assert "double" not in names(app)
    done = call(app, "execute_code", code="skills.double(1)")
    assert (done.error.type, done.calls) == ("AttributeError", 0)
    call(app, "undo")
    assert run(app, "skills.double(1)") == 2
    call(app, "delete_skill", name="double")
    assert save(app).version == 2
    with pytest.raises(Conflict, match="comes with Athena"):
        call(app, "delete_skill", name="weekly_summary")


def test_skills_are_found_in_search(app: App) -> None:
    save(app, description="Double a number, as accountants do.")
    assert names(app, "make a number twice as large: double it")[0] == "double"
    assert names(app, "summary of the week")[0] == "weekly_summary"
    lines = call(app, "search_tools", query="double a number", k=3)
    assert lines[0] == "skills.double(n: int) -> int  # Double a number, as accountants do."
    assert any(line.startswith("memory.recall(") for line in call(app, "search_tools", query="recall memories", k=3))
    assert call(app, "recall", query="accountants double numbers") == []
    assert run(app, "skills.find(query='double')[0]['name']") == "double"


def test_skills_are_project_or_global(app: App) -> None:
    save(app)
    call(
        app, "save_skill", "user", name="half", code="def half(n: int) -> float:\n    return n / 2",
        description="Halve.", example="half(2)",
    )  # fmt: skip
    call(
        app, "save_skill", "q", name="half", code="def half(n: int) -> float:\n    return n / 2.0 + 100",
        description="Halve.", example="half(2)",
    )  # fmt: skip
    assert run(app, "skills.half(5)") == 2.5
    assert run(app, "skills.half(5)", "q") == 102.5
    assert "double" not in names(app, project="q")


def test_program_hides_no_skill_of_a_person(app: App) -> None:
    persons = "def greet(name: str) -> str:\n    return 'person ' + name"
    programs = "def greet(name: str) -> str:\n    return 'program ' + name"
    given: dict[str, Any] = {"name": "greet", "description": "Greet.", "example": "greet('x')"}
    call(app, "save_skill", "early", code=programs, **given)
    call(app, "save_skill", "user", surface="cli", code=persons, **given)
    assert run(app, "skills.greet('a')", "early") == "person a"
    assert call(app, "get_skill", "early", name="greet").project == "user"
    assert call(app, "run_skill", "early", name="greet", arguments={"name": "a"}).result == "person a"
    for project in ("early", "late"):
        with pytest.raises(Conflict, match="only a person may replace it"):
            call(app, "save_skill", project, code=programs, **given)
    call(app, "save_skill", "late", surface="cli", code=persons.replace("person", "late person"), **given)
    assert run(app, "skills.greet('a')", "late") == "late person a"


def test_builtin_skills_work(app: App) -> None:
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}])
    for text in ("The invoice of March is paid", "The invoice for March is paid"):
        call(app, "remember", content=text, tags=["money"])
    call(app, "record_event", event_type="action", content="paid the invoice", outcome="success")
    shipped = load_shipped_skills()
    assert shipped
    for name in shipped:
        assert call(app, "run_skill", name=name).success, name
    saved = run(app, "skills.back_up_entities('b.json')")
    assert (saved["entities"], saved["relations"]) == (1, 0)
    assert call(app, "read_file", path="b.json")["entities"][0]["name"] == "Ann"
    report = run(app, "skills.duplicate_report(threshold=0.9)")
    assert (report["groups"], report["superfluous"]) == (1, 1)
    week = run(app, "skills.weekly_summary()")
    assert (week["memories"], week["events"], week["tags"]) == (2, 1, {"money": 2})
    mine = "def weekly_summary() -> str:\n    return 'mine'"
    with pytest.raises(Conflict, match="only a person may replace it"):
        save(app, "weekly_summary", mine, example="weekly_summary()")
    save(app, "weekly_summary", mine, example="weekly_summary()", surface="cli")
    assert run(app, "skills.weekly_summary()") == "mine"
    assert names(app).count("weekly_summary") == 1


def test_wrong_arguments_show_signature(app: App) -> None:
    save(app)
    with pytest.raises(InvalidInput, match="n is missing") as caught:
        call(app, "run_skill", name="double")
    assert caught.value.hint == "skills.double(n: int)"
    done = call(app, "execute_code", code="skills.double(m=1)")
    assert "no parameter 'm'" in done.error.message
    done = call(app, "execute_code", code="try:\n    skills.double('x' * 3, 4)\nexcept Exception as e:\n    str(e)")
    assert done.error is not None
    caught_inside = run(app, "try:\n    r = skills.double(n=[None][0])\nexcept ToolError as e:\n    r = str(e)\nr")
    assert "TypeError" in caught_inside
    with pytest.raises(NotFound, match="no skill") as missing:
        call(app, "run_skill", name="duble")
    assert "double" in (missing.value.hint or "")


def test_exported_skills_import_again(app: App) -> None:
    save(app)
    files = call(app, "export_skills")
    assert set(files) == {"double.py", *(f"{name}.py" for name in load_shipped_skills())}
    for name, text in files.items():
        assert skill_source.parse_skill(name.removesuffix(".py"), text, "again").name == name.removesuffix(".py")


def test_types_become_schema() -> None:
    code = (
        "def f(a: str, b: int | None, c: list[str], d: Literal['x', 'y'], e: dict[str, int], g: Any, "
        "h: float = 1.5, *, i: bool = True) -> dict:\n    '''F.'''\n    return {}"
    )
    schema = skill_source.parse_skill("f", code).parameters
    assert schema["required"] == ["a", "b", "c", "d", "e", "g"]
    assert schema["properties"] == {
        "a": {"type": "string"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "c": {"type": "array", "items": {"type": "string"}},
        "d": {"enum": ["x", "y"]},
        "e": {"type": "object"},
        "g": {},
        "h": {"type": "number"},
        "i": {"type": "boolean"},
    }


def test_purge_removes_deleted_skill(app: App, tmp_path: Path) -> None:
    save(app)
    call(app, "delete_skill", name="double")
    assert call(app, "purge", expect=1) == 1
    assert save(app).version == 1


def test_skill_with_type_error_is_refused(app: App) -> None:
    """Even if its example does not reach the mistake."""
    code = "def found(n: int) -> list:\n    if n > 5:\n        return memory.recall(query=n)\n    return []"
    with pytest.raises(InvalidInput, match=r"line 3: .*memory\.recall.* 'str', found 'int'"):
        save(app, "found", code, description="Find.", example="found(1)")
    assert "found" not in names(app)


def count_nodes(schema: Any) -> int:
    if isinstance(schema, dict):
        return 1 + sum(map(count_nodes, schema.values()))
    return sum(map(count_nodes, schema)) if isinstance(schema, list) else 0


def test_skill_has_few_arguments_and_short_types(app: App) -> None:
    for arguments in (
        ", ".join(f"a{i}: int = 0" for i in range(60)),
        ", ".join(f"a{i}: list[dict[str, list[dict[str, int]]]] = []" for i in range(49)),
    ):
        with pytest.raises(InvalidInput, match="2,000 characters"):
            save(app, code=f"def double({arguments}) -> int:\n    return 2", example="double()")
    save(app, code=f"def double(n: {'|'.join(['int'] * 300)} = 0, m: int | None = None) -> int:\n    return 2 * n")
    loaded = run_sync(skills.load_skills(app.store, Scope("p")))["double"]
    assert loaded.parameters["properties"] == {
        "n": {"type": "integer"},
        "m": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }


def store_as_earlier_version(app: App, name: str, count: int = 170) -> None:
    """Store a skill with many arguments of long types, as versions did that had no limit."""
    arguments = ", ".join(f"a{i}: {'|'.join(['int'] * 40)} = 0" for i in range(count))
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(39):
        schema = {"anyOf": [schema, {"type": "integer"}]}
    save(app, name, f"def {name}() -> int:\n    return 7", example=f"{name}()")

    async def rewrite(tx: Transaction) -> None:
        [(skill_id, content, text)] = await tx.fetch(
            "SELECT id, content, metadata FROM memories WHERE session = :name", name=name
        )
        metadata = json.loads(text)
        fields = metadata[skills.SKILL_METADATA_KEY]
        fields["signature"] = arguments
        fields["parameters"] |= {"properties": {f"a{i}": schema for i in range(count)}}
        await tx.execute(
            "UPDATE memories SET content = :content, metadata = :metadata, digest = :digest WHERE id = :id",
            id=skill_id,
            content=content.replace("()", f"({arguments})"),
            metadata=json.dumps(metadata),
            digest=create_serial(name),
        )

    run_sync(app.store.database.write(rewrite))


def test_skills_of_earlier_versions_are_cut_and_run(app: App) -> None:
    for name in ("first", "second"):
        store_as_earlier_version(app, name)
    loaded = run_sync(skills.load_skills(app.store, Scope("p")))
    assert count_nodes([skill.parameters for skill in loaded.values()]) < 500
    assert run(app, "skills.first(1, a169=3) + skills.second()") == 14
    assert call(app, "run_skill", name="first", arguments={"a3": 1}).result == 7
    with pytest.raises(InvalidInput, match="there is no argument 'b'"):
        call(app, "run_skill", name="first", arguments={"b": 1})
    [told] = [one for one in call(app, "find_skills") if one.name == "first"]
    assert len(told.signature) < 1_100
    assert "cut: 28,958" in told.signature
    assert "cut: 28,958" in call(app, "describe_tool", name="first")
    assert call(app, "get_skill", name="first").code.count("int") > 6_000  # its code is whole
    save(app, "first", "def first() -> int:\n    return 8", example="first()")
    assert run(app, "skills.first() + skills.second(a1=2)") == 15


def test_programs_share_parsed_skills(app: App) -> None:
    save(app)
    first = run_sync(skills.load_skills(app.store, Scope("p")))["double"]
    save(app, "two", "def two() -> int:\n    return 2", example="two()")
    again = run_sync(skills.load_skills(app.store, Scope("p")))
    assert again["double"] is first
    save(app, code="def double(n: int) -> int:\n    return n + n")
    assert run_sync(skills.load_skills(app.store, Scope("p")))["double"].code != first.code
    call(app, "undo")
    assert run_sync(skills.load_skills(app.store, Scope("p")))["double"] == first


def test_types_of_skills_count_for_room(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skill_rows, "MAX_SKILLS_CHARS", 2_500)
    arguments = ", ".join(f"a{i}: int | str | None = None" for i in range(25))
    with pytest.raises(LimitExceeded, match=r"with 2,500"):
        save(app, code=f"def double({arguments}) -> int:\n    return 2", example="double()")


def test_caches_of_skills_are_bounded_by_size(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "MAX_CACHED_SET_CHARS", 20_000, raising=False)
    monkeypatch.setattr(skills, "MAX_CACHED_CHARS", 20_000, raising=False)
    text = "x" * 6_000
    for i in range(4):
        save(app, f"text_{i}", f"def text_{i}() -> str:\n    return '{text}'", example=f"text_{i}()")
        assert run(app, f"len(skills.text_{i}())") == 6_000
    names = namespace._get_catalog_names(app.catalog)
    sets = list(names.names_by_skills)
    assert sum(len(skill.code) for parsed in sets[:-1] for skill in parsed) < 20_000
    assert len(sets) < 3
    assert sum(skill.chars for skill in skills._cache.values()) <= 20_000


# --- repeated calls ---------------------------------------------------------------------------------------------------

PAYS = "events.record_event(event_type='payment', content='paid 10 euros')\npay(1)"
PAY = {"name": "pay", "code": "def pay(x: int) -> int:\n    return x\n", "description": "Pay.", "example": PAYS}


def count_payments(app: App) -> int:
    return len(call(app, "recall_events", event_type="payment"))


@pytest.mark.both_engines
def test_example_runs_once_for_a_key(app: App) -> None:
    first = call(app, "save_skill", key="k", **PAY)
    assert call(app, "save_skill", key="k", **PAY) == first
    assert count_payments(app) == 1
    with pytest.raises(Conflict, match="used for another"):
        call(app, "save_skill", key="k", **PAY | {"description": "Pay more."})
    call(app, "save_skill", key="another", **PAY)
    assert count_payments(app) == 2
    call(app, "delete_skill", name="pay")
    with pytest.raises(NotFound, match="deleted since"):
        call(app, "save_skill", key="k", **PAY)
    assert count_payments(app) == 2


@pytest.mark.both_engines
def test_example_is_not_run_again_where_the_skill_was_not_saved_yet(app: App) -> None:
    """The process ended after the example, or the answer was lost while it ran."""

    async def forget_receipt(tx: Transaction) -> None:
        await tx.execute("DELETE FROM receipts")

    first = call(app, "save_skill", key="k", **PAY)
    run_sync(app.store.database.write(forget_receipt))
    assert call(app, "save_skill", key="k", **PAY) == first
    assert count_payments(app) == 1


@pytest.mark.both_engines
def test_failed_example_is_not_run_again(app: App) -> None:
    fails = PAY | {"example": f"{PAYS}\npay(1 // 0)"}
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"the example of pay does not run: ZeroDivisionError: .* \(line "):
            call(app, "save_skill", key="k", **fails)
    assert count_payments(app) == 1


@pytest.mark.both_engines
def test_examples_of_one_key_at_once_run_once(app: App) -> None:
    slow = PAY | {"example": f"import time\ntime.sleep(0.3)\n{PAYS}"}
    jobs = [start_in_thread(call, app, "save_skill", key="k", **slow) for _ in range(3)]
    for job in jobs:
        job.wait()
    assert len({job.result().id for job in jobs}) == 1
    assert count_payments(app) == 1


def test_example_of_a_lost_process_is_not_run_again(app: App) -> None:
    first = call(app, "save_skill", key="k", **PAY)
    [trial] = call(app, "list_runs")
    scope = app.create_context("p", "python").scope

    async def lose(tx: Transaction) -> None:
        row = await runs.fetch_run(tx, scope, trial.run_id)
        assert row is not None
        await runs.upsert_run(tx, scope, row._replace(status="running", started=0.0, answer=None))
        await tx.execute("DELETE FROM receipts")

    run_sync(app.store.database.write(lose))
    with pytest.raises(InvalidInput, match="the process that ran this program ended before") as lost:
        call(app, "save_skill", key="k", **PAY)
    assert "look at what is there" in str(lost.value.hint)
    assert count_payments(app) == 1
    assert call(app, "get_skill", name="pay").id == first.id
