"""Programs and models ingest files only beneath folders that a person allowed; nobody ingests Athena's own."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App, open_app
from athena.app.settings import load_settings
from athena.core.threads import run_sync
from athena.documents.access import FileAccess, find_project_roots
from athena.errors import AthenaError, Denied, NotFound

CANARY = "canary-7f3a91"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository that holds everything a program must not read, and two files that it may."""
    root = tmp_path / "repo"
    for path, text in {
        ".git/HEAD": "ref",
        "README.md": "# Shop\n\nThe shop sells lamps.",
        "docs/guide.md": "Use the blue lamp.",
        ".env": CANARY,
        ".env.local": CANARY,
        ".ssh/config": CANARY,
        "config/.netrc": CANARY,
        "deploy/id_ed25519": CANARY,
        "deploy/server.pem": CANARY,
        "deploy/token": CANARY,
        "deploy/id_rsa.bak": CANARY,
        "deploy/my.key.txt": CANARY,
        "deploy/aws_credentials": CANARY,
        "deploy/prod.env.local": CANARY,
        "deploy/application-secrets.yml": CANARY,
        "deploy/credentials.json": CANARY,
        "prod.tfstate": CANARY,
        "home/token": CANARY,
        "home/athena.txt": CANARY,
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(CANARY)
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "docs" / "up").symlink_to("../..")
    os.link(root / "home" / "athena.txt", root / "docs" / "hardlink.txt")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
    return root


@pytest.fixture
def app(repository: Path) -> Iterator[App]:
    app = open_app(load_settings({"ATHENA_HOME": str(repository / "home")}))
    yield app
    app.close()


def call(app: App, name: str, project: Path | str, surface: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(str(project), surface), **arguments))


def run_program(app: App, project: Path | str, code: str) -> Any:
    return call(app, "execute_code", project, "mcp", code=code)


FORBIDDEN_PATHS = (
    "{root}/home/token",
    "{root}/home/athena.txt",
    "{root}/docs/hardlink.txt",
    "home/sandbox.key",
    ".env",
    ".env.local",
    "./docs/../.env",
    ".git/HEAD",
    ".ssh/config",
    "config/.netrc",
    "deploy/id_ed25519",
    "deploy/server.pem",
    "deploy/token",
    "deploy/id_rsa.bak",
    "deploy/my.key.txt",
    "deploy/aws_credentials",
    "deploy/prod.env.local",
    "deploy/application-secrets.yml",
    "deploy/credentials.json",
    "prod.tfstate",
    "link.txt",
    "linked/secret.txt",
    "docs/up/outside/secret.txt",
    "{root}/../outside/secret.txt",
    "../outside/secret.txt",
    "{outside}/secret.txt",
    "~/.ssh/id_rsa",
    "/etc/passwd",
    "/proc/self/environ",
    "/dev/stdin",
    "file:///etc/passwd",
    "docs/guide.md\0/etc/passwd",
    "pipe",
    "s",
)


@pytest.mark.parametrize("path", FORBIDDEN_PATHS)
def test_program_cannot_ingest_what_nobody_allowed(app: App, repository: Path, path: str) -> None:
    path = path.format(root=repository, outside=repository.parent / "outside")
    attempt = f"r = documents.ingest_document(path={path!r})"
    code = f"try:\n    {attempt}\nexcept Exception as e:\n    r = {{'error': str(e)}}\nr"
    done = run_program(app, repository, code)
    assert done.result.get("documents", 0) == 0, done.result
    assert call(app, "list_documents", repository, "mcp") == []
    assert CANARY not in str(done)


def test_folder_walk_leaves_out_keys_links_and_own_files(app: App, repository: Path) -> None:
    done = run_program(app, repository, "documents.ingest_document(path='.')")
    assert done.result["documents"] == 2
    sources = [document.source for document in call(app, "list_documents", repository, "mcp")]
    assert sources == [str(repository / "README.md"), str(repository / "docs" / "guide.md")]
    skipped = {line.rpartition(": ")[0]: line.rpartition(": ")[2] for line in done.result["skipped"]}
    assert skipped[str(repository / "docs" / "hardlink.txt")] == "it belongs to Athena"
    assert skipped[str(repository / "prod.tfstate")] == "it may hold keys"
    texts = call(app, "recall", repository, "mcp", query="canary 7f3a91 lamp", k=50)
    assert texts
    assert CANARY not in str(texts)


def test_folder_walk_does_not_enter_a_data_folder_behind_a_link(repository: Path, tmp_path: Path) -> None:
    link = tmp_path / "link-to-home"
    link.symlink_to(repository / "home")
    location = FileAccess(str(link), roots=(str(repository),)).locate(".")
    (repository / "home" / "later.txt").write_text(CANARY)  # written after Athena's files were listed
    assert not any(path.endswith("later.txt") for path, _ in location.iter_files())


def test_relative_paths_start_at_the_project(app: App, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert run_program(app, repository, "documents.ingest_document(path='docs/guide.md')['documents']").result == 1
    pieces = run_program(app, repository, "documents.get_document(source='docs/guide.md')").result
    assert pieces == ["Use the blue lamp."]
    assert run_program(app, repository, "documents.delete_document(source='docs/guide.md')").result == 1


def test_project_without_folder_allows_nothing(app: App, repository: Path) -> None:
    for project in ("shop", "/", str(repository / "docs"), os.path.expanduser("~")):
        with pytest.raises(Denied, match="no folder") as denied:
            call(app, "ingest_document", project, "mcp", path=str(repository / "README.md"))
        assert denied.value.hint is not None
        assert "documents.roots" in denied.value.hint


def test_home_that_is_a_repository_is_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ann" / ".git").mkdir(parents=True)
    assert find_project_roots(str(tmp_path / "ann")) == (str(tmp_path / "ann"),)
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    assert find_project_roots(str(tmp_path / "ann")) == ()


def test_person_can_allow_another_folder(repository: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("Lamps are blue.")
    settings = load_settings({"ATHENA_HOME": str(tmp_path / "h"), "ATHENA_DOCUMENTS_ROOTS": str(notes)})
    app = open_app(settings)
    try:
        assert call(app, "ingest_document", "shop", "mcp", path=str(notes / "a.md")).documents == 1
        with pytest.raises(Denied):
            call(app, "ingest_document", "shop", "mcp", path=str(repository / "README.md"))
    finally:
        app.close()


def test_person_may_ingest_anything_but_athenas_own(app: App, repository: Path) -> None:
    outside = repository.parent / "outside" / "secret.txt"
    assert call(app, "ingest_document", "shop", "cli", path=str(outside)).documents == 1
    for path in (repository / "home", repository / "home" / "token"):
        with pytest.raises(Denied, match="own data folder"):
            call(app, "ingest_document", "shop", "cli", path=str(path))
    done = call(app, "ingest_document", "shop", "python", path=str(repository / "docs" / "hardlink.txt"))
    assert (done.documents, len(done.skipped)) == (0, 1)


def test_nobody_ingests_keys_database_and_backups_elsewhere(tmp_path: Path) -> None:
    keys, backups, data = tmp_path / "keys", tmp_path / "backups", tmp_path / "data"
    for folder in (keys, backups, data):
        folder.mkdir()
    own = [keys / "0f.key", backups / "athena-20260101-000000.db", tmp_path / "backup.txt", data / "store.db"]
    for path in own[:3]:
        path.write_text(CANARY)
    (backups / "notes.md").write_text("Lamps are blue.")
    os.link(own[0], backups / "copy.md")
    environ = {
        "ATHENA_HOME": str(tmp_path / "h"),
        "ATHENA_DB_PATH": str(own[3]),
        "ATHENA_VAULT_KEY_FOLDER": str(keys),
        "ATHENA_BACKUP_FOLDER": str(backups),
        "ATHENA_BACKUP_KEY_FILE": str(own[2]),
    }
    app = open_app(load_settings(environ))
    try:
        for path in (*own, keys):
            with pytest.raises(Denied, match="Athena's own"):
                call(app, "ingest_document", "shop", "http", path=str(path))
        done = call(app, "ingest_document", "shop", "http", path=str(tmp_path))
        skipped = {Path(line.rpartition(": ")[0]).name for line in done.skipped if line.endswith("belongs to Athena")}
        assert {"copy.md", "athena-20260101-000000.db", "backup.txt", "store.db"} <= skipped
        assert done.documents == 1
    finally:
        app.close()


def test_swapped_folder_is_never_followed(repository: Path) -> None:
    """Another process exchanges a folder for a link all the time: no read ever leaves the root."""
    target, away, evil = repository / "docs", repository / "away", repository / "evil"
    evil.symlink_to(repository.parent / "outside")
    (repository.parent / "outside" / "guide.md").write_text(CANARY)
    access = FileAccess(None, roots=(str(repository),))
    is_done = threading.Event()

    def swap_folder() -> None:
        while not is_done.is_set():
            target.rename(away)
            evil.rename(target)
            target.rename(evil)
            away.rename(target)

    thread = threading.Thread(target=swap_folder)
    thread.start()
    texts = []
    try:
        for _ in range(2_000):
            try:
                for _, file in access.locate("docs/guide.md").iter_files():
                    texts += [os.read(file, 100)] if isinstance(file, int) else []
            except (AthenaError, OSError):
                continue
    finally:
        is_done.set()
        thread.join()
    assert set(texts) == {b"Use the blue lamp."}


@pytest.mark.parametrize("way", ["docs/../../outside", "docs/up/outside", "linked", "docs/./../../outside"])
def test_withdrawal_tells_nothing_of_files_outside(app: App, repository: Path, way: str) -> None:
    """A program stores pieces of documents that it invents: which of them are withdrawn tells which files are there."""
    for name in ("secret.txt", "missing.txt"):
        path = f"{repository}/{way}/{name}"
        fields = {"memory_type": "document", "metadata": {"session_id": path}}
        call(app, "remember", repository, "program", content=path, **fields)
    done = [call(app, "ingest_document", repository, "program", path=path).withdrawn for path in ("docs", ".")]
    assert done == [0, 0]


def test_program_withdraws_what_is_gone(app: App, repository: Path) -> None:
    call(app, "ingest_document", repository, "cli", path=str(repository / "docs"))
    (repository / "docs" / "guide.md").unlink()
    assert call(app, "ingest_document", repository, "program", path=".").withdrawn == 1


def test_errors_do_not_show_where_links_lead(app: App, repository: Path) -> None:
    with pytest.raises(NotFound) as error:
        call(app, "get_document", repository, "mcp", source="link.txt")
    assert "outside" not in str(error.value)


@pytest.mark.parametrize(
    "head", [b"SQLite format 3\0", b"athena backup 1\n", b'{"format":"athena","version":1}\n', b"---\nathena: 1\n---\n"]
)
def test_copy_of_store_in_project_is_refused(head: bytes, tmp_path: Path) -> None:
    """`athena export notes.jsonl` in the project's folder must not show programs the other projects."""
    (tmp_path / "notes.md").write_bytes(head + CANARY.encode())
    (tmp_path / "other.md").write_text("Fine.")
    for path in ("", "notes.md"):
        opened = dict(FileAccess(None, roots=(str(tmp_path),)).locate(path or ".").iter_files())
        refused = opened[str(tmp_path / "notes.md")]
        assert isinstance(refused, PermissionError)
        assert "copy of Athena's store" in str(refused)
    person = dict(FileAccess(None, is_confined=False).locate(str(tmp_path)).iter_files())
    assert all(isinstance(file, int) for file in person.values())
