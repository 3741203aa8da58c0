"""What a deployment is to be best at."""

from __future__ import annotations

OBJECTIVES = ("throughput", "fewest_gpus", "cost", "latency")
