"""The store in one file."""
