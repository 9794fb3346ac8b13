"""What every part of memory works with."""

from typing import NamedTuple

from athena.clock import Clock
from athena.memory.encoder import Encoder
from athena.memory.ranking import Weights
from athena.storage.database import Database


class Store(NamedTuple):
    database: Database
    encoder: Encoder
    clock: Clock
    weights: Weights = Weights()
