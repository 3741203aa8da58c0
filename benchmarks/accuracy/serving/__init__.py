"""Planned against logged serving memory, and against measured latencies."""
