"""The SQLite engine: a store in one file."""
