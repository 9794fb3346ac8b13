"""The daemon at work: the server of `athena serve`, with nobody at its terminal."""

import os
import sys
from functools import partial

from athena import settings as configuration
from athena.app import is_same_store, start
from athena.home import DEFAULT_PROJECT
from athena.lock import Held
from athena.server import Server


def serve(home: str, held: Held) -> None:
    """Serve a home until nobody needs it."""
    os.chdir(home)
    settings = configuration.load()
    app = start(settings)
    try:
        server = Server(
            app,
            home,
            DEFAULT_PROJECT,
            "127.0.0.1",
            0,
            auth=True,
            hosts=(),
            consolidating=settings.consolidate,
            held=held,
            serves=partial(is_same_store, settings),
        )
    except BaseException:
        app.close()
        raise
    server.run()
    sys.stderr.flush()
