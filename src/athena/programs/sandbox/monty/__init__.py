"""The Monty engine: runs small programs in process."""
