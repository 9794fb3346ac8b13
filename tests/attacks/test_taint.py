"""Random programs over all operations: nothing private that they were not given gets out, and no secret stays.

Canaries stand in files outside of the allowed folders, in Athena's own files, in other projects and in a document that
the project may read. Programs are drawn from a grammar over every operation that a program can name and some that it
cannot. After each one we search its answer, what a connected server received, and at the end the store, its log, all
other files of the data folder and an export.
"""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from athena.app.compose import App, open_app
from athena.app.settings import load_settings
from athena.core.catalog import AnyOperation
from athena.core.home.paths import ensure_token
from athena.core.operation import CallerKind
from athena.core.threads import run_sync
from athena.gateway.config import validate_entry
from athena.storage.sqlite.connection import compute_checksum
from canary_tools import find_canaries, read_all_files
from conftest import FULL

PROGRAM_COUNT = 10_000 if FULL else 200
MAX_STATEMENTS = 6
SERVER = Path(__file__).with_name("recording_server.py")
FILE_CANARY = "kitestringvolley41file"  # outside of the allowed folders
DOCUMENT_CANARY = "harborlanternquilt52doc"  # in a document that the project may read, but servers may not get
PROJECT_CANARY = "marbleorchidtundra63proj"  # in another project
NAME_CANARY = "copperwillowgazelle74name"  # in the name of a third project
SECRETS = {  # texts with secrets, which programs store: the secret must not stay
    "AKIAQ3EGRIYVZ5XK7M2P": "the key is AKIAQ3EGRIYVZ5XK7M2P",
    "Tr0ub4dor-and-3-horses": "password=Tr0ub4dor-and-3-horses",
    "ghp_9aZ3kQ7LmN2pR5sT8uV1wX4yB6cD0eF3gH2j": "git clone https://ghp_9aZ3kQ7LmN2pR5sT8uV1wX4yB6cD0eF3gH2j@github.com/a/b",
}
FORBIDDEN_CALLS = (
    "meta.list_projects()",
    "meta.rename_project(name=OTHER, to=PROJECT)",
    "meta.verify()",
    "code.approve_run(run_id=TEXT)",
    "code.execute_code(code='1')",
    "events.learn(session_id='s', messages=[{'role': 'user', 'text': TEXT}])",
    "open(PATH).read()",
    "__import__('os').environ",
)


class World:
    """A store with canaries all around a project, and a server that records what it receives."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.project = folder, folder / "home", folder / "repo"
        self.received = folder / "received.log"
        (self.project / ".git").mkdir(parents=True)
        (self.project / "README.md").write_text("The shop sells lamps.")
        (self.project / "plan.md").write_text(f"The plan is {DOCUMENT_CANARY}.")
        (self.project / ".env").write_text(f"X={FILE_CANARY}")
        (folder / "diary.txt").write_text(FILE_CANARY)
        os.symlink(folder / "diary.txt", self.project / "link.md")
        environ = {"ATHENA_HOME": str(self.home)}
        self.token = ensure_token(environ)
        self.app: App = open_app(load_settings(environ))
        self.other = "other-shop"  # programs know this name, but not that of the third project
        self.call("remember", f"/srv/{NAME_CANARY}", "cli", content="Nobody knows this project")
        self.call("remember", self.other, "cli", content=f"Our margin is {PROJECT_CANARY}", tags=["important"])
        self.call("create_task", self.other, "cli", title=f"Call about {PROJECT_CANARY}")
        entry = validate_entry("out", {"command": sys.executable, "args": ["-I", str(SERVER), str(self.received)]})
        gateway = self.app.gateway
        gateway.servers_file.add_entries([entry])
        self.app.catalog.refresh()
        offered, left_out = run_sync(gateway.fetch_tools("out"))
        [approval] = self.app.approver.grant([gateway.format_subject("out", offered)])
        gateway.approve_tools("out", offered, left_out, approval)
        self.app.catalog.refresh()
        self.sandbox_key = ""

    def call(self, name: str, project: str, surface: str, **arguments: Any) -> Any:
        return run_sync(self.app.catalog.get_operation(name)(self.app.create_context(project, surface), **arguments))

    @property
    def own_canaries(self) -> list[str]:
        """What neither a model nor a server may ever see."""
        key = self.home / "sandbox.key"
        secrets = [key.read_text().strip()] if key.exists() else []
        return [FILE_CANARY, PROJECT_CANARY, NAME_CANARY, self.token, *secrets]


@contextmanager
def open_world(folder: Path) -> Iterator[World]:
    world = World(folder)
    try:
        yield world
    finally:
        world.app.close()


class ProgramWriter:
    """Writes random programs; `random` is drawn by hypothesis, so that a failing program shrinks."""

    def __init__(self, world: World, random: Random) -> None:
        self.random, self.world = random, world
        allowed = (operation for operation in world.app.catalog if CallerKind.PROGRAM in operation.callers)
        self.operations = sorted(allowed, key=lambda operation: operation.path)
        folder = world.folder
        self.paths = [
            *("README.md", "plan.md", ".env", "link.md", "../diary.txt", ".", "..", "/", "~"),
            *map(str, (folder / "diary.txt", world.home / "token", world.home, world.project / ".env", folder)),
        ]
        self.texts = [
            *("lamp", "plan", "margin", "important", "user", "*", "", world.other, str(world.project), "out", "all"),
            *(DOCUMENT_CANARY[:7], PROJECT_CANARY[:6], "1", "default", "memory", "weekly_summary"),
            *self.paths,
            *(4 * [*SECRETS.values()]),  # fields that keep one are rarely used
        ]

    def write(self) -> str:
        if self.random.random() < 0.1:  # in a program of its own, which is refused as a whole
            return self.write_forbidden_call()
        lines = []
        count = self.random.randint(1, MAX_STATEMENTS)
        for number in range(count):
            lines += ["try:", f"    v{number} = {self.write_call(number)}", "except Exception as error:"]
            lines += [f"    v{number} = str(error)"]
        values = ", ".join(f"v{number}" for number in range(count))
        if self.random.random() < 0.5:
            lines += ["try:", f"    out.echo(text=str([{values}]))", "except Exception as error:", "    pass"]
        return "\n".join([*lines, f"[{values}]"])

    def write_call(self, number: int) -> str:
        operation = self.pick_operation()
        arguments = self.write_arguments(operation, number)
        return f"{operation.path}({', '.join(f'{name}={value}' for name, value in arguments.items())})"

    def write_forbidden_call(self) -> str:
        call = self.random.choice(FORBIDDEN_CALLS)
        replacements = {"OTHER": self.world.other, "PROJECT": str(self.world.project)}
        replacements |= {"TEXT": self.random.choice(self.texts), "PATH": self.random.choice(self.paths)}
        for name, value in replacements.items():
            call = call.replace(name, repr(value))
        return call

    def pick_operation(self) -> AnyOperation:
        if self.random.random() < 0.3:  # the ones that reach out or read much
            names = ("ingest_document", "get_document", "recall", "list_memories", "read_graph", "out.echo", "briefing")
            return self.world.app.catalog.get_operation(self.random.choice(names))
        return self.random.choice(self.operations)

    def write_arguments(self, operation: AnyOperation, number: int) -> dict[str, str]:
        schema = operation.arguments_schema
        names = [n for n in schema["properties"] if n in schema["required"] or self.random.random() < 0.3]
        return {name: self.write_value(schema["properties"][name], schema, number, name) for name in names}

    def write_value(self, schema: dict[str, Any], root: dict[str, Any], number: int, name: str = "") -> str:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self.write_value(self.random.choice(schema[key]), root, number, name)
        if "enum" in schema:
            return repr(self.random.choice(schema["enum"]))
        if "const" in schema:
            return repr(schema["const"])
        kind = schema.get("type", "string")
        if isinstance(kind, list):
            kind = self.random.choice(kind)
        if kind == "integer":
            return str(self.random.choice([0, 1, 2, 3, 5, 50]))
        if kind == "number":
            return str(self.random.choice([0.05, 0.5, 1, 5]))
        if kind == "boolean":
            return str(self.random.random() < 0.5)
        if kind == "null":
            return "None"
        if kind == "array":
            items = [self.write_value(schema.get("items", {}), root, number) for _ in range(self.random.randint(1, 2))]
            return f"[{', '.join(items)}]"
        if kind == "object":
            properties = schema.get("properties") or {"k": {"type": "string"}}
            fields = [f"{key!r}: {self.write_value(inner, root, number)}" for key, inner in properties.items()]
            return f"{{{', '.join(fields)}}}"
        if number and self.random.random() < 0.4:
            return f"str(v{self.random.randrange(number)})"
        pool = self.paths if name in ("path", "source") and self.random.random() < 0.8 else self.texts
        return repr(self.random.choice(pool))


def test_programs_let_nothing_private_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    counts = {"runs": 0, "paused": 0, "calls": 0}
    with open_world(tmp_path_factory.mktemp("taint")) as world:

        @settings(
            max_examples=PROGRAM_COUNT,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            random=st.randoms(use_true_random=False), engine=st.sampled_from(["auto", "python"]), fresh=st.booleans()
        )
        def run_one(random: Random, engine: str, fresh: bool) -> None:
            code = ProgramWriter(world, random).write()
            workspace = f"w{counts['runs'] % 40}" if fresh else "shared"
            done = world.call(
                "execute_code", str(world.project), "mcp", code=code, workspace=workspace, engine=engine, timeout_s=20
            )
            counts["runs"] += 1
            counts["calls"] += done.calls
            counts["paused"] += done.status == "needs_approval"
            shown = repr(done).encode()
            leaked = [found for found in find_canaries(shown, world.own_canaries) if found[0] not in code]
            assert not leaked, (leaked, code)
            # paused runs are never approved here; without room for more, later calls would only be refused
            if done.status == "needs_approval":
                world.app.store.database.defer_write(forget_run(done.run_id))

        run_one()
        received = world.received.read_bytes() if world.received.exists() else b""
        assert find_canaries(received, [*world.own_canaries, DOCUMENT_CANARY]) == []
        assert counts["calls"] > counts["runs"], "programs that fail before their first call test nothing"
        assert counts["paused"], "no program that had read a document called the server"
        assert received, "no program reached the server at all"
        other = world.call("list_memories", world.other, "python", k=1000)
        assert DOCUMENT_CANARY not in repr(other)
        exported = repr(world.call("export_skills", str(world.project), "python")).encode()
        assert find_canaries(exported, [*world.own_canaries, *SECRETS]) == []
        world.app.close()
        with sqlite3.connect(world.home / "athena.db") as raw:  # SECURITY.md: the state of programs is not redacted
            raw.create_function("checksum", -1, compute_checksum, deterministic=True)  # an index uses it
            raw.execute("PRAGMA secure_delete = ON")
            raw.execute("UPDATE workspaces SET state = NULL")
            raw.execute("UPDATE runs SET snapshot = NULL")
        raw.execute("VACUUM")
        raw.close()
        stored = read_all_files(world.home, without=frozenset({"token", "sandbox.key"}))
        assert find_canaries(stored, [FILE_CANARY, world.token, *SECRETS]) == []


def forget_run(run_id: str) -> Any:
    async def mark_failed(tx: Any) -> None:
        await tx.execute(
            "UPDATE runs SET status = 'failed', waits_for = NULL, snapshot = NULL WHERE id = :id", id=run_id
        )

    return mark_failed
