"""What an answer says of alternatives that the evidence does not tell from the plan in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from plimsoll.planners.ground.figures import counted
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.plans import Alternative, TrainingPlan
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.ranking import NEAR_EQUAL_FRACTION
from plimsoll.planners.timing.ties import tie_fraction


def tie_notes(question: TrainingQuestion, plan: TrainingPlan, alternatives: Sequence[Alternative]) -> Iterator[str]:
    """Yield how many alternatives are equal within the band, by stack, and what the roomiest of them has to spare."""
    tied = {number: each for number, each in enumerate(alternatives, 1) if each.equal_within_band}
    if not tied:
        return
    frameworks = [each.layout.framework for each in tied.values()]
    own, experts = plan.layout.framework, bool(question.model.experts_per_token)
    for name in sorted(set(frameworks), key=lambda name: (name != own, name)):
        fraction = tie_fraction(own, name, question.hardware, experts=experts)
        number = counted(frameworks.count(name), "alternative")
        if name == own:
            yield (
                f"{number} and the plan are equal within the band, with steps within {fraction:.0%} of each other: of "
                "measured layouts of a job that are further apart nine pairs in ten go as estimated."
            )
        else:
            yield (
                f"{number} on {name} and the plan are equal within the band, which between these two stacks is "
                f"{fraction:.0%}."
            )
    yield f"The choice goes by the estimate, and within {NEAR_EQUAL_FRACTION:.0%} of the fastest by simplicity."
    yield from _roomiest(plan, {number: each for number, each in tied.items() if each.layout.framework == own})


def _roomiest(plan: TrainingPlan, tied: Mapping[int, Alternative]) -> Iterator[str]:
    """Yield what the one of the plan's own stack has to spare that has the most, and for how much more time."""
    if not tied:
        return
    number, roomy = max(tied.items(), key=lambda one: (one[1].margin_bytes, -one[0]))
    spared, slower = roomy.margin_bytes - plan.memory.margin_bytes, roomy.step_seconds / plan.step.seconds - 1
    if spared > 0 and slower > 0:
        yield (
            f"Of those on {plan.layout.framework}, alternative {number} has the most memory to spare: "
            f"{spared / GIB:,.1f} GiB more per GPU than the plan, for {slower:.1%} more time by the estimate."
        )
