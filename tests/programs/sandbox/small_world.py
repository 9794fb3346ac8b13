"""A small catalog of blocking functions for programs to call, and sandboxes with short limits."""

import threading
import time
from collections.abc import Callable
from typing import Any

from athena.errors import Conflict, InvalidInput, NotFound
from athena.programs.sandbox import Function, Limits, Namespace, NeedsApproval, Program, Run, Sandbox

KEY = b"a key of 32 bytes for the tests."
QUICK = Limits(
    wall_s=30.0,
    cpu_s=0.8,
    turn_s=0.5,
    memory_mb=64,
    python_memory_mb=256,
    calls=500,
    output_chars=5_000,
    result_chars=2_000,
)


def schema(**properties: Any) -> dict[str, Any]:
    """Return a schema: a bare type is required, a type with a question mark is optional."""
    types = {name: {"type": kind.rstrip("?")} if isinstance(kind, str) else kind for name, kind in properties.items()}
    needed = [name for name, kind in properties.items() if not (isinstance(kind, str) and kind.endswith("?"))]
    return {"type": "object", "properties": types, "required": needed, "additionalProperties": False}


FUNCTIONS = [
    Function("graph.open_nodes", schema(names="array")),
    Function("graph.search_nodes", schema(query="string", limit="integer?")),
    Function("graph.add_observations", schema(observations="array")),
    Function("graph.create_entities", schema(entities="array")),
    Function("graph.delete_entities", schema(names="array")),
    Function("memory.recall", schema(query="string", k="integer?", tags="array?")),
    Function("memory.remember", schema(content="string", tags="array?")),
    Function("crm.contacts.list", schema(page="integer?", size="integer?")),
    Function("crm.contacts.update", schema(id="integer", fields="object")),
    Function("crm.orders", schema(contact="integer?")),
    Function("tools.search_tools", schema(query="string"), other_names=("search",)),
    Function("slow.wait", schema(seconds="number", value="integer?")),
    Function("slow.fail", schema(message="string")),
    Function("bank.pay", schema(amount="integer"), needs_approval=True),
    Function("odd.surrogate", schema()),
    Function("odd.huge", schema()),
    Function("odd.bug", schema()),
]
NAMES = Namespace(FUNCTIONS)


class World:
    """Implements the functions and records every call."""

    def __init__(self) -> None:
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.guard = threading.Lock()
        self.approved = False
        self.at_once = self.most_at_once = 0
        self.contacts = [
            {"id": n, "name": f"Person {n}", "city": ("Oslo", "Rome", "Lima")[n % 3], "email": f"P{n}@Example.ORG"}
            for n in range(25)
        ]
        self.orders = [
            {"contact": n % 5, "total": 10.5 * n, "day": f"2026-{1 + n % 12:02d}-{1 + n % 28:02d}"} for n in range(40)
        ]
        self.nodes: dict[str, list[str]] = {"alice": ["likes tea"], "bob": [], "carol": ["status: new", "likes rum"]}
        self.memories: list[str] = ["Alice moved to Oslo in 2024", "Bob prefers short mails", "The harbour opens at 7"]

    def __call__(self, path: str, arguments: dict[str, Any]) -> Any:
        with self.guard:
            self.log.append((path, arguments))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            function: Callable[..., Any] = getattr(self, path.replace(".", "_"))
            return function(**arguments)
        finally:
            with self.guard:
                self.at_once -= 1

    def count(self, path: str) -> int:
        return sum(1 for made, _ in self.log if made == path)

    def graph_open_nodes(self, names: list[str]) -> Any:
        if unknown := [name for name in names if name not in self.nodes]:
            raise NotFound(f"there is no node {unknown[0]!r}", hint="graph.search_nodes finds names")
        return {"entities": [{"name": name, "observations": list(self.nodes[name])} for name in names]}

    def graph_search_nodes(self, query: str, limit: int = 10) -> Any:
        found = [name for name in self.nodes if query in name or any(query in text for text in self.nodes[name])]
        return {"entities": [{"name": name} for name in found[:limit]]}

    def graph_add_observations(self, observations: list[dict[str, Any]]) -> Any:
        for one in observations:
            self.nodes.setdefault(one["entityName"], []).extend(one["contents"])
        return {"added": len(observations)}

    def graph_create_entities(self, entities: list[dict[str, Any]]) -> Any:
        for one in entities:
            if one["name"] in self.nodes:
                raise Conflict(f"{one['name']!r} is there already")
            self.nodes[one["name"]] = list(one.get("observations", []))
        return {"created": len(entities)}

    def graph_delete_entities(self, names: list[str]) -> Any:
        return {"deleted": sum(self.nodes.pop(name, None) is not None for name in names)}

    def memory_recall(self, query: str, k: int = 5, tags: list[str] | None = None) -> Any:
        words = query.lower().split()
        hits = [text for text in self.memories if any(word in text.lower() for word in words)]
        return [{"content": text, "score": 1.0 / (place + 1)} for place, text in enumerate(hits[:k])]

    def memory_remember(self, content: str, tags: list[str] | None = None) -> Any:
        if not content.strip():
            raise InvalidInput("content is empty")
        self.memories.append(content)
        return {"stored": True, "number": len(self.memories)}

    def crm_contacts_list(self, page: int = 0, size: int = 10) -> Any:
        return {"items": self.contacts[page * size : (page + 1) * size], "more": (page + 1) * size < len(self.contacts)}

    def crm_contacts_update(self, id: int, fields: dict[str, Any]) -> Any:  # noqa: A002
        self.contacts[id].update(fields)
        return self.contacts[id]

    def crm_orders(self, contact: int | None = None) -> Any:
        return [order for order in self.orders if contact is None or order["contact"] == contact]

    def tools_search_tools(self, query: str) -> Any:
        return [function.path for function in FUNCTIONS if query in function.path]

    def slow_wait(self, seconds: float, value: int = 0) -> Any:
        time.sleep(seconds)
        return value

    def slow_fail(self, message: str) -> Any:
        time.sleep(0.01)
        raise Conflict(message)

    def bank_pay(self, amount: int) -> Any:
        if not self.approved:
            raise NeedsApproval(f"paying {amount} needs a person", request={"amount": amount})
        return {"paid": amount}

    def odd_surrogate(self) -> Any:
        return {"text": "half \ud800 a pair", "when": time.gmtime(0)}

    def odd_huge(self) -> Any:
        return ["x" * 1_000_000] * 10

    def odd_bug(self) -> Any:
        raise KeyError("/secret/path")


class HeldWorld(World):
    """A world whose slow calls wait until a number of them run at once, or until they are released."""

    def __init__(self, at_once: int = 1_000) -> None:
        super().__init__()
        self.needed = at_once
        self.begun, self.go = threading.Event(), threading.Event()

    def slow_wait(self, seconds: float, value: int = 0) -> Any:
        self.begun.set()
        if self.most_at_once >= self.needed:
            self.go.set()
        self.go.wait(60)
        return super().slow_wait(seconds, value)


def run(sandbox: Sandbox, code: str, world: World | None = None, **given: Any) -> Run:
    return sandbox.run(Program(code, NAMES, **given), world or World())


def run_until_timeout(sandbox: Sandbox, code: str, **given: Any) -> tuple[Run, HeldWorld, float]:
    """Run a program until it times out in a slow call, with more time if it does not reach that call."""
    for timeout_s in (0.2, 1.0, 5.0, 20.0):
        world = HeldWorld()
        done = run(sandbox, code, world, timeout_s=timeout_s, **given)
        if world.begun.is_set():
            break
    return done, world, timeout_s
