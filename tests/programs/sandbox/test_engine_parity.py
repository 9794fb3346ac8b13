"""A program means the same on both engines, or runs on the engine that handles it correctly."""

from collections.abc import Generator
from typing import Any

import pytest
from small_world import KEY, HeldWorld, run

from athena.programs.sandbox import Limits, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


CREATE = 'graph.create_entities(entities=[{"name": n}])["created"]'


@pytest.mark.parametrize(
    ("code", "engine", "calls"),
    [
        (f"any({CREATE} for n in ['a', 'b', 'c'])", "python", 1),
        (f"all({CREATE} > 1 for n in ['a', 'b', 'c'])", "python", 1),
        (f"next({CREATE} for n in ['a', 'b', 'c'])", "python", 1),
        (f"next(({CREATE} for n in ['a', 'b', 'c'] if n != 'a'), None)", "python", 1),
        (f"any({CREATE} for m in 'xy' for n in ['a', 'b', 'c'])", "python", 1),
        (f"xs = ['a', 'b']\ndef f(k):\n    return any(any({CREATE} for n in xs) for _ in k)\nf('xyz')", "python", 1),
        (f"g = ({CREATE} for n in ['a', 'b'])\nnext(g)", "python", 1),
        (f"({CREATE} for n in ['a', 'b'])\nNone", "python", 0),
        (f"for v in map(lambda n: {CREATE}, ['a', 'b', 'c']):\n    break", "python", 1),
        (f"any(map(lambda n: {CREATE}, ['a', 'b', 'c']))", "python", 1),
        (f"class A:\n    xs = ['a', 'b']\n    hit = any({CREATE} for n in xs)\nNone", "python", 1),
        (f"list({CREATE} for n in ['a', 'b'])", "monty", 2),
        (f"list(map(lambda n: {CREATE}, ['a', 'b']))", "monty", 2),
        (f"list(map(lambda n: {CREATE}, filter(lambda n: n, ['a'])))", "python", 1),
        (f"sorted(['b', 'a'], key=lambda n: {CREATE})", "monty", 2),
        (f"max(['b', 'a'], key=lambda n: {CREATE})", "python", 2),
        (f"def f(n): return {CREATE}\nmax(['b', 'a'], key=f)", "python", 2),
        (f"sum({CREATE} for n in ['a', 'b'])", "monty", 2),
    ],
)
def test_call_count_matches_python(sandbox: Sandbox, code: str, engine: str, calls: int) -> None:
    done = run(sandbox, code)
    assert done.error is None, done.error
    assert (done.engine, done.calls) == (engine, calls), done.reason
    assert done.result == run(sandbox, code, engine="python").result


@pytest.mark.parametrize(
    ("code", "engine", "answer"),
    [
        ("z = zip([1], [2])\n[list(z), list(z)]", "python", [[[1, 2]], []]),
        ("m = map(str, [1])\n[list(m), list(m)]", "python", [["1"], []]),
        ("seen = []\nfor x in (y for y in [1, 1] if y not in seen):\n    seen.append(x)\nseen", "python", [1]),
        ("xs = []\nxs.extend(y for y in [1, 1] if y not in xs)\nxs", "python", [1]),
        ("q = [1]\nfor i, x in enumerate(q):\n    if x < 3:\n        q.append(x + 1)\nq", "python", [1, 2, 3]),
        ("xs = [1]\nfor i, x in enumerate(xs):\n    if i < 3: xs += [x]\nlen(xs)", "python", 4),
        ("xs = [1, 2]\nys = []\nfor x, y in zip(xs, xs):\n    ys.append(x + y)\nys", "monty", [2, 4]),
        ("d = {'a': 1}\nfor i, k in enumerate(d.keys()):\n    d[k] = i\nd", "python", {"a": 0}),
        ("q = [1]\nfor i, (x, y) in enumerate(zip(q, 'abc')):\n    q.append(x)\nlen(q)", "python", 4),
        ("a, b = map(int, '1 2'.split())\n[a, b, ' '.join(map(str, [1, 2]))]", "monty", [1, 2, "1 2"]),
        ("from re import sub as s\ns('a*', '-', 'baac')", "python", "-b--c-"),
        ("import re\nf = re.sub\nf('a*', '-', 'baac')", "python", "-b--c-"),
        ("import re\np = re.compile('b')\np.sub(lambda m: 'x', 'abc')", "python", "axc"),
        ("xs = [1, 2]\nfor i, x in enumerate(xs):\n    xs[i] = x * 2\nxs", "python", [2, 4]),
        ("any((w := x) > 1 for x in [1, 2, 3]) and w", "python", 2),
        ("any(1 // x for x in [1, 0])", "python", True),
        ("next((x for x in [{'a': 1}, {}] if x['a']), None)", "python", {"a": 1}),
        ("def f(k):\n    return next((x for x in [1, 2, 3] if x > k), 'none')\n[f(1), f(9)]", "python", [2, "none"]),
        ("[x for x in map(str, range(2)) if x in map(str, [1])]", "python", ["1"]),
        ("f'{all(x for x in [1])} {sorted(zip([2, 1], \"ab\"))[0][1]}'", "python", "True b"),
        ("any(\n    # one\n    x\n    for x in (0,\n 2)\n)", "python", True),
        ("import itertools\nlist(zip('ab', itertools.count()))", "python", [["a", 0], ["b", 1]]),
        ("import itertools\nfor i, x in enumerate(itertools.count(5)):\n    if i: break\nx", "python", 6),
        ("enumerate(['a'])", "python", [[0, "a"]]),
        ("[round(x, 2) for x in (2.675, 0.005, -1.005, 1e300)]", "monty", [2.67, 0.01, -1.0, 1e300]),
        ("[round(1250.0, -2), round(1250.5, -2), round(15, -1), round(2.5), round(1.25, 1)]", "monty", None),
        ("import re\nre.sub('a*', '-', 'baac')", "python", "-b--c-"),
        ("import re\np = 'x*'\nre.split(p, 'axbc')", "python", ["", "a", "", "b", "c", ""]),
        ("import re\np = re.compile(r'\\s+')\np.sub(' ', 'a  b')", "monty", "a b"),
        ("import re\nre.sub('^', '> ', 'a')", "python", "> a"),
        ("import re\n[re.findall(p, 'ab') for p in ('a', 'b*')]", "python", [["a"], ["", "b", ""]]),
        ("import re\nre.search('(?P<y>b)', 'ab').start('y')", "python", 1),
        ("len('é'.encode('latin-1'))", "python", 1),
        ("len('é'.encode())", "monty", 2),
    ],
)
def test_value_matches_python(sandbox: Sandbox, code: str, engine: str, answer: Any) -> None:
    done, right = run(sandbox, code), run(sandbox, code, engine="python")
    assert done.error is None, done.error
    assert done.result == right.result
    assert answer is None or done.result == answer
    assert done.engine == engine, done.reason


@pytest.mark.parametrize("engine", ["monty", "python"])
@pytest.mark.parametrize(
    "code",
    [
        "tasks = [slow.wait(seconds=0, value=n) for n in (1, 2)]\nawait asyncio.gather(*tasks)",
        "a = slow.wait(seconds=0, value=1)\n[await a, await slow.wait(seconds=0, value=2)]",
        "def f(n):\n    return slow.wait(seconds=0, value=n)\n[await f(1), (await asyncio.gather(f(2)))[0]]",
        "async def f():\n    return [1, await asyncio.run]\n[asyncio.run(slow.wait(seconds=0, value=1)), 2]",
        "hits = [memory.recall(query='bob'), 2]\n[len((await asyncio.gather(*hits))[0]), await hits[1]]",
    ],
)
def test_operation_result_can_be_awaited(sandbox: Sandbox, code: str, engine: str) -> None:
    done = run(sandbox, f"import asyncio\n{code}", engine=engine)
    assert done.error is None, done.error
    assert done.result == [1, 2]


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.wait_for(slow.wait(seconds=0, value=1), 5)",
        "await asyncio.create_task(slow.wait(seconds=0, value=1))",
        "await asyncio.shield(asyncio.ensure_future(slow.wait(seconds=0, value=1)))",
        "done, _ = await asyncio.wait([slow.wait(seconds=0, value=1)])\ndone.pop().result()",
        "async with asyncio.TaskGroup() as g:\n    t = g.create_task(slow.wait(seconds=0, value=1))\nt.result()",
        "[await one for one in asyncio.as_completed([slow.wait(seconds=0, value=1)])][0]",
    ],
)
def test_asyncio_tasks_accept_operations(sandbox: Sandbox, code: str) -> None:
    done = run(sandbox, f"import asyncio\n{code}")
    assert done.error is None, done.error
    assert (done.engine, done.result) == ("python", 1)


def test_asyncio_tasks_run_concurrently(sandbox: Sandbox) -> None:
    world = HeldWorld(at_once=2)
    code = "import asyncio\nts = [asyncio.create_task(slow.wait(seconds=0, value=n)) for n in range(4)]\n"
    assert run(sandbox, f"{code}await asyncio.gather(*ts)", world).result == [0, 1, 2, 3]
    assert world.most_at_once > 1


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    return 5\nexcept:\n    pass\n7",
        "for x in range(9):\n    try:\n        if x == 5: return x\n    except BaseException:\n        continue",
        "import contextlib\nwith contextlib.suppress(BaseException):\n    return 5\n7",
        "from __future__ import annotations\nn: int = 5\ntry:\n    def f(): return n\n    return f()\nfinally: m = 1",
        "try:\n    return await slow.wait(seconds=0, value=5)\nexcept:\n    pass\n7",
        "global n\ntry:\n    n = 5\nexcept ValueError as error:\n    return 1\nn",
    ],
)
def test_return_is_not_caught(sandbox: Sandbox, code: str) -> None:
    done = run(sandbox, code, engine="python")
    assert done.error is None, done.error
    assert done.result == 5


def test_return_in_try_keeps_variables(sandbox: Sandbox) -> None:
    first = run(sandbox, "import heapq\ntry:\n    x = [1]\n    return 1\nexcept: pass", engine="python")
    assert run(sandbox, "x", state=first.state).result == [1]
