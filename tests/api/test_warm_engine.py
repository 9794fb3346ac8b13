"""`athena.api` uses the running server of its data folder; without one that fits, the caller's own process answers."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import Any

import pytest

import athena
from athena import api, errors, testing
from athena.app import connect, engine, settings
from athena.cli import commands, mcp_proxy
from athena.core.home import lock
from athena.core.home.paths import CALL_SOCKET, socket_path
from athena.core.threads import run_sync
from athena.errors import InvalidInput, NotFound
from conftest import rounds
from server_forge import ServerForge
from wait_tools import pausing_code, wait_until

pytestmark = [pytest.mark.in_process("it starts its own servers"), pytest.mark.sqlite_only("the socket")]


@pytest.fixture
def home() -> Path:
    return Path(os.environ["ATHENA_HOME"])


@pytest.fixture
def server(forge: ServerForge, home: Path) -> Generator[int]:
    """Serve the data folder of this test; return the server's process id."""
    pid = forge.start(home)
    yield pid
    try:
        forge.stop(pid)
    except ProcessLookupError:
        return


def is_app_open() -> bool:
    return bool(connect._apps)


def count_tasks() -> Counter[str]:
    return Counter(task["title"] for task in api.call("list_tasks", k=1_000))


def test_server_answers(server: int) -> None:
    digest = api.remember("Deploys run on Fridays at 15:00", tags="deploy")
    assert api.search("when do we deploy").memories[0].hash == digest
    assert api.get(digest).content == "Deploys run on Fridays at 15:00"
    assert not is_app_open()
    with pytest.raises(NotFound) as raised:
        api.call("recal", query="x")
    assert raised.value.hint == "did you mean recall?"
    with pytest.raises(InvalidInput, match=r"^limit is 0; it must be at least 1$"):
        api.search("x", limit=0)
    assert not is_app_open()


def test_project_is_the_callers(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    api.remember("one", project="a")
    monkeypatch.setenv("ATHENA_PROJECT", "b")
    api.remember("two")
    assert [memory["project"] for memory in api.call("list_memories", project="a")] == ["a"]
    assert [memory["project"] for memory in api.call("list_memories")] == ["b"]
    assert not is_app_open()


def test_long_list_is_whole(server: int) -> None:
    texts = [f"note {number} of a long list" for number in range(1_201)]
    hashes = api.remember_batch(texts)
    assert len(set(hashes)) == len(texts)
    assert api.get(hashes[700]).content == texts[700]
    assert not is_app_open()


def test_values_arrive_unchanged(server: int) -> None:
    metadata = {"text": 'ü "😀\n', "number": 0.1 + 0.2, "large": 2**60, "list": [None, True, {"a": []}]}
    assert api.get(api.remember("A memory with metadata", metadata=metadata)).metadata == metadata
    assert not is_app_open()


@pytest.mark.parametrize("metadata", [{1: "number"}, {"set": {1}}, {"nan": float("nan")}, {"half": "\ud83d\ude00"}])
def test_values_that_json_would_change_stay_here(server: int, metadata: Any) -> None:
    """The own process answers, or refuses, as it does without a server."""
    outcomes: list[Any] = []
    for _ in range(2):
        try:
            outcomes.append(api.get(api.remember("odd", metadata=metadata)).metadata)
        except InvalidInput as error:
            outcomes.append(str(error))
        os.environ["ATHENA_DB_PATH"] = str(Path(os.environ["ATHENA_HOME"]) / "other.db")
    assert outcomes[0] == outcomes[1]
    assert is_app_open()


# --- the own process answers ------------------------------------------------------------------------------------------


def test_no_server() -> None:
    assert api.remember("alone")
    assert is_app_open()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATHENA_DB_PATH", "other.db"),
        ("ATHENA_RANKING_ROLE", "0.1"),
        ("TZ", "Asia/Tokyo"),
        ("ATHENA_PRIVACY", "strict"),
    ],
)
def test_other_settings(server: int, monkeypatch: pytest.MonkeyPatch, home: Path, name: str, value: str) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv(name, value)
    assert api.remember("with other settings")
    assert is_app_open()


def test_changed_configuration(server: int, home: Path) -> None:
    (home / "config.toml").write_text("[ranking]\nrole = 0.2\n")
    assert api.remember("with a new setting")
    assert is_app_open()


def test_same_settings_in_variables(server: int, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("ATHENA_DB_PATH", str(home / "athena.db"))
    monkeypatch.setenv("ATHENA_RANKING_ROLE", "0.6")
    assert api.remember("the same store")
    assert not is_app_open()


def test_other_version(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "__version__", "0.0.1")
    assert api.remember("of another version")
    assert is_app_open()


def test_unsafe_home(server: int, home: Path) -> None:
    home.chmod(0o777)
    with pytest.raises(errors.Misconfigured, match="others can write"):
        api.remember("for everybody")
    home.chmod(0o700)


def test_hung_server(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HELLO_TIMEOUT_S", 0.1)
    os.kill(server, signal.SIGSTOP)
    assert api.remember("nobody listens")
    assert is_app_open()


def test_files_are_the_callers(server: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n\nThe harbour opens at six.\n")
    monkeypatch.chdir(tmp_path)
    assert api.ingest("notes.md").documents == 1
    assert is_app_open()
    assert api.search("when does the harbour open").memories


def test_isolated_store_stays_here(server: int) -> None:
    with testing.isolated():
        api.remember("only for a test")
    assert api.search("only for a test", min_score=0).memories == ()


# --- a server that ends -----------------------------------------------------------------------------------------------


def test_lost_answer_is_settled(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server did the call and died before its answer arrived: it is not done twice."""

    async def lose_answer(_: Any) -> dict[str, Any]:
        wait_until(has_task)
        os.kill(server, signal.SIGKILL)
        raise EOFError

    def has_task() -> bool:
        in_process = connect.AppConnection(connect.shared_app, None, "python")
        return bool(run_sync(in_process.call("list_tasks", {})).data)

    monkeypatch.setattr(engine, "_receive_answer", lose_answer)
    task = api.call("create_task", title="Paint the boat")
    assert task["title"] == "Paint the boat"
    assert count_tasks() == {"Paint the boat": 1}


def test_unsent_call_is_made_here(server: int) -> None:
    api.call("create_task", title="first")
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: lock.find_server(os.environ["ATHENA_HOME"]) is None)
    api.call("create_task", title="second")
    assert count_tasks() == {"first": 1, "second": 1}


def test_next_server_is_used(server: int, forge: ServerForge, home: Path) -> None:
    api.remember("first")
    forge.stop(server)
    wait_until(lambda: lock.is_home_free(str(home)))
    pid = forge.start(home)
    api.remember("second")
    assert not is_app_open()
    forge.stop(pid)


def test_killed_servers_lose_and_double_nothing(forge: ServerForge, home: Path) -> None:
    """Servers are killed at random under callers: each call returns, and happened once."""
    count = rounds(4, 60)
    failures: list[BaseException] = []
    chance = random.Random(20)
    titles = [[f"task {caller}/{number}" for number in range(count * 4)] for caller in range(3)]

    def add_tasks(mine: list[str]) -> None:
        try:
            for title in mine:
                assert api.call("create_task", title=title)["title"] == title
        except BaseException as error:  # noqa: BLE001  # shown below
            failures.append(error)

    callers = [threading.Thread(target=add_tasks, args=(mine,)) for mine in titles]
    pid = forge.start(home)
    for caller in callers:
        caller.start()
    for _ in range(count):
        time.sleep(chance.uniform(0.0, 0.15))
        forge.stop(pid)
        wait_until(lambda: lock.is_home_free(str(home)))
        pid = forge.start(home)
    for caller in callers:
        caller.join(100)
    assert not failures
    stored: Counter[str] = Counter()
    for offset in range(0, 3 * count * 4, 100):
        stored.update(task["title"] for task in api.call("list_tasks", k=100, offset=offset))
    assert stored == Counter(title for mine in titles for title in mine)
    forge.stop(pid)


# --- threads, forks and event loops -----------------------------------------------------------------------------------


def test_threads_share_connections(server: int) -> None:
    found: list[int] = []

    def search() -> None:
        found.extend(len(api.search("deploy", min_score=0)) for _ in range(3))

    api.remember("Deploys run on Fridays")
    threads = [threading.Thread(target=search) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert found == [1] * 36
    assert not is_app_open()


def test_fork_has_its_own_connection(server: int) -> None:
    api.remember("of the parent")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            api.remember("of the child")
            code = 10 * is_app_open()
        finally:
            os._exit(code)
    for _ in range(5):
        api.search("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(api.call("list_memories")) == 2
    assert not is_app_open()


def test_event_loops(server: int) -> None:
    async def search() -> int:
        async with athena.open() as memory:
            await memory.remember("of an event loop")
            return sum(map(len, await asyncio.gather(*(memory.search("loop", min_score=0) for _ in range(20)))))

    assert asyncio.run(search()) == 20
    assert asyncio.run(search()) == 20
    assert not is_app_open()


def test_cancelled_call_ends(server: int) -> None:
    async def cancel_program() -> None:
        async with athena.open() as memory:
            task = asyncio.create_task(memory.execute_code(pausing_code(), timeout_s=60))
            while not await memory.call("list_files", workspace="signals"):  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel_program())
    assert wait_until(lambda: api.call("list_runs")[0]["status"] not in ("running",))
    assert not is_app_open()


# --- who may call -----------------------------------------------------------------------------------------------------


def talk(home: Path, *frames: Any) -> list[Any]:
    """Send frames as any program of the owner could; return the answers until the server hangs up or is silent."""
    answers = []
    with socket(AF_UNIX, SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(socket_path(str(home), CALL_SOCKET))
        for frame in frames:
            try:
                client.sendall(frame if isinstance(frame, bytes) else engine.encode_frame(frame))
                answers.append(json.loads(engine._receive_frame(client)))
            except (EOFError, ConnectionError):
                answers.append(None)
    return answers


def hello() -> dict[str, Any]:
    return {"version": athena.__version__, "environ": connect.read_caller_environ()}


def call(operation: str, surface: str = "python", **arguments: Any) -> dict[str, Any]:
    return {"operation": operation, "arguments": arguments, "project": "test", "surface": surface, "key": "a" * 16}


@pytest.mark.parametrize("surface", ["mcp", "program", "hook", "page", "http", "", None])
def test_other_surfaces_are_refused(server: int, home: Path, surface: Any) -> None:
    answers = talk(home, hello(), call("recall", query="x") | {"surface": surface})
    assert answers == [{}, {"refused": "this is no call"}]


def test_approvals_are_refused(server: int, home: Path) -> None:
    answers = talk(home, hello(), call("approve_run", "cli", run_id="x"), call("ingest_document", "cli", path="/etc"))
    assert [*answers[1], *answers[2]] == ["refused", "refused"]


def test_relative_path_is_not_the_servers(server: int, home: Path) -> None:
    answers = talk(home, hello(), call("delete_document", "cli", source="README.md"))
    assert [*answers[1]] == ["refused"]  # the caller's own process does it


def test_person_only_operations_need_a_person(server: int, home: Path) -> None:
    _, as_program, as_person = talk(home, hello(), call("report_use"), call("report_use", "cli"))
    assert as_program["error"]["code"] == "denied"
    assert "data" in as_person


@pytest.mark.parametrize(
    "frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x05nonse", {"version": 1}, b"\x00\x00\x00\x00"]
)
def test_nonsense_is_refused(server: int, home: Path, frame: Any) -> None:
    (answer,) = talk(home, frame)
    assert answer is None or "refused" in answer
    assert api.remember("others go on")
    assert not is_app_open()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("module", [engine, mcp_proxy])
def test_socket_in_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    """On macOS the system does not say who listens; a short path may lie in a folder that somebody else created."""
    monkeypatch.setattr(module, "SO_PEERCRED", None)
    path = str(tmp_path / "call.sock")
    with socket(AF_UNIX, SOCK_STREAM) as listening, socket(AF_UNIX, SOCK_STREAM) as client:
        listening.bind(path)
        listening.listen()
        client.connect(path)
        assert module._is_own_peer(client, path)
        monkeypatch.setattr(os, "getuid", lambda: 1_000)
        os.chown(tmp_path, 65_534, 65_534)
        assert not module._is_own_peer(client, path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_other_users_are_refused(server: int, home: Path) -> None:
    path = socket_path(str(home), CALL_SOCKET)
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.chmod(path, 0o666)
    for folder in [home, *home.parents]:
        if folder != Path("/") and folder != Path("/tmp"):
            os.chmod(folder, 0o711)
    if not (pid := os.fork()):
        os.setuid(65_534)
        try:
            os._exit(0 if talk(home, hello()) == [None] else 1)
        except BaseException:  # noqa: BLE001  # the child must not go on as a test
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- daemon.auto ------------------------------------------------------------------------------------------------------


def test_daemon_starts_only_where_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATHENA_VAULT_KEY_FOLDER")
    api.remember("no daemon")
    assert lock.is_home_free(str(home))
    assert settings.set_daemon_auto(str(home))
    assert not settings.set_daemon_auto(str(home))
    connect._started_homes.clear()
    api.remember("and now one")
    wait_until(lambda: lock.find_server(str(home)))
    connect.close()
    api.remember("which answers")
    assert not is_app_open()
    info = lock.find_server(str(home))
    assert info is not None
    assert lock.stop_server(str(home), info, 30)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[daemon]\nauto = true\n"),
        ("port = 1\n", "port = 1\n\n[daemon]\nauto = true\n"),
        (
            "[daemon]\nidle_minutes = 5\n[hooks]\noff = []\n",
            "[daemon]\nauto = true\nidle_minutes = 5\n[hooks]\noff = []\n",
        ),
        ("[daemon]\nauto = false\n", None),
        ("daemon.idle_minutes = 5\n", None),
    ],
)
def test_init_writes_daemon_auto(home: Path, before: str, after: str | None) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(before)
    assert settings.set_daemon_auto(str(home)) == (after is not None)
    assert (home / "config.toml").read_text() == (before if after is None else after)


# --- tools by meaning -------------------------------------------------------------------------------------------------

REQUEST = "jot down what I just learned"  # words alone find other tools


def search_tools(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert commands.athena(["tools", "search", REQUEST, "--json"], standalone_mode=False) == 0
    return [tool["name"] for tool in json.loads(capsys.readouterr().out)]


def test_commands_find_tools_by_meaning(forge: ServerForge, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors, server = home / "tool-vectors.npy", forge.start(home, is_first=True)
    by_meaning = search_tools(capsys)
    assert len(by_meaning) == 5
    wait_until(vectors.exists)
    forge.stop(server)
    wait_until(lambda: lock.is_home_free(str(home)))
    stamp = vectors.stat().st_mtime_ns
    connect.close()
    assert search_tools(capsys) != by_meaning  # by words alone
    connect.close()
    pid = forge.start(home)
    assert search_tools(capsys) == by_meaning
    assert vectors.stat().st_mtime_ns == stamp  # nothing was built again
    forge.stop(pid)
