"""The generation of a card: which kernels are built for it."""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.planners.ground.hardware import Gpu

AMPERE, ADA, HOPPER, BLACKWELL, BLACKWELL_CARD = "ampere", "ada", "hopper", "blackwell", "blackwell_card"
OLDER, OTHER = "older", "other"
# By the first words of a card's id, the longest that fits. `blackwell` is compute capability 10.x, `blackwell_card`
# 12.x (without NVLink): kernels built for one do not run on the other.
# Source: https://developer.nvidia.com/cuda-gpus (compute capabilities 8.0 and 8.6, 8.9, 9.0, 10.x, 12.0).
GENERATIONS: Mapping[str, str] = {
    "a10": AMPERE,
    "a100": AMPERE,
    "a10g": AMPERE,
    "a30": AMPERE,
    "a40": AMPERE,
    "a800": AMPERE,
    "rtx-3090": AMPERE,
    "rtx-a5000": AMPERE,
    "rtx-a6000": AMPERE,
    "l4": ADA,
    "l40": ADA,
    "l40s": ADA,
    "rtx-4090": ADA,
    "rtx-6000-ada": ADA,
    "gh200": HOPPER,
    "h100": HOPPER,
    "h20": HOPPER,
    "h200": HOPPER,
    "h800": HOPPER,
    "b200": BLACKWELL,
    "b300": BLACKWELL,
    "gb200": BLACKWELL,
    "gb300": BLACKWELL,
    "rtx-5090": BLACKWELL_CARD,
    "rtx-pro-6000": BLACKWELL_CARD,
    "t4": OLDER,
    "v100": OLDER,
}


def generation(gpu: Gpu) -> str:
    """Return a card's generation, `other` of cards that are not NVIDIA's."""
    fitting = [name for name in GENERATIONS if gpu.id == name or gpu.id.startswith(f"{name}-")]
    return GENERATIONS[max(fitting, key=len)] if fitting else OTHER
