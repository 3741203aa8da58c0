"""Which layouts of one job the evidence tells apart by their steps' seconds, and which are equal within the band."""

from __future__ import annotations

import math
from statistics import NormalDist

from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.timing.efficiency import Efficiency, efficiency_on

# So many of measured pairs that are further apart than a tie are to go as estimated.
ORDERED_SHARE = 0.90


def tie_fraction(framework: str, other: str, hardware: Hardware, *, experts: bool) -> float:
    """Return by how much layouts of a job on as many GPUs must differ for the faster to be known, by their frameworks.

    Errors that layouts of one stack share do not change their order, so that a tie is narrower than what the bands of
    two single steps would make it. That is what it is between two stacks, of which hardly a pair was measured.
    """
    efficiency = efficiency_on(framework, hardware)
    if framework == other:
        return efficiency.stack.expert_tie_fraction if experts else efficiency.stack.tie_fraction
    return unrelated_tie_fraction(efficiency, efficiency_on(other, hardware), experts=experts)


def unrelated_tie_fraction(one: Efficiency, other: Efficiency, *, experts: bool) -> float:
    """Return by how much two steps must differ whose errors have nothing in common, by the bands of both."""
    normal = NormalDist()
    inside = normal.inv_cdf((1 + one.common.coverage) / 2)
    widths = (math.log(high / low) / 2 for low, high in (each.band(experts=experts) for each in (one, other)))
    return math.expm1(normal.inv_cdf(ORDERED_SHARE) / inside * math.hypot(*widths))


def are_tied(seconds: float, other_seconds: float, fraction: float) -> bool:
    """Return whether neither step is known to be the faster."""
    return max(seconds, other_seconds) <= (1 + fraction) * min(seconds, other_seconds)
