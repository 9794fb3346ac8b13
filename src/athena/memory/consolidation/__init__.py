"""Consolidation: what the events and memories of the last days add up to.

Miners (`recurring`, `sequences`, `together`, `contradictions`) look at plain values and know no store; `run` reads
from the store, lets them work, keeps the patterns that they find and changes memories accordingly.
"""
