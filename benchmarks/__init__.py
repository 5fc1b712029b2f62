"""Side-by-side measurements. Run one from the project's root: `python -m benchmarks.ddl --json ddl.json`."""
