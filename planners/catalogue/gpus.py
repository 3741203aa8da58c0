"""One GPU's datasheet facts, read from its file."""

from __future__ import annotations

import tomllib

from plimsoll.planners.ground.hardware import Gpu


def read_gpu(content: bytes) -> Gpu:
    """Return the GPU that a catalogue file describes.

    The file names a source for each group of figures (`rates`, with the memory
    bandwidth; `memory`; `link`; `pcie`; `box`, for the network and the GPUs of a
    node); `Gpu.source` strings them together.
    """
    record = tomllib.loads(content.decode())
    return Gpu(
        id=record["id"],
        name=record["name"],
        memory_bytes=record["memory_bytes"],
        memory_bytes_per_second=record["memory_bytes_per_second"],
        peak_flops_per_second=record["peak_flops_per_second"],
        link_bytes_per_second=record["link_bytes_per_second"],
        link_kind=record["link_kind"],
        pcie_bytes_per_second=record["pcie_bytes_per_second"],
        nic_bytes_per_second=record["nic_bytes_per_second"],
        gpus_per_node=record["gpus_per_node"],
        source="; ".join(f"{figures}: {source}" for figures, source in record["sources"].items()),
        aliases=tuple(record["aliases"]),
        assumptions=tuple(record["assumptions"]),
    )
