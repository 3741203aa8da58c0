"""Reserved memory in several ways, against what was measured: `python -m benchmarks.reserved_memory`."""
