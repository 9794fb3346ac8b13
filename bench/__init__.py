"""Benchmarks of Athena: `python -m bench` measures time, memory and disk space and writes docs/benchmarks.md."""
