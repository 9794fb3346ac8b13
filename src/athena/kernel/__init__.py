"""What an operation is, and the one way to call it."""
