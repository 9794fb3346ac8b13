"""Generated sets with known answers."""
