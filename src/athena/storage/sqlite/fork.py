"""What a fork needs: SQLite's locks belong to a process, so no connection may be open across it.

A child that inherits an open connection believes that it holds locks which only the parent has, and the parent's
last close then deletes the log under it.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def abandon(self) -> None: ...


stores: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def _pause() -> None:
    for store in list(stores):
        store.pause()


def _go_on() -> None:
    for store in list(stores):
        store.go_on()


def _abandon() -> None:
    for store in list(stores):
        store.abandon()
    stores.clear()


os.register_at_fork(before=_pause, after_in_parent=_go_on, after_in_child=_abandon)
