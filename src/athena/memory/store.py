"""The services that every part of memory works with."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from athena.core.clock import Clock
from athena.embedding.encoder import Encoder
from athena.memory.ranking import Weights
from athena.storage.database import Database

if TYPE_CHECKING:  # needed only where a language model is configured, and to edit
    from athena.embedding.remote import Chat
    from athena.memory.edit_hooks import EditHooks


class Store(NamedTuple):
    database: Database
    encoder: Encoder
    clock: Clock
    weights: Weights = Weights()
    chat: "Chat | None" = None  # an optional language model: it words patterns and proposes statements
    edit_hooks: "Iterable[EditHooks]" = ()  # of the graph, consolidation and programs, for undo and purge
