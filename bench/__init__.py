"""Benchmarks for every claim about speed: `make bench` runs all, `python -m bench NAME` runs one."""
