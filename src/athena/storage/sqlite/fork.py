"""Close SQLite connections around a fork: its file locks belong to a process, so none may stay open across it.

A child that inherits an open connection believes that it holds locks which only the parent has, and the parent's
last close then deletes the log while the child uses it.
"""

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


fork_aware_stores: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def _prepare_fork() -> None:
    for store in list(fork_aware_stores):
        store.before_fork()


def _resume_parent() -> None:
    for store in list(fork_aware_stores):
        store.after_fork_in_parent()


def _reset_child() -> None:
    for store in list(fork_aware_stores):
        store.after_fork_in_child()
    fork_aware_stores.clear()


os.register_at_fork(before=_prepare_fork, after_in_parent=_resume_parent, after_in_child=_reset_child)
