"""Which GPU a request means: a catalogue entry, perhaps with other figures, or one given by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.catalogue import Catalogue, Cluster
from plimsoll.planners.ground.errors import InvalidQuestion, PlimsollError
from plimsoll.planners.ground.figures import figure
from plimsoll.planners.ground.hardware import Gpu, Hardware
from plimsoll.planners.ground.units import GIB, GIGA
from plimsoll.service.requests.hardware import Fleet, GpuByHand, GpuOverride, HardwareRequest, OneHardware

# Where a client names no number, the search for the fewest ends here: 160 TB of
# 80 GB cards hold 16 bytes for each of ten trillion parameters.
MOST_GPUS_UNASKED = 2_048

_FIGURES = tuple(field.name for field in dataclasses.fields(Gpu) if field.name not in ("aliases", "source"))


def resolve_fleet(asked: HardwareRequest, catalogue: Catalogue) -> tuple[Hardware, ...]:
    """Return every kind of GPUs that a request names, one where it is no fleet, with pointers in what it raises.

    Raises UnknownGpu, UnknownCluster and InvalidQuestion.
    """
    if not isinstance(asked, Fleet):
        return (resolve_hardware(asked, catalogue),)
    return tuple(_entry(one, catalogue, f"/hardware/fleet/{number}") for number, one in enumerate(asked.fleet))


def _entry(asked: OneHardware, catalogue: Catalogue, place: str) -> Hardware:
    try:
        return resolve_hardware(asked, catalogue)
    except PlimsollError as error:
        error.point_by(lambda pointer: pointer.replace("/hardware", place, 1))
        raise


def resolve_hardware(asked: OneHardware, catalogue: Catalogue) -> Hardware:
    """Return the planners' hardware, with pointers in what it raises.

    Raises UnknownGpu, UnknownCluster and InvalidQuestion.
    """
    gpu = asked.gpu.to_gpu() if isinstance(asked.gpu, GpuByHand) else catalogue.gpu(asked.gpu)
    cluster = None if asked.cluster is None else catalogue.cluster(asked.cluster)
    if cluster is not None:
        gpu = _in_cluster(gpu, cluster)
    if asked.override is not None:
        gpu = _overridden(gpu, asked.override)
    hardware = asked.to_hardware(gpu, free_maximum=MOST_GPUS_UNASKED)
    if cluster is not None and hardware.host_memory_bytes is None:
        hardware = dataclasses.replace(hardware, host_memory_bytes=cluster.host_memory_bytes)
    if hardware.network is not None and hardware.network.gpus_per_pod % hardware.gpus_per_node:
        raise InvalidQuestion(
            f"A pod of {hardware.network.gpus_per_pod:,} GPUs is not whole nodes of {hardware.gpus_per_node}: "
            "gpus_per_pod must be a multiple of the GPUs per node.",
            pointer="/hardware/network/gpus_per_pod",
        )
    if hardware.limit_bytes <= 0:
        pointer = "/hardware/reserve_bytes" if asked.reserve_bytes >= asked.used_bytes else "/hardware/used_bytes"
        raise InvalidQuestion(
            f"reserve_bytes and used_bytes leave nothing of the GPU's {gpu.memory_bytes / GIB:.1f} GiB.",
            pointer=pointer,
        )
    return hardware


def _in_cluster(gpu: Gpu, cluster: Cluster) -> Gpu:
    """Return the GPU with the links of a cluster's nodes; raises InvalidQuestion where the cluster holds another."""
    if gpu.id != cluster.gpu:
        raise InvalidQuestion(
            f"{cluster.id} holds {cluster.gpu}, not {gpu.id}. Name that GPU, or another cluster.",
            pointer="/hardware/cluster",
        )
    note = (
        f"Nodes are those of {cluster.id}: {cluster.gpus_per_node} GPUs, with "
        f"{figure(cluster.link_bytes_per_second / GIGA)} GB/s per GPU within a node and "
        f"{figure(cluster.nic_bytes_per_second / GIGA)} GB/s per GPU between nodes."
    )
    return dataclasses.replace(
        gpu,
        gpus_per_node=cluster.gpus_per_node,
        link_kind=cluster.link_kind,
        link_bytes_per_second=cluster.link_bytes_per_second,
        nic_bytes_per_second=cluster.nic_bytes_per_second,
        assumptions=(*gpu.assumptions, note, *cluster.assumptions),
    )


def _overridden(gpu: Gpu, override: GpuOverride) -> Gpu:
    """Return the GPU with the given figures; rates of formats that are not named stay."""
    figures = override.model_dump(exclude_none=True)
    rates = figures.pop("peak_flops_per_second", None)
    if rates is not None:
        figures["peak_flops_per_second"] = {**gpu.peak_flops_per_second, **rates}
    if not figures:
        return gpu
    note = f"These figures of {gpu.id} were given in the request: {', '.join(sorted(figures))}."
    return dataclasses.replace(gpu, **figures, assumptions=(*gpu.assumptions, note))


def gpu_figures(gpu: Gpu) -> Mapping[str, object]:
    """Return what a plan depends on: every figure, but neither the aliases nor where they were read."""
    figures = {name: getattr(gpu, name) for name in _FIGURES}
    return {**figures, "peak_flops_per_second": dict(gpu.peak_flops_per_second)}
