"""What a proof says about a plan."""

from __future__ import annotations

CONFIRMED = "confirmed"
CONSISTENT = "consistent"
REFUTED = "refuted"

# Our own choice, stated in every result: closer than any published estimator is on another stack's runs,
# and wider than the plans that were traced and agreed (2.4 % at worst).
TOLERANCE_FRACTION = 0.05


def relative_error(predicted: int, measured: int) -> float:
    """Return predicted / measured - 1: negative where the plan promised too little."""
    return predicted / measured - 1


def verdict(
    *,
    predicted_bytes: int,
    measured_bytes: int,
    ran_own_code: bool,
    runtime_bytes: int = 0,
    planned_peak_bytes: int = 0,
    limit_bytes: int | None = None,
) -> str:
    """Return whether a measured peak bears a plan out.

    Refuted: the prediction is off by more than the tolerance, or the plan was said
    to fit and what was measured, with the runtime's share, passes its limit.
    Otherwise confirmed where the stack's own code ran, and consistent where
    another model stood in for it.
    """
    if abs(predicted_bytes - measured_bytes) > TOLERANCE_FRACTION * measured_bytes:
        return REFUTED
    if limit_bytes is not None and planned_peak_bytes <= limit_bytes < measured_bytes + runtime_bytes:
        return REFUTED
    return CONFIRMED if ran_own_code else CONSISTENT
