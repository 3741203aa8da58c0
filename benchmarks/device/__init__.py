"""Plans beside their traces and their runs on the accelerator at hand: `python -m benchmarks.device`."""
