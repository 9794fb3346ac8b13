"""The jail: a hijacked worker can do nothing to the machine."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from small_world import KEY, run

from athena.errors import Misconfigured
from athena.programs.sandbox import Limits, Sandbox, jail
from conftest import skip_or_fail
from wait_tools import wait_until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the launcher is for Linux")
COMPILER = shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    if COMPILER is None:
        pytest.skip("no C compiler: the table of hostile programs does the same through ctypes")
    folder = tmp_path_factory.mktemp("native")
    for place in (folder, *folder.parents[:2]):
        place.chmod(0o755)
    binary = folder / "hostile"
    source = Path(__file__).with_name("hostile.c")
    subprocess.run([COMPILER, "-w", "-O1", "-o", str(binary), str(source)], check=True, timeout=60)
    yield binary
    binary.unlink()


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[int, Path, str]]:
    """Start a process of the same user, and create a readable secret and sockets that answer."""
    folder = tmp_path_factory.mktemp("victims")
    secret = folder / "secret"
    secret.write_text("canary")
    secret.chmod(0o666)
    path = f"/tmp/athena-victim-{os.getpid()}.sock"
    named, hidden = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    named.bind(path)
    os.chmod(path, 0o777)
    named.listen()
    with suppress(OSError):  # else another test listens on the port, which serves as well
        hidden.bind("\0athena-canary")
        hidden.listen()
    sleeper = subprocess.Popen(["/bin/sleep", "600"], user=65534 if os.geteuid() == 0 else None)
    yield sleeper.pid, secret, path
    assert sleeper.poll() is None, "the victim was killed"
    sleeper.kill()
    sleeper.wait()
    named.close()
    hidden.close()
    os.unlink(path)


@LINUX
@pytest.mark.parametrize("profile", ["monty", "python"])
@pytest.mark.parametrize("layers", [*jail.LINUX_LAYERS[:3], ("bwrap", "seccomp")], ids="+".join)
def test_hostile_native_program_is_contained(
    hostile: Path, victims: tuple[int, Path, str], layers: jail.Layers, profile: str
) -> None:
    if "bwrap" in layers and shutil.which("bwrap") is None:
        skip_or_fail("bubblewrap is not installed")
    pid, secret, named = victims
    readable = jail.build_monty_spec(str(hostile)).readable
    cell = jail.WorkerSpec(profile, (str(hostile), str(pid), str(secret), named), readable, cpu_s=5, memory_mb=256)
    done = subprocess.run(
        jail.build_command(cell, layers), capture_output=True, text=True, timeout=60, check=False, env={}
    )
    if done.returncode == 97:
        pytest.skip(f"this kernel or container has no {done.stderr}")
    said = done.stdout.splitlines()
    assert said, (done.returncode, done.stderr)
    # Each process can list its own root where bubblewrap created it; the root is empty.
    escapes = [line for line in said if line.startswith("ESCAPE") and not _empty_root(line, layers)]
    assert escapes == []
    assert said[-1].startswith("tried ")
    assert int(said[-1].split()[1].rstrip(",")) >= 150
    assert secret.read_text() == "canary"
    assert not list(Path("/tmp").glob("athena-escaped*"))


def _empty_root(line: str, layers: jail.Layers) -> bool:
    """Tell whether this is the known gap without Landlock: the new root can be listed, but not left."""
    if "landlock" in layers:
        return False
    return line in ("ESCAPE read /", "ESCAPE read .", "ESCAPE read ..") or (
        line in ("ESCAPE read /tmp", "ESCAPE read /root", "ESCAPE read /home")
    )


@LINUX
def test_missing_required_layer_refuses_run(hostile: Path) -> None:
    cell = jail.WorkerSpec("monty", (str(hostile), "1", "x", "y"), jail.build_monty_spec(str(hostile)).readable)
    words = jail.build_command(cell, ("landlock", "seccomp"))
    words[words.index("--profile") : words.index("--profile")] = ["--landlock", "0"]  # as on a kernel without Landlock
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={})
    assert done.returncode == 97
    assert done.stdout == ""
    assert "landlock" in done.stderr


@LINUX
@pytest.mark.parametrize("version", ["1", "2", "4", "6"])
def test_old_landlock_works_with_seccomp(hostile: Path, victims: tuple[int, Path, str], version: str) -> None:
    pid, secret, named = victims
    cell = jail.WorkerSpec(
        "python", (str(hostile), str(pid), str(secret), named), jail.build_monty_spec(str(hostile)).readable, cpu_s=5
    )
    words = jail.build_command(cell, ("landlock", "seccomp"))
    words[words.index("--profile") : words.index("--profile")] = ["--landlock", version]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={})
    if done.returncode == 97:
        pytest.skip(done.stderr)
    assert [line for line in done.stdout.splitlines() if line.startswith("ESCAPE")] == []
    assert "tried" in done.stdout


@LINUX
def test_report_names_working_layers() -> None:
    report = jail.probe_layers()
    assert report["layers"] == next(one["layers"] for one in report["tried"] if one["works"])
    assert all(one["works"] or one["why"] for one in report["tried"])


def test_program_needs_jail_unless_allowed() -> None:
    strict = Sandbox(Limits(), key=KEY, layer_choices=())
    with pytest.raises(Misconfigured, match="no jail"):
        run(strict, "1 + 1")
    strict.close()
    bare = Sandbox(Limits(), key=KEY, layer_choices=(), allow_bare=True)
    assert run(bare, "1 + 1").result == 2
    assert bare.probe_engines()["monty"]["layers"] == []
    needs = run(bare, "import statistics")
    assert needs.error is not None
    assert needs.error["type"] == "Unsupported", "CPython never runs without a jail"
    assert run(bare, "def size(x):\n    return len(x)\nmax(['a', 'bb'], key=size)").result == "bb"
    assert run(bare, "any(x > 1 for x in [1, 2])").error is not None, "Monty may differ here"
    bare.close()


@LINUX
@pytest.mark.parametrize("layers", [*jail.LINUX_LAYERS[:3], ("bwrap", "seccomp")], ids="+".join)
def test_engines_work_with_every_isolation(layers: jail.Layers) -> None:
    if layers not in jail.list_layer_choices():
        skip_or_fail("bubblewrap is not installed")
    sandbox = Sandbox(Limits(), key=KEY, layer_choices=(layers,))
    report = sandbox.probe_engines()
    unreadable = os.geteuid() == 0 and not os.stat(Path(sys.base_prefix)).st_mode & 0o005
    for engine in ("monty", "python"):
        if not report[engine]["works"]:
            # Without a new root, `nobody` cannot read files of root, so the next option is used.
            assert layers == ("landlock", "seccomp")
            assert os.geteuid() == 0 or unreadable
            continue
        assert tuple(report[engine]["layers"]) == layers
        assert run(sandbox, "parallel([memory.recall('alice')])[0][0]['score']", engine=engine).result == 1.0
        assert run(sandbox, "open('/etc/passwd').read()", engine=engine).status == "failed"
    sandbox.close()


@LINUX
def test_worker_has_no_privileges() -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    running_pids = _workers_of(sandbox)
    assert running_pids
    for pid in running_pids:
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Seccomp"] == "2"
        assert fields["NoNewPrivs"] == "1"
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        assert len(os.listdir(f"/proc/{pid}/fd")) <= 4
        environ = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        assert environ <= {b"LANG=C.UTF-8", b"TZ=UTC", b"PYTHONHASHSEED=0", b""}
    sandbox.close()


def _workers_of(sandbox: Sandbox) -> list[int]:
    from test_sandbox_kill import child_processes

    def in_their_cells() -> list[int]:
        with suppress(OSError):  # a process has just ended
            names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in sorted(child_processes(os.getpid()))}
            # monty_client.py runs no program: it converts values, and starts the workers that do
            others = (b"launcher.py", b"sleep", b"monty_client.py")
            workers = [pid for pid, words in names.items() if not any(name in words for name in others)]
            done = all("\nSeccomp:\t2\n" in Path(f"/proc/{pid}/status").read_text() for pid in workers)
            return workers if done and len(workers) >= 2 else []
        return []

    sandbox.probe_engines()
    run(sandbox, "1")
    found: list[int] = wait_until(in_their_cells)
    return found
