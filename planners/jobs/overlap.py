"""Which traffic computation hides in a job: what its client asks for, and else what the stack does.

What a stack can be told to do stands in the table `overlap` of its `stack.toml`. Whether the exchange with experts is
hidden may differ from layout to layout, and the search chooses it; the rest is the same for all of a job's layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.questions import Overlap
from plimsoll.planners.stacks.records import Overlaps

# What is told of each kind of traffic, by the field that asks for it.
HIDDEN_TRAFFIC = {
    "gradients": "the reduction of gradients",
    "parameters": "the gathering of updated parameters",
    "tensor_parallel": "tensor-parallel traffic",
    "expert_parallel": "the exchange with experts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOverlap:
    """Which traffic hides behind computation.

    `expert_parallel` has the choices of the search. `tensor_parallel` says whether the stack's option for it is on;
    `hides_tensor_parallel` is true of a stack too that hides such traffic without one.
    """

    gradients: bool
    parameters: bool
    tensor_parallel: bool
    hides_tensor_parallel: bool
    expert_parallel: tuple[bool, ...]


def job_overlap(asked: Overlap | None, stack: Overlaps) -> JobOverlap:
    """Return what a job has that asks a stack for this; where it asks nothing, the stack's own choice stands first."""
    asked = asked or Overlap()

    def chosen(wanted: bool | None, choices: tuple[bool, ...]) -> bool:
        return choices[0] if wanted is None else wanted

    gradients = chosen(asked.gradients, stack.gradients)
    tensor_parallel = chosen(asked.tensor_parallel, stack.tensor_parallel)
    follows = stack.parameters_with_gradients and asked.parameters is None
    return JobOverlap(
        gradients=gradients,
        parameters=chosen(asked.parameters, stack.parameters) and (gradients or not follows),
        tensor_parallel=tensor_parallel,
        hides_tensor_parallel=tensor_parallel or stack.tensor_parallel_by_itself,
        expert_parallel=stack.expert_parallel if asked.expert_parallel is None else (asked.expert_parallel,),
    )
