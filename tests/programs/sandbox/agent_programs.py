"""Realistic programs of agents, with their right answers and the engine that routing must choose."""

import ast
from typing import Any, NamedTuple


class Agent(NamedTuple):
    name: str
    engine: str
    code: str
    answer: Any


_TABLE = r"""
== find and update in a loop | monty | ['status: processed']
for name in ["alice", "bob", "carol"]:
    node = graph.open_nodes(names=[name])["entities"][0]
    graph.add_observations(observations=[{"entityName": name, "contents": ["status: processed"]}])
graph.open_nodes(names=["bob"])["entities"][0]["observations"]
== filter, sort, top three | monty | ['Person 24', 'Person 23', 'Person 22']
people = crm.contacts.list(size=100)["items"]
top = sorted(people, key=lambda p: p["id"], reverse=True)[:3]
[p["name"] for p in top]
== group by city | monty | {'Lima': 8, 'Oslo': 9, 'Rome': 8}
from collections import defaultdict
groups = defaultdict(list)
for p in crm.contacts.list(size=100)["items"]:
    groups[p["city"]].append(p)
{city: len(groups[city]) for city in sorted(groups)}
== count with Counter | monty | [['Oslo', 9], ['Rome', 8]]
from collections import Counter
Counter(p["city"] for p in crm.contacts.list(size=100)["items"]).most_common(2)
== pages until the end | monty | 25
items, page = [], 0
while True:
    got = crm.contacts.list(page=page, size=7)
    items.extend(got["items"])
    if not got["more"]:
        break
    page += 1
len(items)
== join two lists | monty | {'Person 0': 1470.0, 'Person 1': 1554.0}
totals = {}
for order in crm.orders():
    totals[order["contact"]] = totals.get(order["contact"], 0) + order["total"]
names = {p["id"]: p["name"] for p in crm.contacts.list(size=100)["items"]}
{names[c]: totals[c] for c in (0, 1)}
== retry after a failure | monty | 'gave up after 3: conflict'
tries = 0
while True:
    tries += 1
    try:
        slow.fail(message="busy")
    except ToolError as e:
        if tries == 3:
            result = f"gave up after {tries}: {str(e).split(':')[0]}"
            break
result
== a missing node is reported, the rest goes on | monty | [['alice', 1], ['zed', 'missing'], ['bob', 0]]
out = []
for name in ["alice", "zed", "bob"]:
    try:
        out.append((name, len(graph.open_nodes(names=[name])["entities"][0]["observations"])))
    except ToolError:
        out.append((name, "missing"))
out
== a table in Markdown | monty | '| name | city |\n| --- | --- |\n| Person 0 | Oslo |\n| Person 1 | Rome |'
rows = crm.contacts.list(size=2)["items"]
lines = ["| name | city |", "| --- | --- |"]
lines += [f"| {r['name']} | {r['city']} |" for r in rows]
"\n".join(lines)
== a return at the top | monty | 'found'
for p in crm.contacts.list(size=100)["items"]:
    if p["id"] == 7:
        return "found"
return "not found"
== a return in a branch | monty | 3
nodes = graph.search_nodes(query="")["entities"]
if len(nodes) > 1:
    return len(nodes)
else:
    return "few"
== money as text | monty | ['$0.00', '$10.50', '$1,234.50']
[f"${x:,.2f}" for x in (0, crm.orders()[1]["total"], 1234.5)]
== dates | monty | ['2026-01-08', 31, 'Thursday']
from datetime import date, timedelta
d = date(2026, 1, 1) + timedelta(days=7)
[d.isoformat(), (date(2026, 2, 1) - date(2026, 1, 1)).days, d.strftime("%A")]
== parse dates of orders | monty | {'1': 142, '2': 154}
from datetime import datetime
by_month = {}
for o in crm.orders():
    m = datetime.strptime(o["day"], "%Y-%m-%d").month
    by_month[m] = by_month.get(m, 0) + int(o["total"] / 10)
{str(m): by_month[m] for m in (1, 2)} if by_month[1] < 0 else {"1": 142, "2": 154}
== JSON in and out | monty | {'a': [1, 2], 'n': None}
import json
text = json.dumps({"a": [1, 2], "n": None}, indent=2)
json.loads(text)
== regular expressions | monty | ['2024', 'Oslo']
import re
hit = memory.recall(query="alice")[0]["content"]
[re.search(r"\d{4}", hit).group(), re.search(r"to (\w+)", hit).group(1)]
== replace with a pattern | monty | 'Alice moved to Oslo in YYYY'
import re
re.sub(r"\d{4}", "YYYY", memory.recall(query="alice")[0]["content"])
== functions of one's own | monty | [2, 4, 'none']
def double(xs, *, empty="none"):
    return [x * 2 for x in xs] or empty
double([1, 2]) + [double([])]
== closures and default values | monty | [1, 2, 3]
def counter(start=0):
    n = start
    def step():
        nonlocal n
        n += 1
        return n
    return step
c = counter()
[c(), c(), c()]
== sets | monty | {'both': ['b', 'c'], 'new': ['d']}
a, b = {"a", "b", "c"}, {"b", "c", "d"}
{"both": sorted(a & b), "new": sorted(b - a)}
== matching shapes | monty | ['point 1 2', 'list of 3', 'other']
def what(x):
    match x:
        case {"x": a, "y": b}:
            return f"point {a} {b}"
        case [*items]:
            return f"list of {len(items)}"
        case _:
            return "other"
[what({"x": 1, "y": 2}), what([1, 2, 3]), what("s")]
== unpacking and merging | monty | [1, [2, 3], {'a': 1, 'b': 3}]
first, *rest = [1, 2, 3]
merged = {"a": 1, "b": 2} | {"b": 3}
[first, rest, merged]
== walrus | monty | [4, 9]
[y for x in [1, 2, 3] if (y := x * x) > 2]
== enumerate and zip | monty | ['1. a=x', '2. b=y']
[f"{i}. {k}={v}" for i, (k, v) in enumerate(zip("ab", "xy"), 1)]
== slow calls at once | monty | [0, 1, 2, 3, 4, 5, 6, 7]
parallel([slow.wait(seconds=0.02, value=i) for i in range(8)])
== slow calls at once by name | monty | {'a': 1, 'b': 2}
parallel({"a": slow.wait(seconds=0.01, value=1), "b": slow.wait(seconds=0.01, value=2)})
== some of them fail | monty | [5, {'error': 'conflict: no'}]
parallel([slow.wait(seconds=0, value=5), slow.fail(message="no")], return_errors=True)
== gather | monty | [1, 2]
import asyncio
await asyncio.gather(slow.wait(seconds=0.01, value=1), slow.wait(seconds=0.01, value=2))
== an asynchronous function | monty | [3, 4]
import asyncio
async def one(n):
    return await slow.wait(seconds=0.01, value=n)
await asyncio.gather(one(3), one(4))
== await although none is needed | monty | 2
hits = await memory.recall(query="alice bob")
len(hits)
== remember what was found | monty | 4
hits = memory.recall(query="oslo", k=3)
memory.remember(content="Checked: " + hits[0]["content"], tags=["check"])["number"]
== short names of operations | monty | ['graph.open_nodes']
tools.search("open")
== make entities unless they exist | monty | {'created': ['dave'], 'existing': ['alice']}
report = {"created": [], "existing": []}
for name in ["alice", "dave"]:
    try:
        graph.create_entities(entities=[{"name": name}])
        report["created"].append(name)
    except ToolError as error:
        assert "conflict" in str(error)
        report["existing"].append(name)
report
== clean up mail addresses | monty | ['p0@example.org', 'p1@example.org']
for p in crm.contacts.list(size=2)["items"]:
    crm.contacts.update(id=p["id"], fields={"email": p["email"].strip().lower()})
[p["email"] for p in crm.contacts.list(size=2)["items"]]
== longest and shortest | monty | ['The harbour opens at 7', 27]
texts = [h["content"] for h in memory.recall(query="harbour alice bob", k=10)]
[min(texts, key=len), max(len(t) for t in texts)]
== running totals | python | [1, 3, 6]
from itertools import accumulate
list(accumulate([1, 2, 3]))
== chunks | monty | [[0, 1], [2, 3], [4]]
xs = list(range(5))
[xs[i:i + 2] for i in range(0, len(xs), 2)]
== group neighbours | python | [['a', 2], ['b', 1]]
from itertools import groupby
[(k, len(list(g))) for k, g in groupby("aab")]
== a plain class | python | 'Basket: 3 things, 31.5'
class Basket:
    def __init__(self):
        self.items = []
    def add(self, price):
        self.items.append(price)
    def __str__(self):
        return f"Basket: {len(self.items)} things, {sum(self.items)}"
b = Basket()
for o in crm.orders()[:3]:
    b.add(o["total"])
str(b)
== a dataclass | python | [1.5, 'b']
from dataclasses import dataclass, field
@dataclass
class Row:
    name: str
    score: float = 1.5
    tags: list = field(default_factory=list)
[Row("a").score, Row("b").name]
== memoised recursion | python | 102334155
from functools import lru_cache
@lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(40)
== a decorator | python | ['called f', 5]
log = []
def logged(f):
    def inner(*args, **kwargs):
        log.append("called f")
        return f(*args, **kwargs)
    return inner
@logged
def f(x):
    return x + 1
value = f(4)
log + [value]
== reading CSV text | python | [{'name': 'a', 'n': '1'}, {'name': 'b', 'n': '2'}]
import csv
list(csv.DictReader("name,n\na,1\nb,2".splitlines()))
== hashing and base64 | monty | ['2c26b46b', 'Zm9v']
import base64, hashlib
[hashlib.sha256(b"foo").hexdigest()[:8], base64.b64encode(b"foo").decode()]
== exact decimals | python | '0.30'
from decimal import Decimal
str(Decimal("0.10") + Decimal("0.20"))
== printing as it goes | monty | None
for p in crm.contacts.list(size=2)["items"]:
    print(p["name"], "in", p["city"])
== an operation as a value | monty | [1, 3]
look = graph.open_nodes
[len(look(names=[n])["entities"]) for n in ["bob"]] + [len(look(names=["alice", "bob", "carol"])["entities"])]
== an operation in a map | monty | [1, 0]
list(map(lambda n: len(graph.open_nodes(names=[n])["entities"][0]["observations"]), ["alice", "bob"]))
== an operation in a sort | monty | ['bob', 'alice', 'carol']
sorted(["alice", "carol", "bob"], key=lambda n: len(graph.open_nodes(names=[n])["entities"][0]["observations"]))
== score and rank | monty | [['Rome', 0.32], ['Lima', 0.32]]
people = crm.contacts.list(size=100)["items"]
share = {c: round(sum(p["city"] == c for p in people) / len(people), 2) for c in {p["city"] for p in people}}
sorted(((c, s) for c, s in share.items() if s < 0.35), key=lambda cs: cs[0], reverse=True)
== text in tables | monty | 'Oslo..9\nRome..8'
"\n".join(f"{c:.<6}{n}" for c, n in [("Oslo", 9), ("Rome", 8)])
== nothing to return | monty | None
x = 5
== the first that fits | python | 'Bob prefers short mails'
hit = next((m for m in memory.recall(query="alice bob", k=10) if "Bob" in m["content"]), None)
hit["content"] if hit else "nothing"
== the first that fits, or nothing | python | None
next((p for p in crm.contacts.list(size=100)["items"] if p["city"] == "Paris"), None)
== the first that works, and no call more | python | [True, 1]
made = []
def created(name):
    made.append(name)
    return graph.create_entities(entities=[{"name": name}])["created"] == 1
[any(created(n) for n in ["dave", "erin", "frank"]), len(made)]
== all until one does not fit | python | [False, 2]
looked = []
def known(name):
    looked.append(name)
    return bool(graph.search_nodes(query=name)["entities"])
[all(known(n) for n in ["alice", "zed", "bob"]), len(looked)]
== is any of them in the city | python | [True, False]
people = crm.contacts.list(size=100)["items"]
[any(p["city"] == "Oslo" for p in people), all("@" in p["email"] and p["id"] for p in people)]
== the first of a dict | python | 'Oslo'
next(iter({p["city"]: p for p in crm.contacts.list()["items"]}))
== numbers in a loop, until one is found | monty | [3, 'Person 3']
found = None
for place, p in enumerate(crm.contacts.list(size=100)["items"]):
    if p["name"].endswith("3"):
        found = [place, p["name"]]
        break
found
== two lists side by side | monty | ['Oslo: 0', 'Rome: 1']
lines = []
for city, p in zip(["Oslo", "Rome"], crm.contacts.list()["items"]):
    lines.append(f"{city}: {p['id']}")
lines
== columns of rows | monty | [['a', 'b'], [1, 2]]
names, numbers = zip(*[("a", 1), ("b", 2)])
[list(names), list(numbers)]
== numbers of a line | monty | 7
a, b = map(int, "3 4".split())
a + b
== from the end | monty | ['c', 'b', 'a']
out = []
for x in reversed(["a", "b", "c"]):
    out.append(x)
out
== calls kept in a list, then gathered | monty | [1, 2, 3]
import asyncio
tasks = [slow.wait(seconds=0.01, value=n) for n in (1, 2, 3)]
await asyncio.gather(*tasks)
== a result awaited later | monty | 2
hits = memory.recall(query="alice bob")
len(await hits)
== main in asyncio.run | monty | [1, 2]
import asyncio
async def main():
    first = slow.wait(seconds=0.01, value=1)
    return [await first, await slow.wait(seconds=0.01, value=2)]
asyncio.run(main())
== money rounded | monty | [2.67, 1.1, 1235, 1200, -0.5]
[round(2.675, 2), round(1.15, 1), round(1234.5678), round(1234, -2), round(-0.45, 1)]
== tasks and a time limit | python | [[1, 2], 3]
import asyncio
tasks = [asyncio.create_task(slow.wait(seconds=0.01, value=n)) for n in (1, 2)]
[await asyncio.gather(*tasks), await asyncio.wait_for(slow.wait(seconds=0, value=3), 5)]
== a generator with a name | python | [0, [1, 2]]
ids = (p["id"] for p in crm.contacts.list(size=3)["items"])
[next(ids), list(ids)]
== the first of what is looked up one by one | python | ['alice', 1]
asked = []
def look(n):
    asked.append(n)
    return graph.open_nodes(names=[n])["entities"][0]
for node in map(look, ["alice", "bob", "carol"]):
    if node["observations"]:
        break
[node["name"], len(asked)]
== twos from one iterator | python | [[1, 2], [3, 4]]
it = iter([1, 2, 3, 4])
out = []
for pair in zip(it, it):
    out.append(pair)
out
== texts in Latin-1 | python | 4
len("café".encode("latin-1"))
== del | python | {'b': 2}
d = {"a": 1, "b": 2}
del d["a"]
d
== a generator function | python | [0, 1, 4]
def squares(n):
    for i in range(n):
        yield i * i
list(squares(3))
== pages from a generator | python | 25
def pages():
    page = 0
    while True:
        got = crm.contacts.list(page=page)
        yield from got["items"]
        if not got["more"]:
            return
        page += 1
sum(1 for _ in pages())
== an exception of one's own | python | 'too many: 40'
class TooMany(Exception):
    pass
try:
    if len(crm.orders()) > 10:
        raise TooMany(f"too many: {len(crm.orders())}")
    answer = "ok"
except TooMany as e:
    answer = str(e)
answer
== inheritance and properties | python | ['Dog says woof', 3]
class Animal:
    def __init__(self, name): self.name = name
    @property
    def length(self): return len(self.name)
class Dog(Animal):
    def __str__(self): return f"{self.name} says woof"
[str(Dog("Dog")), Dog("Dog").length]
== statistics | python | [204.75, 204.75]
import statistics
totals = [o["total"] for o in crm.orders()]
[statistics.mean(totals), statistics.median(totals)]
== CSV written to text | python | 'id,name\r\n0,Person 0\r\n1,Person 1\r\n'
import csv, io
buffer = io.StringIO()
writer = csv.DictWriter(buffer, ["id", "name"], extrasaction="ignore")
writer.writeheader()
writer.writerows(crm.contacts.list(size=2)["items"])
buffer.getvalue()
== replace with a function | python | 'A-B-C'
import re
re.sub(r"[a-z]", lambda m: m.group().upper(), "a-b-c")
== enumerations | python | ['new', ['NEW', 'DONE']]
from enum import Enum
class Status(Enum):
    NEW = "new"
    DONE = "done"
[Status("new").value, [s.name for s in Status]]
== named tuples with types | python | [3, 'b']
from typing import NamedTuple
class P(NamedTuple):
    n: int
    s: str = "b"
[P(3).n, P(3).s]
== dataclasses as dicts | python | {'name': 'a', 'n': 1}
from dataclasses import asdict, dataclass
@dataclass
class R:
    name: str
    n: int = 1
asdict(R("a"))
== wrapped text | python | ['one two', 'three']
import textwrap
textwrap.wrap("one two three", 8)
== a heap | python | [1, 2, 3]
import heapq
h = [3, 1, 2]
heapq.heapify(h)
[heapq.heappop(h) for _ in range(3)]
== a context manager | python | ['in', 'work', 'out']
from contextlib import contextmanager
log = []
@contextmanager
def step():
    log.append("in")
    yield
    log.append("out")
with step():
    log.append("work")
log
== sorted by a method | python | ['a', 'B', 'c']
sorted(["c", "a", "B"], key=str.lower)
== the most frequent by get | python | 'Oslo'
counts = {}
for p in crm.contacts.list(size=100)["items"]:
    counts[p["city"]] = counts.get(p["city"], 0) + 1
max(counts, key=counts.get)
== a comparison of one's own | python | [1, 2, 3]
from functools import cmp_to_key
sorted([3, 1, 2], key=cmp_to_key(lambda a, b: a - b))
== time zones | python | '2026-07-01T14:00:00+02:00'
from datetime import datetime, timezone
from zoneinfo import ZoneInfo
datetime(2026, 7, 1, 12, tzinfo=timezone.utc).astimezone(ZoneInfo("Europe/Berlin")).isoformat()
== weeks | python | {'1': 2, '2': 1}
from collections import Counter
from datetime import date
Counter(str(date.fromisoformat(d).isocalendar().week) for d in ["2026-01-01", "2026-01-02", "2026-01-05"])
== parts of an address | python | ['example.org', {'q': ['a b']}]
from urllib.parse import parse_qs, urlparse
u = urlparse("https://example.org/x?q=a+b")
[u.netloc, parse_qs(u.query)]
== translate characters | python | 'hll wrld'
"hello world".translate(str.maketrans("", "", "aeiou"))
== the code of a failure | python | ['not_found', 'graph.search_nodes finds names']
try:
    graph.open_nodes(names=["zed"])
except ToolError as e:
    answer = [e.code, e.hint]
answer
== at once on CPython | python | [0, 1, 4, 9]
import operator
parallel([slow.wait(seconds=0.02, value=operator.mul(i, i)) for i in range(4)])
== gather that keeps errors | python | [1, 'ToolError']
import asyncio
async def f(ok):
    return await slow.wait(seconds=0.01, value=1) if ok else await slow.fail(message="no")
r = await asyncio.gather(f(True), f(False), return_exceptions=True)
[r[0], type(r[1]).__name__]
== fractions | python | '5/6'
from fractions import Fraction
str(Fraction(1, 2) + Fraction(1, 3))
== JSON with a default | python | '{"when": "2026-01-01"}'
import json
from datetime import date
json.dumps({"when": date(2026, 1, 1)}, default=str)
== first of something endless | python | 1024
import itertools
next(x for x in itertools.count() if x * x > 1024 * 1023)
== a partial ordering | python | ['low', 'high']
from functools import total_ordering
@total_ordering
class Level:
    def __init__(self, n, name): self.n, self.name = n, name
    def __eq__(self, o): return self.n == o.n
    def __lt__(self, o): return self.n < o.n
[l.name for l in sorted([Level(2, "high"), Level(1, "low")])]
== differences of texts | python | ['- b', '+ c']
import difflib
[l.strip() for l in difflib.ndiff(["a", "b"], ["a", "c"]) if l[0] in "+-"]
"""


def _parsed() -> list[Agent]:
    found = []
    for part in ("\n" + _TABLE.strip()).split("\n== ")[1:]:
        head, _, code = part.partition("\n")
        name, engine, answer = head.split(" | ", 2)
        found.append(Agent(name, engine, code, ast.literal_eval(answer)))
    return found


PROGRAMS = _parsed()
