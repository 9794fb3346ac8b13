"""What every part of memory works with."""

from typing import TYPE_CHECKING, NamedTuple

from athena.core.clock import Clock
from athena.embedding.encoder import Encoder
from athena.memory.ranking import Weights
from athena.storage.database import Database

if TYPE_CHECKING:  # most people have none
    from athena.embedding.chat import Chat


class Store(NamedTuple):
    database: Database
    encoder: Encoder
    clock: Clock
    weights: Weights = Weights()
    chat: "Chat | None" = None  # a language model for better wording, where one is configured
