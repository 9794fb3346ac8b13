"""Backups: written while the store is in use, checked, rotated, encrypted; killed at any time."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput, NotFound, Unavailable
from athena.storage import backups
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, rounds
from wait_tools import wait_until

SECRET = b"a secret of sixteen bytes or more"


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))


def list_texts(path: Path | str) -> set[str]:
    with closing(App(Sqlite(path), MODEL)) as copy:
        return {memory.content for memory in call(copy, "list_memories", k=1_000)}


def store_facts(app: App, count: int) -> set[str]:
    texts = {f"fact number {i} of the backup" for i in range(count)}
    for text in texts:
        call(app, "remember", content=text, tags=["b"])
    return texts


@pytest.mark.both_engines
def test_backup_is_a_store_with_everything(app: App, tmp_path: Path) -> None:
    texts = store_facts(app, 5)
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": ["sails"]}])
    call(app, "learn", session_id="s1", messages=[{"role": "user", "text": "I prefer short commit messages."}])
    call(app, "refuse_learned", memory_id=call(app, "list_learned")[0].hash)
    backup = backups.create_backup(app.store.database, str(tmp_path / "copy.db"), str(tmp_path / "part"))
    assert (backup.path, backup.size) == (str(tmp_path / "copy.db"), os.path.getsize(tmp_path / "copy.db"))
    assert list_texts(backup.path) == texts
    assert not [name for name in os.listdir(tmp_path) if ".part" in name or name == "part"]
    assert os.stat(backup.path).st_mode & 0o777 == 0o600
    with closing(App(Sqlite(backup.path), MODEL)) as copy:
        assert [hit.content for hit in call(copy, "recall", query="fact number 3", k=1)] == [
            "fact number 3 of the backup"
        ]
        assert call(copy, "open_nodes", names=["Ann"])["entities"][0]["observations"] == ["sails"]
        assert [rule.example for rule in call(copy, "list_learning_rules")] == ["I prefer short commit messages."]
    with pytest.raises(Conflict, match="exists"):
        backups.create_backup(app.store.database, backup.path, str(tmp_path / "part"))
    with pytest.raises(NotFound, match="no folder"):
        backups.create_backup(app.store.database, str(tmp_path / "none" / "x.db"), str(tmp_path / "part"))


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_backup_while_others_write(app: App, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            call(app, "remember", content=f"written meanwhile, number {number}")
            acknowledged.append(f"written meanwhile, number {number}")
            number += 1

    def has_written(least: int) -> bool:
        return len(acknowledged) >= least

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            wait_until(partial(has_written, 5 * number + 5))
            before = list(acknowledged)
            backup = backups.create_backup(app.store.database, str(tmp_path / f"{number}.db"), str(tmp_path / "part"))
            texts = list_texts(backup.path)
            assert {*before} <= texts
            assert texts == {f"written meanwhile, number {i}" for i in range(len(texts))}, "as it was at one moment"
    finally:
        is_over.set()
        writer.join()


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_rotation_deletes_the_oldest_backups_alone(app: App, tmp_path: Path) -> None:
    store_facts(app, 1)
    folder = tmp_path / "backups"
    folder.mkdir()
    names = [f"athena-2020010{i}-000000.db" for i in range(1, 6)]
    for name in [*names, "mine.db", "athena-20200101-000000.db.part", ".athena-backup-0a.part-wal"]:
        (folder / name).write_bytes(b"x")
    backup = backups.create_next_backup(app.store.database, str(folder), 3, str(tmp_path / "part"))
    assert [os.path.basename(path) for path in backup.removed] == names[:3]
    assert sorted(os.listdir(folder)) == sorted([*names[3:], "mine.db", os.path.basename(backup.path)])
    assert not backups.is_due(str(folder), 3_600, time.time())
    assert backups.is_due(str(folder), 3_600, time.time() + 4_000)
    assert backups.is_due(str(tmp_path / "empty"), 3_600, time.time())


@pytest.mark.parametrize("secret", [None, SECRET])
def test_file_that_another_user_prepared_is_not_written(app: App, tmp_path: Path, secret: bytes | None) -> None:
    store_facts(app, 1)
    part = tmp_path / "copy.db.part"
    part.touch()
    part.chmod(0o666)
    with open(part, "rb") as theirs:
        backup = backups.create_backup(app.store.database, str(tmp_path / "copy.db"), str(tmp_path / "part"), secret)
        assert (theirs.read(), os.fstat(theirs.fileno()).st_nlink) == (b"", 1)
    assert os.stat(backup.path).st_mode & 0o777 == 0o600
    assert sorted(name for name in os.listdir(tmp_path) if "part" in name) == ["copy.db.part"]


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_new_backup_stays_after_the_clock_was_set_back(app: App, tmp_path: Path) -> None:
    store_facts(app, 1)
    folder = tmp_path / "backups"
    folder.mkdir()
    names = ["athena-20200101-000000.db", "athena-29990101-000000.db", "athena-29990102-000000.db"]
    for name, ahead_s in zip(names, (-9_000_000, 9_000_000, 9_000_001), strict=True):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() + ahead_s, time.time() + ahead_s))
    assert backups.is_due(str(folder), 3_600, time.time())
    backup = backups.create_next_backup(app.store.database, str(folder), 2, str(tmp_path / "part"))
    assert [os.path.basename(path) for path in backup.removed] == names[1:]
    assert os.path.exists(backup.path)
    assert not backups.is_due(str(folder), 3_600, time.time())
    newest = backups.create_next_backup(app.store.database, str(folder), 1, str(tmp_path / "part"))
    assert os.listdir(folder) == [os.path.basename(newest.path)]


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_backup_of_another_time_zone_is_not_taken_for_an_older_one(app: App, tmp_path: Path) -> None:
    store_facts(app, 1)
    folder = tmp_path / "backups"
    folder.mkdir()
    for age_s, name in (
        (300, "athena-20200101-000000.db"),
        (60, f"athena-{time.localtime().tm_year + 1}0101-000000.db"),
    ):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age_s, time.time() - age_s))
    backup = backups.create_next_backup(app.store.database, str(folder), 2, str(tmp_path / "part"))
    assert [os.path.basename(path) for path in backup.removed] == ["athena-20200101-000000.db"]


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_encrypted_backup_needs_its_secret(app: App, tmp_path: Path) -> None:
    texts = store_facts(app, 3)
    target = str(tmp_path / "copy.enc")
    backups.create_backup(app.store.database, target, str(tmp_path / "part"), SECRET)
    data = Path(target).read_bytes()
    assert backups.is_encrypted(target)
    assert b"fact number" not in data
    backups.decrypt_backup(target, str(tmp_path / "plain.db"), SECRET)
    assert list_texts(tmp_path / "plain.db") == texts
    with pytest.raises(InvalidInput, match="passphrase is wrong"):
        backups.decrypt_backup(target, str(tmp_path / "x"), b"another secret of many bytes")


@pytest.mark.sqlite_only("the other engine is copied by the first test")
def test_encrypted_backup_that_was_changed_is_refused(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "CHUNK_BYTES", 16_384)
    store_facts(app, 3)
    target = str(tmp_path / "copy.enc")
    backups.create_backup(app.store.database, target, str(tmp_path / "part"), SECRET)
    data = Path(target).read_bytes()
    head = len(backups.MAGIC) + backups.SALT_BYTES + backups.NONCE_BYTES - 5
    size = 16_384 + backups.TAG_BYTES
    first, second = data[head : head + size], data[head + size : head + 2 * size]
    rng = random.Random(1)
    at = rng.randrange(head, len(data))
    changed = {
        "a bit": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "the end": data[:-10],
        "the last chunk": data[: head + size * ((len(data) - head - 1) // size)],
        "the order": data[:head] + second + first + data[head + 2 * size :],
        "a chunk twice": data[:head] + first + first + data[head + 2 * size :],
        "the head": data[:20] + b"x" + data[21:],
    }
    assert len({*changed.values(), data}) == 7
    for content in changed.values():
        Path(target).write_bytes(content)
        with pytest.raises(InvalidInput, match="cannot be decrypted"):
            backups.decrypt_backup(target, str(tmp_path / "plain"), SECRET)


@pytest.mark.sqlite_only("a file is damaged")
def test_backup_of_a_damaged_store_says_that_the_store_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "athena.db"
    with closing(App(Sqlite(path), MODEL)) as app:
        store_facts(app, 3)
    data = bytearray(path.read_bytes())
    page = data.find(b"of the backup") // 4_096 * 4_096
    data[page : page + 100] = b"\xff" * 100
    path.write_bytes(data)
    with closing(Sqlite(path)) as store, pytest.raises(Unavailable, match="the store itself is damaged") as caught:
        backups.create_backup(store, str(tmp_path / "copy.db"), str(tmp_path / "part"))
    assert caught.value.hint == "`athena restore` lists the earlier backups"
    assert not (tmp_path / "copy.db").exists()


@pytest.mark.sqlite_only("the command's own store")
def test_commands_back_up_and_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATHENA_DB_PATH", raising=False)
    (tmp_path / "key").write_bytes(SECRET)
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(InvalidInput, match="others can read"):
        backups.read_secret(str(tmp_path / "key"))
    (tmp_path / "key").chmod(0o600)
    environ = os.environ | {"ATHENA_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "athena", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    run("remember", "The first fact")
    written = json.loads(run("backup", "--key-file", str(tmp_path / "key"), "--json").stdout)
    assert (written["memories"], written["encrypted"]) == (1, True)
    run("remember", "The second fact")
    assert written["path"] in run("restore").stdout
    for command in ("backup", "export"):
        itself = run(command, str(tmp_path / "home" / "athena.db"), "--force")
        assert "is the store itself" in itself.stderr
    refused = run("restore", written["path"], "--key-file", str(tmp_path / "key"))
    assert refused.returncode != 0, "nobody is there to say yes"
    assert "second" in run("list").stdout
    done = run("restore", written["path"], "--yes", "--key-file", str(tmp_path / "key"), "--json")
    restored = json.loads(done.stdout)
    assert restored["memories"] == 1
    assert list_texts(tmp_path / "home" / "athena.db") == {"The first fact"}
    assert list_texts(restored["earlier"]) == {"The first fact", "The second fact"}
    assert not [name for name in os.listdir(tmp_path / "home") if "decrypting" in name or name.endswith(".part")]


@pytest.mark.sqlite_only("the file's own")
def test_server_backs_up_as_often_as_the_settings_say(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = os.environ | {"ATHENA_HOME": str(home), "ATHENA_BACKUP_EVERY_HOURS": "24"}
    subprocess.run([sys.executable, "-m", "athena", "remember", "A fact"], env=environ, check=True, timeout=60)
    command = [sys.executable, "-m", "athena", "serve", "--port", "0"]
    server = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (path,) = wait_until(lambda: backups.list_backups(str(home / "backups")))
    finally:
        server.terminate()
        server.wait(30)
    assert list_texts(path) == {"A fact"}


@pytest.mark.sqlite_only("the file's own")
def test_killed_backup_and_restore_leave_the_store_or_the_backup_whole(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environ = os.environ | {"ATHENA_HOME": str(home)}
    with closing(App(Sqlite(home / "athena.db"), MODEL)) as live:
        texts = store_facts(live, 40)
    with closing(Sqlite(home / "athena.db")) as database:
        backups.create_backup(database, str(tmp_path / "good.db"), str(tmp_path / "part"))
    with closing(App(Sqlite(home / "athena.db"), MODEL)) as live:
        call(live, "remember", content="newer")
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "athena", "backup"], env=environ, capture_output=True, check=True, timeout=60)
    whole_s = time.monotonic() - began
    rng = random.Random(7)
    for number in range(rounds(4, 100)):  # backup and restore in turn
        is_backup = number % 2 == 0
        arguments = ["backup"] if is_backup else ["restore", str(tmp_path / "good.db"), "--yes"]
        command = [sys.executable, "-m", "athena", *arguments]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1) * whole_s)  # a third is the start of Python
        process.kill()
        process.wait()
        for path in backups.list_backups(str(home / "backups")):
            assert list_texts(path) in (texts, texts | {"newer"})
        assert list_texts(home / "athena.db") in (texts, texts | {"newer"})
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        if not is_backup:
            assert list_texts(home / "athena.db") == texts
            with closing(App(Sqlite(home / "athena.db"), MODEL)) as live:
                call(live, "remember", content="newer")
    assert not [name for name in os.listdir(home / "backups") if ".part" in name]
    shutil.rmtree(home)
