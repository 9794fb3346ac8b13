"""The only code that touches a database. SQL is written once; engines differ in `words` and `vectors`."""
