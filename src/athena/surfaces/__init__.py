"""Ways in from outside the process: bytes to operations, and results to bytes."""
