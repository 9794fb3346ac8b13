"""Malformed requests must not break the server, block it or make its memory grow."""

import json
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import rounds, sample
from http_tools import RunningServer, request, run_server
from wait_tools import LONG

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

AT_ONCE = 8
ODD = [
    b"\x00",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b":",
    b"\xff",
    b"%00",
    b"HTTP/9.9",
    b"-1",
    b"\t",
    b"{",
    b"\x7f",
]
HEADERS = [
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 0x10\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close, upgrade\r\nUpgrade: h2c\r\n",
    b"Host: evil\r\n",
    b" folded: yes\r\n",
    b"Accept: application/x-ndjson\r\n",
    b"If-None-Match: *\r\n",
    b"Range: bytes=0-1\r\n",
    b"Idempotency-Key: \xc3\xa9\r\n",
    b"X-Athena-Project: %ff%00\r\n",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


def valid_requests(served: RunningServer) -> list[bytes]:
    """Return valid requests to mutate."""
    made = [request("GET", path, served.auth_headers) for path in ("/info", "/tools/list?category=memory", "/health")]
    for name, arguments in (
        ("list_memories", {"k": 3}),
        ("get_memory", {"memory_id": "abc"}),
        ("list_tags", {}),
        ("search_tools", {"query": "tag"}),
    ):
        body = json.dumps(arguments).encode()
        kind = [("Content-Type", "application/json")]
        path = f"/tools/{name}/execute"
        made.append(request("POST", path, [*served.auth_headers, *kind, ("Content-Length", str(len(body)))], body))
        pieces = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        made.append(request("POST", path, [*served.auth_headers, *kind, ("Transfer-Encoding", "chunked")], pieces))
    return made


def damaged_request(chance: random.Random, whole: list[bytes]) -> bytes:
    """Return a request that is damaged in one of many ways, or random bytes."""
    data = bytearray(chance.choice(whole))
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(8):
            case 0:
                data[at:] = b""
            case 1:
                data[at:at] = chance.choice(ODD)
            case 2:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                data[at : at + chance.randrange(20)] = b""
            case 4:
                end = data.find(b"\r\n") + 2
                data[end:end] = chance.choice(HEADERS)
            case 5:
                data[at:at] = data[: chance.randrange(len(data) + 1)]
            case 6:
                data[at:at] = chance.randbytes(chance.randrange(60))
            case _:
                data = bytearray(chance.randbytes(chance.randrange(1, 200)))
    return bytes(data)


def send_damaged(served: RunningServer, seed: int, count: int) -> Counter[int]:
    """Send damaged requests; close each connection when no more data arrives."""
    chance, whole, statuses = random.Random(seed), valid_requests(served), Counter[int]()
    for _ in range(count):
        data = damaged_request(chance, whole)
        with served.connect() as connection:
            answer = b""
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)  # end of input: the server must notice it
                while piece := connection.recv(65_536):
                    answer += piece
        status = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
        assert status < 500, (data, answer)
        assert b'"internal"' not in answer, (data, answer)
        statuses[status] += 1
    return statuses


def _settled_memory(served: RunningServer) -> int:
    """Return the memory of a server once it has loaded everything in the background."""
    seen = [served.resident_mb()]
    while len(seen) < 60 and (len(seen) < 5 or seen[-1] - seen[-5] > 2):
        time.sleep(0.3)
        seen.append(served.resident_mb())
    return seen[-1]


@pytest.mark.timeout(rounds(300, 3_600))
def test_damaged_requests_break_nothing(served: RunningServer) -> None:
    send_damaged(served, 0, 100)
    before = _settled_memory(served)
    each = rounds(800, 200_000) // AT_ONCE
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = sum(pool.map(lambda seed: send_damaged(served, seed, each), range(1, AT_ONCE + 1)), Counter[int]())
    assert seen[400] > each  # the server rejected them
    assert served.resident_mb() - before < 100
    assert served.call("remember", content="still here")["hash"]
    assert "Traceback" not in served.log.read_text()


@pytest.mark.timeout(rounds(300, 3_600))
def test_openapi_matches_answers(tmp_path: Path, served: RunningServer) -> None:
    """Let schemathesis make valid and invalid calls from the OpenAPI document and check every reply."""
    program = Path(sys.executable).with_name("schemathesis")
    paths = sample(sorted(served.get("/openapi.json").json["paths"]), 24)[:: rounds(2, 1)]
    without = paths[rounds(3, len(paths)) :]
    if without:  # operations for which every value of the schema is tried, not only some
        config = f"[[operations]]\ninclude-path = {json.dumps(without)}\nphases.coverage.enabled = false\n"
        (tmp_path / "schemathesis.toml").write_text(config)
    words = [
        *(str(program), "run", f"http://localhost:{served.port}/openapi.json"),
        *("-H", f"Authorization: Bearer {served.token}"),
        # no schema describes a valid time or hash
        *(word for path in paths for word in ("--include-path", path)),
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", str(rounds(2, 100))),
        *("--request-timeout", str(LONG)),  # on a busy machine, long lists take more than its ten seconds
        *("--seed", "1", "--no-color", "--generation-database", "none", "--continue-on-failure"),
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=rounds(280, 3_000))
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert "Traceback" not in served.log.read_text()
