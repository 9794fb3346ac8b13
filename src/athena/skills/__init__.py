"""Skills: programs that worked, as functions with names. What is here reads and writes source; nothing is stored."""
