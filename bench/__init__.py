"""How fast Athena is, and how much room it takes: `python -m bench` measures and writes docs/benchmarks.md."""
