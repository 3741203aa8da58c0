"""Engines that take the same GPU: what all of them hold at once.

vLLM asks for its fraction of the whole card to be free when it starts, and then gives the cache what all processes on
the card leave of that fraction: vllm, v1/worker/utils.py (`request_memory`) and v1/worker/gpu_worker.py
(`determine_available_memory`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.ground.units import GIB
from plimsoll.service.admission.findings import Finding, Share
from plimsoll.service.engines.engine import engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Engines on one GPU; `is_certain` where they cannot have different ones, else `reason` says when they have not."""

    shares: Sequence[Share]
    is_certain: bool
    reason: str = ""


def sharing_finding(sharing: Sharing) -> Finding | None:
    """Return what to say of engines that ask for more than their GPU has, None where they may fit together.

    Weights alone decide for any engine. Of n engines that claim fractions u and start
    together, each with the weights W of all of them on the card already, the caches take
    sum(u) T - n W of its memory T: they do not fit with the weights, W + sum(u) T - n W > T,
    where W < (sum(u) - 1) T / (n - 1). One that starts later finds too little free, and the
    last to look finds all weights there: it has no cache where W >= u T for the largest u.
    """
    shares = sharing.shares
    if len(shares) < 2:
        return None
    memory_bytes = min(share.memory_bytes for share in shares)
    weight_bytes = sum(share.weight_bytes for share in shares)
    fractions = [share.fraction for share in shares if engines()[share.engine].claims_fraction]
    fraction = sum(fractions)
    programs = " and ".join(share.program for share in shares)
    if weight_bytes > memory_bytes:
        text = f"hold {weight_bytes / GIB:.1f} GiB of weights together, the GPU they share has {memory_bytes / GIB:.1f}"
        return _told(f"{programs} {text} GiB", sharing, is_refused=True)
    if fraction <= 1 or len(fractions) < 2:
        return None
    text = (
        f"take {fraction:.2f} of the GPU they share together by --gpu-memory-utilization; "
        f"fits with fractions that add up to 1 at most, or a GPU for each by CUDA_VISIBLE_DEVICES"
    )
    largest_bytes = max(fractions) * memory_bytes
    overflows = weight_bytes < (fraction - 1) * memory_bytes / (len(fractions) - 1)
    return _told(f"{programs} {text}", sharing, is_refused=overflows or weight_bytes >= largest_bytes)


def _told(text: str, sharing: Sharing, *, is_refused: bool) -> Finding:
    if sharing.is_certain:
        return Finding(weight="refuse" if is_refused else "warn", text=f"{text}.")
    return Finding(weight="warn", text=f"{text}, where {sharing.reason}.")
