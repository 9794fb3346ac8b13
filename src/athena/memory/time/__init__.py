"""Intervals from phrases such as "last week"."""
