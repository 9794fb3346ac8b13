"""What the examples share: a server to talk to, and a project that is empty again afterwards."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from athena import AthenaClient
from athena.core.tokens import count_tokens_exactly
from athena.errors import AthenaError

USUAL = "http://localhost:3000"
DEFINITION = ("name", "description", "parameters")  # of a tool, as an agent that calls it directly reads it


@contextlib.contextmanager
def athena() -> Iterator[AthenaClient]:
    """Give a client with a project of its own."""
    with serving() as (url, token), project(url, token) as client:
        yield client


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, str | None]]:
    """Give the address of the server that is up, or of one that lives as long as the example."""
    if is_up():
        yield USUAL, None
    else:
        with started() as (url, token):
            yield url, token


@contextlib.contextmanager
def project(url: str, token: str | None) -> Iterator[AthenaClient]:
    with AthenaClient(url, token=token, project=f"example-{secrets.token_hex(4)}") as client:
        try:
            yield client
        finally:
            clear(client)


def is_up() -> bool:
    try:
        socket.create_connection(("localhost", 3000), 0.5).close()
        with AthenaClient(USUAL, timeout=2) as client:
            return bool(client.info()["name"] == "athena")
    except (OSError, AthenaError, KeyError):
        return False


@contextlib.contextmanager
def started() -> Iterator[tuple[str, str]]:
    """Start a server with a data folder of its own; stop it and remove the folder at the end."""
    with tempfile.TemporaryDirectory(prefix="athena-example-") as folder:
        home, keys = os.path.join(folder, "data"), os.path.join(folder, "keys")
        process = subprocess.Popen(
            [sys.executable, "-m", "athena", "serve", "--port", "0"],
            env=os.environ | {"ATHENA_HOME": home, "ATHENA_VAULT_KEY_FOLDER": keys},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # Athena answers at http://localhost:40123; ...
            url = next(word for word in line.split() if word.startswith("http")).rstrip(";")
            with open(os.path.join(home, "token"), encoding="ascii") as file:
                token = file.read().strip()
            with AthenaClient(url, token) as client:
                client.call_tool("health")  # waits until the model is there, which is not what the examples measure
            yield url, token
        finally:
            process.terminate()
            process.communicate(timeout=30)


class Report:
    """What an example prints, beside what the same work costs an agent that calls tools directly.

    Such an agent reads the definition of every tool, and writes or reads every argument and every result. An agent that
    works in code writes the program, and reads what it prints.
    """

    def __init__(self) -> None:
        self._said: list[str] = []
        self._moved = 0

    def say(self, line: str) -> None:
        self._said.append(line)
        print(line)

    def moved(self, *values: Any) -> None:
        """Count arguments or results as they are on the wire."""
        self._moved += sum(count_tokens_exactly(_written(value)) for value in values)

    def end(self, client: AthenaClient, program: str) -> None:
        tools = [client.get_tool(one["name"]) for one in client.list_tools()]
        definitions = count_tokens_exactly(_written([{key: tool[key] for key in DEFINITION} for tool in tools]))
        with open(program, encoding="utf-8") as file:
            code = count_tokens_exactly(file.read())
        said = count_tokens_exactly("\n".join(self._said))
        print("o200k tokens")
        print(f"  tools called directly: {definitions:,} definitions + {self._moved:,} arguments and results")
        print(f"  in code: {code:,} this program + {said:,} printed")
        print(f"  saved: {1 - (code + said) / (definitions + self._moved):.1%}")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def clear(client: AthenaClient) -> None:
    """Remove what the example stored, and nothing else."""
    while ids := [one["id"] for one in client.call_tool("list_memories", k=1_000) if one["project"] == client.project]:
        count = client.call_tool("purge", memory_ids=ids, dry_run=True)  # with what repeats them
        client.call_tool("purge", memory_ids=ids, expect=count)
