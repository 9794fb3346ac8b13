"""The base of every other package: operations, types, text, threads, files."""
