"""What is said of stacks on cards that nobody timed: whose runs stand in for theirs, and how far those carry."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.timing.efficiency import UNTIMED_GPU, Efficiency


def untimed_notes(hardware: Hardware, efficiency: Efficiency, *, experts: bool) -> Iterator[str]:
    """Yield what of a stack on a card was not timed; nothing where both were, or where the site measured its own."""
    stack, common = efficiency.stack, efficiency.common
    if efficiency.timed_runs == UNTIMED_GPU:
        low, high = (
            (common.untimed_gpu_expert_low, common.untimed_gpu_expert_high)
            if experts
            else (common.untimed_gpu_low, common.untimed_gpu_high)
        )
        yield (
            f"No timed run on {hardware.gpu.name} was fitted. Eight A100, H100 and Blackwell cards were each left out "
            f"of the fits in turn: nine in ten of their runs took {low:.2f} to {high:.2f} times the estimate, and the "
            "band is at least that wide here. Calibrate with runs of your own, or measure before you buy."
        )
    elif efficiency.timed_runs == "other_stacks_on_gpu" and stack.measured_on:
        yield (
            f"No timed run of {stack.name} on {hardware.gpu.name} was fitted: its runs are of "
            f"{listed(stack.measured_on)}, and what the card reaches is that of other stacks' runs."
        )
