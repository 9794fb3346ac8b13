"""What every other package builds on: operations, types, text, threads, files."""
