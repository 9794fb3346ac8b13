"""A process that forks: parent and child both keep using the store, independently."""

import subprocess
import sys
import textwrap

import pytest

from athena import api
from athena.app import connect
from athena.core.threads import run_sync

pytestmark = pytest.mark.usefixtures("engine")

CHILD = """
import os, sys, threading
from athena import api

def forked(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(script: str, timeout: float = 60) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", CHILD + textwrap.dedent(script)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"still running after {timeout} s: {expired.stdout!r} {expired.stderr!r}")
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return done.stdout.split()


def stored_hashes() -> set[str]:
    assert run_sync(connect.AppConnection(connect.shared_app, None, "python").call("verify", {})).data["ok"]
    return {memory.hash for memory in api.search_iter("anything")}


def test_forked_child_and_parent_both_work() -> None:
    stored = run(
        """
        print(api.store("from the parent"), flush=True)
        assert api.search("parent").total == 1

        def child():
            print(api.store("from the child"), flush=True)
            assert {m.preview for m in api.search("from").memories} == {"from the parent", "from the child"}

        assert ended(forked(child)) == 0
        assert {m.preview for m in api.search("from").memories} == {"from the parent", "from the child"}
        print(api.store("from the parent again"), flush=True)
        """
    )
    assert len(stored) == 3
    assert stored_hashes() == set(stored)


def test_parent_and_children_store_concurrently() -> None:
    stored = run(
        """
        api.store("before")

        def child(name):
            lines = "".join(api.store(f"{name} {i}") + "\\n" for i in range(20))
            os.write(1, lines.encode())

        children = [forked(lambda n=n: child(f"child {n}")) for n in range(3)]
        child("parent")
        assert [ended(pid) for pid in children] == [0, 0, 0]
        assert api.health().count == 81
        """
    )
    assert len(set(stored)) == 80
    assert stored_hashes() > set(stored)


def test_child_works_after_parent_closes() -> None:
    """A daemon's parent exits like this."""
    stored = run(
        """
        print(api.store("from the parent"), flush=True)
        opened, told = os.pipe()
        closed, tell = os.pipe()

        def child():
            print(api.store("from the child"), flush=True)
            os.write(told, b".")
            os.read(closed, 1)
            for i in range(5):
                print(api.store(f"from the child, later {i}"), flush=True)

        pid = forked(child)
        os.read(opened, 1)
        api.close()
        os.write(tell, b".")
        assert ended(pid) == 0
        """
    )
    assert len(stored) == 7
    assert stored_hashes() == set(stored)


def test_parent_works_after_child_closes() -> None:
    stored = run(
        """
        print(api.store("from the parent"), flush=True)

        def child():
            print(api.store("from the child"), flush=True)
            api.close()

        assert ended(forked(child)) == 0
        for i in range(5):
            print(api.store(f"from the parent, later {i}"), flush=True)
        assert api.health().count == 7
        """
    )
    assert stored_hashes() == set(stored)


def test_child_forked_during_write_can_store() -> None:
    stored = run(
        """
        from athena.app import connect
        from athena.core.threads import run_sync
        print(api.store("from the parent"), flush=True)
        inside, leave = threading.Event(), threading.Event()

        async def work(tx):
            await tx.execute("UPDATE counters SET value = value")
            inside.set()
            leave.wait(1)  # a file is not forked in the middle: there the fork waits for this

        database = connect.shared_app().store.database
        writing = threading.Thread(target=lambda: run_sync(database.write(work)), daemon=True)
        writing.start()
        inside.wait(60)
        started, told = os.pipe()

        def child():
            os.write(told, b".")
            print(api.store("from the child"), flush=True)

        pid = forked(child)
        os.read(started, 1)
        leave.set()
        writing.join()
        assert ended(pid) == 0
        print(api.store("from the parent again"), flush=True)
        """
    )
    assert len(stored) == 3
    assert stored_hashes() == set(stored)


def test_child_forked_during_call_log_works() -> None:
    said = run(
        """
        from athena.app import connect
        from athena.errors import Unavailable
        from athena.core.threads import run_sync
        api.store("from the parent")
        app = connect.shared_app()

        def child():
            import signal
            signal.alarm(20)
            try:  # with the parent's store, which is not the child's
                run_sync(app.catalog.get_operation("health")(app.create_context("test", "python")))
            except Unavailable:
                pass

        with app.call_log._lock:
            pid = forked(child)
        print(ended(pid), flush=True)
        """
    )
    assert said == ["0"]


def test_child_opens_own_in_memory_store() -> None:
    run(
        """
        from athena import testing
        api.store("in the file")

        def child():
            with testing.isolated():
                api.store("in memory")
                assert api.health().count == 1
            assert api.health().count == 1

        assert ended(forked(child)) == 0
        """
    )
    assert api.health().count == 1
