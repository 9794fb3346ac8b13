"""Repeated calls: with a key they happen once, and a key matches only its own call."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from conftest import rounds
from http_tools import RunningServer, read_reply, request, run_server, serve_command, server_environ
from wait_tools import LONG, wait_until

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

HURRY = rounds(2, 10)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("again")) as made:
        yield made


def key(name: str) -> tuple[str, str]:
    return "Idempotency-Key", name


def test_key_of_other_call_is_refused(served: RunningServer) -> None:
    one, two = (served.call("remember", content=f"to be forgotten {n}")["id"] for n in "ab")
    assert served.call("forget", key("forget"), memory_id=one) is True
    assert served.execute("forget", {"memory_id": two}, key("forget")).status == 409
    assert served.call("get_memory", memory_id=two)["id"] == two
    served.call("update_memory", key("update"), memory_id=two, tags=["a"])
    assert served.execute("update_memory", {"memory_id": two, "tags": ["b"]}, key("update")).status == 409
    served.call("remember", key("remember"), content="with tags", tags=["a"])
    assert served.execute("remember", {"content": "with tags", "tags": ["b"]}, key("remember")).status == 409


def test_repeated_delete_counts_once(served: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A page\n\nwith a paragraph")
    served.call("ingest_document", path=str(tmp_path / "page.md"))
    (source,) = [one["source"] for one in served.call("list_documents")]
    first = served.call("delete_document", key("document"), source=source)
    assert served.call("delete_document", key("document"), source=source) == first
    assert served.execute("delete_document", {"source": source}).status == 404


def test_purged_result_is_reported_gone(served: RunningServer) -> None:
    memory = served.call("remember", key("purged"), content="to be purged")
    served.call("purge", memory_ids=[memory["id"]], expect=1)
    reply = served.execute("remember", {"content": "to be purged"}, key("purged"))
    assert reply.status == 404
    assert "was purged" in reply.error["message"]


def test_health_is_not_logged_as_call(served: RunningServer) -> None:
    for pause in (1.1, 0):  # health checks the store again after a second
        assert served.get("/health").status == 200
        assert served.get("/metrics").status == 200
        time.sleep(pause)
    served.call("list_tags")

    def seen() -> set[str]:
        return {one["operation"] for one in served.call("token_savings")["operations"]}

    wait_until(lambda: "list_tags" in seen())  # calls are counted in the background
    assert not seen() & {"health", "stats"}


def test_long_write_does_not_block_reads(served: RunningServer) -> None:
    served.call("remember", content="something to find")

    def store(number: int) -> None:
        items = [f"a long note of many words, number {number} {i}, about nothing in particular" for i in range(150)]
        served.call("remember_batch", items=items)

    writers = [threading.Thread(target=store, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    answered = 0
    while any(writer.is_alive() for writer in writers):
        assert served.call("recall", query="something to find", k=1)
        answered += any(writer.is_alive() for writer in writers)
    for writer in writers:
        writer.join()
    assert answered >= 2


def test_long_unknown_parameter_is_refused(served: RunningServer) -> None:
    began = time.monotonic()
    assert served.execute("recall", {"query": "x", "y" * 5_000_000: 1}).status == 422
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize("name", ["Idempotency-Key", "X-Athena-Project"])
def test_duplicate_header_is_refused(served: RunningServer, name: str) -> None:
    assert served.execute("recall", {"query": "x"}, (name, "a"), (name, "b")).status == 400


def test_ambiguous_body_length_is_refused(served: RunningServer) -> None:
    assert served.execute("recall", {"query": "x"}, ("Transfer-Encoding", "chunked")).status == 400


def test_unwanted_lines_are_not_sent(served: RunningServer) -> None:
    refused = served.execute("list_memories", {}, ("Accept", "application/x-ndjson;q=0, application/json"))
    assert refused.header("content-type") == "application/json"
    wanted = served.execute("list_memories", {}, ("Accept", "text/html, application/x-ndjson"))
    assert wanted.header("content-type") == "application/x-ndjson"


def test_many_connections_need_few_descriptors(tmp_path: Path) -> None:
    """With 200 file descriptors in all, 400 idle connections block nobody, and the log stays short."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))"
    command = [*serve_command(limited), "--port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=server_environ(tmp_path / "home"), stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().decode().partition("localhost:")[2].partition(";")[0])
        token = (tmp_path / "home" / "token").read_text().strip()
        served = RunningServer(process, tmp_path / "home", port, token, log)
        assert served.get("/info").status == 200
        process.send_signal(signal.SIGSTOP)  # so that all arrive at once
        idle = [served.connect() for _ in range(400)]
        process.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 190, "it keeps some for files"
        for _ in range(20):  # each takes the place of one that sends nothing
            with served.connect() as connection:
                connection.sendall(request("GET", "/info", served.auth_headers))
                assert read_reply(connection).status == 200
        for one in idle:
            one.close()
        assert len(log.read_text().splitlines()) < 200
    finally:
        process.kill()
        process.communicate()


def test_log_is_json_without_token(served: RunningServer) -> None:
    served.get(f"/info/{served.token}")
    served.send(b"nonsense\r\n\r\n")
    lines = served.log.read_text().splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert served.token not in served.log.read_text()
