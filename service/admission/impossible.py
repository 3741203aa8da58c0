"""What cannot run, told apart from what is not read or not planned here: the one place that decides.

A planner's error names the rules that every run as asked would break. Only what the program itself checks, and refuses
to start over, is refused here; another rule may be the planner's own, so that the workload stays unjudged.
"""

from __future__ import annotations

from plimsoll.planners.ground.errors import ImpossibleLayout, PlimsollError
from plimsoll.service.engines.engine import engines
from plimsoll.service.workloads.commands.launches import Launch

# The annotation's own arithmetic, which no program can mend.
CHECKED_OF_PLANS = frozenset({"degrees_multiply_to_gpus", "degrees_are_positive", "gpus-product", "batch_divides"})
# What this service does not plan, whether or not it can run.
UNPLANNED = frozenset({"framework", "engine-has-degree"})


def is_impossible(error: PlimsollError, launch: Launch) -> bool:
    """Return whether the program of a command would refuse what a planner's error says of it."""
    if launch.engine is None:
        return False
    checked = engines()[launch.engine].checked_rules - launch.unchecked
    return not checked.isdisjoint(error.rules)


def is_impossible_plan(error: PlimsollError) -> bool:
    """Return whether the planning request of an annotation contradicts itself."""
    return not CHECKED_OF_PLANS.isdisjoint(error.rules)


def is_doubtful(error: PlimsollError) -> bool:
    """Return whether no plan of what was asked exists, by rules that its program is not known to check."""
    return isinstance(error, ImpossibleLayout) and UNPLANNED.isdisjoint(error.rules)
