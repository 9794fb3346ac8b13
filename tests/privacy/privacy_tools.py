"""Apps with privacy on, and contacts to move about."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from athena.app.compose import App, PrivacyRules
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.gateway.config import validate_entry
from athena.storage.database import Database, Transaction
from athena.storage.privacy_guard import PrivacyMode
from conftest import MODEL
from person_tools import approve_tools

SERVER = Path(__file__).with_name("contact_server.py")
RUN_TIMEOUT_S = 100.0


class PrivateApp:
    """An app with privacy on; each call says on which surface it is made."""

    def __init__(self, database: Database, folder: Path, mode: PrivacyMode, **more: Any) -> None:
        self.folder, self.mode = folder, mode
        self.later_s = 0.0  # by how much the clock is ahead
        rules = PrivacyRules(mode, key_folder=str(folder / "keys"), database_folder=str(folder / "home"), **more)
        (folder / "home").mkdir(exist_ok=True, mode=0o700)
        self.app = App(
            database, MODEL, self.read_clock, servers=str(folder / "home"), privacy=rules, key=lambda: bytes(32)
        )
        self.vault = self.app.guard.vault

    def read_clock(self) -> float:
        return time.time() + self.later_s

    def call(self, surface: str, name: str, /, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
        return run_sync(invoke(self.app.catalog, name, arguments, self.app.create_context(project, surface, key)))

    def run(self, code: str, surface: str = "mcp", **more: Any) -> Any:
        return self.call(surface, "execute_code", code=code, timeout_s=RUN_TIMEOUT_S, **more)

    def add_server(self, name: str, **options: Any) -> Path:
        """Add a server of contacts, and return the file to which it writes them."""
        target = self.folder / f"{name}.jsonl"
        arguments = ["-I", "-S", str(SERVER), str(self.folder / "contacts.json"), str(target)]
        entry = {"command": sys.executable, "args": arguments, **options}
        gateway = self.app.gateway
        gateway.servers_file.add_entries([validate_entry(name, entry)], replaceable=[name])
        self.app.catalog.refresh()
        approve_tools(self.app, name, *run_sync(gateway.fetch_tools(name)))
        self.app.catalog.refresh()
        return target

    def read_texts(self) -> str:
        """Return every value of every table but the vault, as text and as bytes."""

        async def read(tx: Transaction) -> list[Any]:
            rows: list[Any] = []
            for table in (
                "memories",
                "history",
                "files",
                "workspaces",
                "runs",
                "receipts",
                "calls",
                "relations",
                "tags",
            ):
                rows += await tx.fetch(f"SELECT * FROM {table}")
            return rows

        return repr(run_sync(self.app.store.database.read(read)))


@contextmanager
def open_private_app(database: Database, folder: Path, mode: PrivacyMode, **more: Any) -> Iterator[PrivateApp]:
    private = PrivateApp(database, folder, mode, **more)
    try:
        yield private
    finally:
        private.app.close()
