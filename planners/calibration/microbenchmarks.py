"""What one kernel or collective alone should take: the quantities that small benchmarks measure.

Each is one term of the step's time, as `compute.py` and `collectives.py` have it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.timing.collectives import all_reduce_seconds, rank_group
from plimsoll.planners.timing.compute import LOW_PRECISION_FORMATS, shapes_of
from plimsoll.planners.timing.efficiency import Efficiency, GpuEfficiency


def matmul_seconds(
    rows: int, inputs: int, outputs: int, number_format: str, hardware: Hardware, gpu: GpuEfficiency
) -> float:
    """Return one product of rows x inputs and inputs x outputs, two operations a multiply-add."""
    is_low = number_format in LOW_PRECISION_FORMATS
    fraction = gpu.low_precision_peak_fraction if is_low else gpu.matmul_peak_fraction
    sides = (np.array([float(side)]) for side in (rows, outputs, inputs))
    multiple = float(shapes_of(hardware.gpu, gpu, is_low=is_low).multiple(*sides)[0])
    rates: Mapping[str, float] = hardware.gpu.peak_flops_per_second
    return 2.0 * rows * inputs * outputs * multiple / (rates[number_format] * fraction)


def memory_seconds(moved_bytes: float, hardware: Hardware, gpu: GpuEfficiency) -> float:
    """Return the reading and writing of so many bytes by an element-wise kernel."""
    return moved_bytes / (hardware.gpu.memory_bytes_per_second * gpu.memory_bandwidth_fraction)


def attention_seconds(flops: float, number_format: str, hardware: Hardware, gpu: GpuEfficiency) -> float:
    """Return a flash attention's forward pass of so many operations, those under the causal mask."""
    return flops / (hardware.gpu.peak_flops_per_second[number_format] * gpu.attention_peak_fraction)


def one_all_reduce_seconds(message_bytes: float, ranks: int, hardware: Hardware, efficiency: Efficiency) -> float:
    """Return one all-reduce of neighbouring ranks, node after node."""
    group = rank_group(np.array([ranks]), np.array([1]), hardware, efficiency)
    return float(all_reduce_seconds(np.array([message_bytes], dtype=np.float64), group)[0])
