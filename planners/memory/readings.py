"""What the peak of one GPU reads as: by torch's counters, by the driver, and to an allocator that runs short."""

from __future__ import annotations

from plimsoll.planners.plans import MemoryReading
from plimsoll.planners.stacks.profile import Profile

ALLOCATED = (
    "torch.cuda.max_memory_allocated(): live tensors, each in whole blocks of 512 bytes. Plans agree with traces of "
    "stacks' code to a thousandth; what nobody asked (lengths that differ, other releases) is in the band."
)
RESERVED = (
    "torch.cuda.max_memory_reserved(): with blocks that nothing else fits in, and what is free in the pools of other "
    "streams. It depends on the order in which sizes come and go, and so is wider."
)
EXPANDABLE = (
    "The same with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, whose segments grow by pages: what is left is "
    "between pieces in use."
)
DEVICE = (
    "What nvidia-smi shows of the process: reserved memory, the CUDA context, libraries' workspaces and communicators."
)
NEEDED = (
    "The least that the device must have for the process: an allocator that runs short first gives back what nothing "
    "is in. With no more than that a step may wait for it, again and again."
)


def readings(
    profile: Profile, *, allocated: int, reserved: int, expandable: int, needed: int, runtime: int
) -> tuple[MemoryReading, ...]:
    """Return the readings of a stage's peak, each with its own band; `runtime` is what lies outside the allocator."""
    own, whole = profile.allocated_band, profile.band
    return (
        _reading("allocated", allocated, own.low, own.high, ALLOCATED),
        _reading("reserved", reserved, whole.low, whole.high, RESERVED),
        _reading("reserved_expandable_segments", expandable, min(own.low, whole.low), whole.high, EXPANDABLE),
        _reading("device", reserved + runtime, whole.low, whole.high, DEVICE),
        _reading("needed", needed + runtime, own.low, own.high, NEEDED),
    )


def _reading(name: str, size_bytes: int, low: float, high: float, meaning: str) -> MemoryReading:
    return MemoryReading(
        name=name,
        size_bytes=size_bytes,
        low_bytes=int(size_bytes * low),
        high_bytes=int(size_bytes * high),
        meaning=meaning,
    )
