"""One GPU's datasheet facts, read from its file."""

from __future__ import annotations

import tomllib

from plimsoll.planners.ground.data_files import record
from plimsoll.planners.ground.hardware import Gpu


def read_gpu(content: bytes) -> Gpu:
    """Return the GPU that a catalogue file describes.

    The file names a source for each group of figures (`rates`, with the memory
    bandwidth; `memory`; `link`; `pcie`; `box`, for the network and the GPUs of a
    node); `Gpu.source` strings them together.
    """
    table = tomllib.loads(content.decode())
    sources = table.pop("sources")
    return record(Gpu, {**table, "source": "; ".join(f"{figures}: {source}" for figures, source in sources.items())})
