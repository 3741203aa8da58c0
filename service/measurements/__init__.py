"""Reports from real runs: set beside what was predicted, and learned from."""
