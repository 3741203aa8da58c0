"""Measured efficiencies: what of each datasheet rate real work reaches, from a data file."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Fractions are of datasheet rates; `low` and `high` bound a step's seconds as multiples of the estimate."""

    provenance: str
    low: float
    high: float
    matmul_peak_fraction: float
    matmul_half_tokens: float
    matmul_half_features: float
    attention_peak_fraction: float
    attention_backward_multiple: float
    memory_bandwidth_fraction: float
    traffic_multiple: Mapping[str, float]
    collective_bandwidth_fraction: float
    launch_seconds: float
    link_hop_seconds: float
    network_hop_seconds: float
    overlap_fraction: float
    host_memory_bytes_per_second: float
    pcie_fraction: float


@functools.cache
def load_efficiency() -> Efficiency:
    """Return the efficiencies that every plan uses."""
    text = (resources.files("planners.timing") / "efficiencies.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    matmul, attention, memory = table["matmul"], table["attention"], table["memory"]
    collective, host = table["collective"], table["host"]
    return Efficiency(
        provenance=table["provenance"],
        low=table["low"],
        high=table["high"],
        matmul_peak_fraction=matmul["peak_fraction"],
        matmul_half_tokens=matmul["half_tokens"],
        matmul_half_features=matmul["half_features"],
        attention_peak_fraction=attention["peak_fraction"],
        attention_backward_multiple=attention["backward_multiple"],
        memory_bandwidth_fraction=memory["bandwidth_fraction"],
        traffic_multiple=memory["traffic_multiple"],
        collective_bandwidth_fraction=collective["bandwidth_fraction"],
        launch_seconds=collective["launch_seconds"],
        link_hop_seconds=collective["link_hop_seconds"],
        network_hop_seconds=collective["network_hop_seconds"],
        overlap_fraction=collective["overlap_fraction"],
        host_memory_bytes_per_second=host["memory_bytes_per_second"],
        pcie_fraction=host["pcie_fraction"],
    )
