"""An isolated store for tests: in memory, gone at the end.

Wrap the code that uses `athena.api`:

    with testing.isolated():
        my_agent.run()
        assert api.search("what it learned").memories
"""

from collections.abc import Generator
from contextlib import contextmanager

from athena.app import connect
from athena.app.compose import App
from athena.core import clock
from athena.embedding.embedder import Embedder
from athena.embedding.minilm import MiniLM
from athena.storage.database import Database
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite

_shared_embedder = MiniLM()  # loads its model at the first text


@contextmanager
def isolated(
    embedder: Embedder | None = None, time: clock.Clock = clock.system_clock, database: Database | None = None
) -> Generator[App]:
    """Give `athena.api` an empty store in memory, or another, for as long as the block runs, on all threads."""
    app = App(database or Sqlite(IN_MEMORY_PATH), embedder or _shared_embedder, time)
    with connect.use_app(app):
        try:
            yield app
        finally:
            app.close()
