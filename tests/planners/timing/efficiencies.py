"""Efficiencies with plain figures, so that tests can work seconds out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from plimsoll.planners.timing.efficiency import Efficiency, load_efficiency

CARD = {
    "matmul_peak_fraction": 0.5,
    "low_precision_peak_fraction": 0.25,
    "measured_sizes": False,
    "attention_peak_fraction": 0.5,
    "memory_bandwidth_fraction": 0.5,
    "link_fraction": 0.5,
    "network_fraction": 0.5,
}
LATENCIES = {"launch_seconds": 0.0, "link_hop_seconds": 0.0, "network_hop_seconds": 0.0}


def plain(*, card: dict[str, Any] | None = None, common: dict[str, Any] | None = None, **stack: Any) -> Efficiency:
    """Return the textbook's stack on a card that reaches half of everything, without latencies."""
    base = load_efficiency()
    return dataclasses.replace(
        base,
        gpu=dataclasses.replace(base.gpu, **{**CARD, **(card or {})}),
        common=dataclasses.replace(base.common, **{**LATENCIES, **(common or {})}),
        stack=dataclasses.replace(base.stack, **{"traffic_multiple": 1.0, **stack}),
    )
