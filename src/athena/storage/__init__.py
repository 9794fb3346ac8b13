"""The database: two engines behind one protocol, and the SQL that both run."""
