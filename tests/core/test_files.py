import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from athena.core.files import (
    FileLock,
    create_file_atomically,
    create_private_folder,
    iter_files_beneath,
    lock_file,
    open_beneath,
    open_folder_beneath,
    write_file_atomically,
)
from conftest import rounds


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_write_is_private_and_atomic(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert write_file_atomically(path, b"old")
    assert write_file_atomically(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000
    assert mode_of(path) == 0o600
    assert os.listdir(tmp_path) == ["state.json"]


def test_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    write_file_atomically(tmp_path / "a", b"twelve bytes")
    monkeypatch.undo()
    assert (tmp_path / "a").read_bytes() == b"twelve bytes"


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space"):
                write_file_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a"]


def test_name_is_synced_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose content is synced, but not its name, may be gone after a power cut."""
    synced: list[list[str]] = []
    folder = os.open(tmp_path, os.O_RDONLY)
    fsync = os.fsync

    def record(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == os.fstat(folder).st_ino:
            synced.append(sorted(os.listdir(tmp_path)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write_file_atomically(tmp_path / "a", b"x")
    write_file_atomically("b", b"x", dir_fd=folder)
    create_file_atomically(tmp_path / "c", b"x")
    create_private_folder(f"{tmp_path}/d/")
    write_file_atomically(tmp_path / "e", b"can be made again", sync=False)
    assert synced == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]]

    def refuse(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == os.fstat(folder).st_ino:
            raise OSError(errno.EINVAL, "this file system cannot")

    monkeypatch.setattr(os, "fsync", refuse)
    assert write_file_atomically(tmp_path / "a", b"y")
    os.close(folder)


def test_check_can_stop_replace(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def refuse() -> None:
        raise ValueError("changed meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        write_file_atomically(path, b"new", before_replace=refuse)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_write_replaces_symlink(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to("target")
    write_file_atomically(tmp_path / "link", b"ours", skip_same=True)
    assert (tmp_path / "target").read_bytes() == b"theirs"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_bytes() == b"ours"


def test_same_content_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert write_file_atomically(path, b"text", 0o700, skip_same=True)
    first = path.stat().st_ino
    assert not write_file_atomically(path, b"text", 0o700, skip_same=True)
    assert path.stat().st_ino == first
    assert write_file_atomically(path, b"tex2", 0o700, skip_same=True)
    path.chmod(0o644)
    assert write_file_atomically(path, b"tex2", 0o700, skip_same=True)
    assert mode_of(path) == 0o700


def test_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert write_file_atomically(tmp_path / "pipe", b"text", skip_same=True)
    assert (tmp_path / "pipe").read_bytes() == b"text"


def test_exact_mode_ignores_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_file_atomically(tmp_path / "a", b"", 0o644)
        write_file_atomically(tmp_path / "b", b"", 0o644, exact_mode=True)
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "b")) == (0o600, 0o644)


def test_longest_file_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_file_atomically(path, b"text", sync=False)
    assert path.read_bytes() == b"text"


def test_create_never_overwrites(tmp_path: Path) -> None:
    assert create_file_atomically(tmp_path / "a", b"first")
    assert not create_file_atomically(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_only_one_creator_wins(tmp_path: Path) -> None:
    wins: list[int] = []

    def create(index: int) -> None:
        if create_file_atomically(tmp_path / "a", str(index).encode()):
            wins.append(index)

    threads = [threading.Thread(target=create, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert (tmp_path / "a").read_text() == str(wins[0])


def test_lock_excludes_other_holders(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    with lock_file(path):
        assert mode_of(path) == 0o600
        assert mode_of(path.parent) == 0o700
        with FileLock(path) as other:
            assert not other.acquire(0)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="locked by another"):
            lock_file(path, timeout_s=0.1)
        assert time.monotonic() - began >= 0.1
    with lock_file(path, timeout_s=0):
        pass


def test_lock_waits_until_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    held = lock_file(path)
    threading.Timer(0.1, held.close).start()
    with lock_file(path, timeout_s=10), FileLock(path) as other:
        assert not other.acquire(0)


def test_lock_of_dead_process_is_free(tmp_path: Path) -> None:
    program = "import os, sys; from athena.core.files import lock_file; a = lock_file(sys.argv[1]); os._exit(1)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.lock")], check=False)
    with lock_file(tmp_path / "a.lock", timeout_s=0) as held:
        assert held.descriptor >= 0


def test_lock_refuses_a_link(tmp_path: Path) -> None:
    (tmp_path / "a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock_file(tmp_path / "a.lock")
    assert not (tmp_path / "elsewhere").exists()


def test_private_folder_has_private_parents(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_private_folder(tmp_path / "a" / "b" / "c")
        create_private_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        create_private_folder(tmp_path / "file")


def read_beneath(root: Path, relative_path: str) -> bytes:
    with open(open_beneath(root, relative_path), "rb") as file:
        return file.read()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a folder with files, and links and pipes that a hostile archive may bring."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "a" / "b").mkdir(parents=True)
    (root / "top").write_bytes(b"top")
    (root / "a" / "b" / "deep").write_bytes(b"deep")
    (root / "link").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    (root / "a" / "inner").symlink_to("b/deep")
    os.mkfifo(root / "pipe")
    return root


def test_open_beneath_reads_files(tree: Path) -> None:
    assert read_beneath(tree, "a/b/deep") == read_beneath(tree, "./a//b/./deep") == b"deep"
    (tree.parent / "alias").symlink_to(tree)
    assert read_beneath(tree.parent / "alias", "top") == b"top"  # the root itself is the caller's choice
    with open(open_beneath(tree, "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(b"new")
    assert mode_of(tree / "new") == 0o600
    os.close(open_beneath(tree, "a", os.O_RDONLY | os.O_DIRECTORY))


@pytest.mark.parametrize(
    "path",
    ["link", "folder/secret", "a/inner", "pipe", "a", "", ".", "..", "a/../top", "../outside/secret", "/etc/passwd"],
)
def test_open_beneath_refuses_what_leads_elsewhere(tree: Path, path: str) -> None:
    before = set(os.listdir("/dev/fd"))
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError, match=r"link|no plain file|a folder|leads out|No such device|Is a directory"):
            open_beneath(tree, path, flags)
    assert (tree.parent / "outside" / "secret").read_bytes() == b"secret"
    assert set(os.listdir("/dev/fd")) == before


def test_open_folder_beneath_creates_folders_but_follows_no_link(tree: Path) -> None:
    os.close(open_folder_beneath(tree, "x/y", create_mode=0o700))
    assert mode_of(tree / "x" / "y") == 0o700
    with pytest.raises(OSError, match="folder is a link"):
        open_folder_beneath(tree, "folder/new", create_mode=0o700)
    assert os.listdir(tree.parent / "outside") == ["secret"]


def test_iter_files_beneath_yields_files_and_says_what_it_skips(tree: Path) -> None:
    files = {path: file if isinstance(file, OSError) else os.read(file, 9) for path, file in iter_files_beneath(tree)}
    assert list(files) == ["folder", "link", "pipe", "top", "a/inner", "a/b/deep"]
    assert [value for value in files.values() if isinstance(value, bytes)] == [b"top", b"deep"]
    assert [path for path, file in iter_files_beneath(tree, lambda path: path != "a/b")][-1] == "a/inner"


def test_iter_files_beneath_bounds_the_depth(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "/".join("d" * 120))
    ((path, error),) = iter_files_beneath(tmp_path)
    assert path == "/".join("d" * 101)
    assert isinstance(error, OSError)


def test_exchange_of_a_folder_for_a_link_reads_nothing_outside(tree: Path) -> None:
    """Swap a folder and a link to another folder all the time while we read beneath it."""
    outside, swap = tree.parent / "outside", tree / "swap"
    swap.mkdir()
    (swap / "secret").write_bytes(b"harmless")
    (tree / "other").symlink_to(outside)
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            os.rename(swap, tree / "spare")
            os.rename(tree / "other", swap)
            os.rename(swap, tree / "other")
            os.rename(tree / "spare", swap)

    thread = threading.Thread(target=exchange)
    thread.start()
    contents, refusals = set(), 0
    try:
        for _ in range(rounds(1_000, 3_000)):
            try:
                contents.add(read_beneath(tree, "swap/secret"))
            except OSError:
                refusals += 1
            contents |= {os.read(file, 9) for _, file in iter_files_beneath(tree) if isinstance(file, int)}
    finally:
        stopped.set()
        thread.join()
    assert refusals
    assert b"harmless" in contents
    assert b"secret" not in contents
