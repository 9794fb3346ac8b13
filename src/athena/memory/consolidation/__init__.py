"""Consolidation: find patterns in the events and memories of the last days, and act on them.

The miners (`events`, `sequences`, `stages`, `contradictions`) work on plain values and know no store. `run` reads from
the store, runs the miners, saves their patterns and changes memories accordingly.
"""
