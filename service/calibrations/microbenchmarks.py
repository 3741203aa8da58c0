"""Measured kernels and collectives of a calibration, resolved into what the planner fits."""

from __future__ import annotations

import dataclasses

from plimsoll.planners.calibration.microbenchmarks import (
    attention_seconds,
    matmul_seconds,
    memory_seconds,
    one_all_reduce_seconds,
)
from plimsoll.planners.calibration.training import Observation
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.service.requests.calibration import (
    AllReduceBenchmark,
    AttentionBenchmark,
    MatmulBenchmark,
    MemoryBenchmark,
    Microbenchmark,
)

# Rates alone are measured of kernels: the operations and bytes that stand for them cancel out.
UNIT_FLOPS = 1e12
UNIT_BYTES = 1e9


def measured_benchmark(gpu: Gpu, benchmark: Microbenchmark, pointer: str) -> Observation:
    """Return a microbenchmark beside its estimate; raises InvalidQuestion for a format that the GPU lacks."""
    hardware = Hardware(gpu=gpu, gpus=GpuCount(minimum=1, maximum=1), gpus_per_node=gpu.gpus_per_node)
    if isinstance(benchmark, MatmulBenchmark | AttentionBenchmark):
        _check_format(gpu, benchmark.format, pointer)
    if isinstance(benchmark, MatmulBenchmark):
        rows, inputs, outputs, name = benchmark.rows, benchmark.inputs, benchmark.outputs, benchmark.format
        return Observation(
            pointer=f"{pointer}/flops_per_second",
            what=f"A product of {rows} x {inputs} x {outputs} in {name}",
            kind="matmul",
            stack="",
            measured_seconds=2.0 * rows * inputs * outputs / benchmark.flops_per_second,
            estimate=lambda efficiency: matmul_seconds(rows, inputs, outputs, name, hardware, efficiency),
        )
    if isinstance(benchmark, MemoryBenchmark):
        return Observation(
            pointer=f"{pointer}/bytes_per_second",
            what="Moving a gigabyte in memory",
            kind="memory",
            stack="",
            measured_seconds=UNIT_BYTES / benchmark.bytes_per_second,
            estimate=lambda efficiency: memory_seconds(UNIT_BYTES, hardware, efficiency),
        )
    if isinstance(benchmark, AttentionBenchmark):
        number_format = benchmark.format
        return Observation(
            pointer=f"{pointer}/flops_per_second",
            what=f"10^12 operations of attention in {number_format}",
            kind="attention",
            stack="",
            measured_seconds=UNIT_FLOPS / benchmark.flops_per_second,
            estimate=lambda efficiency: attention_seconds(UNIT_FLOPS, number_format, hardware, efficiency),
        )
    return _all_reduce(hardware, benchmark, pointer)


def _all_reduce(hardware: Hardware, benchmark: AllReduceBenchmark, pointer: str) -> Observation:
    nodes_of = benchmark.gpus_per_node or hardware.gpus_per_node
    on = dataclasses.replace(hardware, gpus_per_node=nodes_of)
    shipped = load_efficiency(gpu_id=hardware.gpu.id)
    return Observation(
        pointer=f"{pointer}/seconds",
        what=f"An all-reduce of {benchmark.message_bytes:,} bytes among {benchmark.ranks:,} GPUs, {nodes_of} per node",
        kind="all_reduce",
        stack="",
        measured_seconds=benchmark.seconds,
        estimate=lambda efficiency: one_all_reduce_seconds(
            benchmark.message_bytes, benchmark.ranks, on, dataclasses.replace(shipped, gpu=efficiency)
        ),
    )


def _check_format(gpu: Gpu, name: str, pointer: str) -> None:
    if name not in gpu.peak_flops_per_second:
        known = ", ".join(gpu.peak_flops_per_second)
        raise InvalidQuestion(f"{gpu.name} does not compute in {name}; it has {known}.", pointer=f"{pointer}/format")
