"""Tokens and latency of other servers' tools, through Athena and without it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from athena.core import tokens
from bench import many
from bench.machine import ROOT
from bench.mcp import BEGIN, COMMAND, _format_request, _stop
from bench.result import Result, Row, Table
from bench.run import Run

sys.path.append(str(ROOT / "scripts"))

import node_packages

SURFACE, TASK = 600, 1_000
BEGUN = _format_request(0, "initialize", **BEGIN) + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
REQUESTS = (
    ("open an issue about the login page in acme/shop", "many.github_create_issue(owner='acme', repo='shop', "
     "title='The login page is slow')"),
    ("add two numbers", "everything.get_sum(a=2, b=3)"),
    ("what files are in the folder", "files.list_directory(path={folder!r})"),
    ("everything the knowledge graph holds", "notes.read_graph()"),
)  # fmt: skip


def run(run: Run) -> Result:
    home = run.folder / "gateway"
    folder = home / "files"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    environment = run.environment(home) | {"ATHENA_UNATTENDED": "1"}
    alone = _list_tools([*COMMAND], environment)
    _stop(home)
    try:
        servers = _servers(folder)
    except node_packages.Unobtainable as error:
        return Result("Other servers", str(error), [Row("Tools of other servers", "stated", str(error), None)], [])
    for name, command in servers.items():
        _add_server(name, command, environment)
    behind = _list_tools([*COMMAND], environment)
    directly = {name: _list_tools(command, environment) for name, command in servers.items()}
    lines, most = [], 0
    for request, program in REQUESTS:
        code = program.format(folder=str(folder))
        found = _count_call_tokens(environment, "search_tools", {"query": request})
        used = _count_call_tokens(environment, "execute_code", {"code": code})
        most = max(most, behind[1] + found + used)
        lines.append((request, f"{found:,}", f"{used:,}", f"{behind[1] + found + used:,}"))
    _stop(home)
    every = sum(size for _, size, _ in directly.values())
    count = sum(number for number, _, _ in directly.values())
    rows = [
        Row(f"Tools of the default surface with {count} tools of other servers behind it", f"at most {SURFACE} tokens",
            str(behind[1]), behind[1] <= SURFACE and behind[2] == alone[2]),
        Row("Finding and using one of them, the surface included", f"at most {TASK:,} tokens", f"{most:,} at most",
            most <= TASK),
        Row("The same by direct tools: their definitions alone", "stated", f"{every:,} tokens", None),
    ]  # fmt: skip
    table = Table(
        ("server", "tools", "tokens"),
        [(name, str(number), f"{size:,}") for name, (number, size, _) in directly.items()],
    )
    return Result(
        "Other servers",
        "Tokens (o200k) of the `tools` of real `tools/list` answers as compact JSON, and of the arguments and results "
        "of `search_tools` and `execute_code`: server-everything, filesystem and memory of the protocol's authors and "
        f"one of {many.COUNT} tools. The surface must be the same, byte for byte, with and without them.",
        rows,
        [Table(("request", "search_tools", "execute_code", "with the surface"), lines), table],
    )


def _servers(folder: Path) -> dict[str, list[str]]:
    command = node_packages.command
    return {
        "everything": command(node_packages.EVERYTHING),
        "files": [*command(node_packages.FILESYSTEM), str(folder)],
        "notes": command(node_packages.REFERENCE),
        "many": [sys.executable, str(Path(many.__file__).resolve())],
    }


def _add_server(name: str, command: list[str], environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "athena", "servers", "add", name, "--", *command]
    subprocess.run(words, env=environment, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=120)


def _request_answer(command: list[str], environment: dict[str, str], asked: bytes) -> dict[str, Any]:
    """Start a session, send one request and return its answer, skipping other messages."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(BEGUN + asked)
        child.stdin.flush()
        said: dict[str, Any] = {}
        while said.get("id") != 1:
            said = json.loads(child.stdout.readline())
        child.kill()
    return dict(said["result"])


def _list_tools(command: list[str], environment: dict[str, str]) -> tuple[int, int, str]:
    """Return the number of tools that a server lists, their tokens, and the text."""
    listed = _request_answer(command, environment, _format_request(1, "tools/list"))["tools"]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    return len(listed), tokens.count_tokens_exactly(text), text


def _count_call_tokens(environment: dict[str, str], name: str, arguments: dict[str, Any]) -> int:
    """Return the tokens that a model writes and reads for one call."""
    result = _request_answer(COMMAND, environment, _format_request(1, "tools/call", name=name, arguments=arguments))
    if result.get("isError"):
        raise RuntimeError(result["content"][0]["text"])
    return tokens.count_tokens_exactly(json.dumps(arguments)) + tokens.count_tokens_exactly(
        result["content"][0]["text"]
    )
