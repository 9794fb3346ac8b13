"""The version, in one place: the package, the store and the servers all read it here."""

__version__ = "0.1.0"
