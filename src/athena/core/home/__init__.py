"""The data folder: paths, lock, sockets, daemon, logs."""
