"""The memory of agents: store, recall, rank and consolidate texts."""
