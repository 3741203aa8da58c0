"""How far the planner's step times lie from published measurements: `python -m benchmarks.accuracy_time`."""
