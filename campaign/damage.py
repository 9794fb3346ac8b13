"""Damage copies of a store: `verify` finds it, or the file is refused, or all content is what it was."""

import random
import shutil
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.storage.database import Row, Transaction
from athena.storage.sqlite.store import Sqlite
from campaign.model import Findings, Model
from campaign.processes import call_app, open_app
from campaign.result import Failure, Tally
from campaign.work import ModelJournal, Writer

STEPS = 60
PAGE_BYTES = 4096
# What people stored: not the call log, usage figures, vectors and counts, which say nothing of their own.
CONTENT = {
    "scopes": "id, name, kind",
    "memories": "id, scope, digest, hash, content, label, tags, memory_type, metadata, session, happened, created, "
    "updated, deleted, importance, occurrences, author, private",
    "tags": "*",
    "history": "*",
    "links": "*",
    "relations": "*",
    "mentions": "*",
    "workspaces": "*",
    "files": "*",
    "runs": "*",
    "receipts": "*",
}


def flip_bit(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_bits(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(2, 6)):
        flip_bit(data, rng)


def erase_sector(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) // 512) * 512
    data[start : start + 512] = bytes(512)


def swap_pages(data: bytearray, rng: random.Random) -> None:
    one, other = (rng.randrange(len(data) // PAGE_BYTES) * PAGE_BYTES for _ in range(2))
    first, second = data[one : one + PAGE_BYTES], data[other : other + PAGE_BYTES]
    data[one : one + PAGE_BYTES], data[other : other + PAGE_BYTES] = second, first


def cut_off(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(100, len(data)) :]


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    flip_bit, flip_bit, flip_bit, flip_bit, flip_bit, flip_bits, erase_sector, swap_pages, cut_off,
)  # fmt: skip


class DamagedCopies:
    seconds = 0.0
    copies = 20

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_small(self) -> None:
        self.copies = 10

    def run_round(self, seed: int, tally: Tally) -> None:
        rng = random.Random(seed)
        path = self.folder / "sound" / "athena.db"
        shutil.rmtree(path.parent, ignore_errors=True)
        self._fill_store(path, rng)
        sound, content = path.read_bytes(), read_content(path)
        tally.add(rounds=1)
        copy = self.folder / "copy" / "athena.db"
        for number in range(self.copies):
            shutil.rmtree(copy.parent, ignore_errors=True)
            copy.parent.mkdir()
            damaged = bytearray(sound)
            damage = rng.choice(DAMAGES)
            damage(damaged, rng)
            copy.write_bytes(damaged)
            copy.chmod(0o600)
            outcome = self._judge(copy, content)
            tally.add(copies=1, **{outcome if outcome in ("found", "refused", "unchanged") else "failed": 1})
            if outcome == "silent":
                raise Failure(Findings(silent=(f"copy {number}, {damage.__name__}",)))
            if outcome.startswith("raw"):
                raise Failure(Findings(raw=(f"copy {number}, {damage.__name__}: {outcome}",)))

    def _fill_store(self, path: Path, rng: random.Random) -> None:
        app = open_app(Sqlite(path), rng)
        model = Model()
        writer = Writer(
            "d", rng, lambda *words, **arguments: call_app(app, *words, **arguments), ModelJournal(model), 12
        )
        for _ in range(STEPS):
            writer.take_step()
        first, second = (call_app(app, "remember", content=f"related {i}", metadata={"n": i})["id"] for i in range(2))
        call_app(app, "relate_memories", memory_id=first, other_id=second)
        call_app(app, "create_relations", relations=[{"from": "Ann", "to": "Bob", "relationType": "knows"}])
        run_sync(app.store.database.compact())
        app.close()

    def _judge(self, path: Path, content: dict[str, list[Row]]) -> str:
        try:
            app = open_app(Sqlite(path))
            try:
                if call_app(app, "verify")["problems"]:
                    return "found"
            finally:
                app.close()
        except AthenaError:
            return "refused"
        except Exception:  # noqa: BLE001  # what the campaign looks for
            return f"raw: {traceback.format_exc()}"
        return "unchanged" if read_content(path) == content else "silent"


def read_content(path: Path) -> dict[str, list[Row]]:
    """Return all rows that people stored."""

    async def fetch_tables(tx: Transaction) -> dict[str, list[Row]]:
        return {
            table: sorted(await tx.fetch(f"SELECT {columns} FROM {table}"), key=repr)
            for table, columns in CONTENT.items()
        }

    store = Sqlite(path)
    try:
        return run_sync(store.read(fetch_tables))
    except (apsw.Error, AthenaError, UnicodeDecodeError) as error:
        return {"unreadable": [(str(error),)]}
    finally:
        store.close()


@contextmanager
def open_rounds(folder: Path) -> Generator[DamagedCopies]:
    yield DamagedCopies(folder)
