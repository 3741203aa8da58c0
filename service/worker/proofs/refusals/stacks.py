"""Which stacks are traced, and with which kernels."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.stacks.found import traced_stacks


def _untraced(asked: Asked) -> str:
    reason = f": {asked.stack.untraced}" if asked.stack.untraced else ""
    traced = ", ".join(stack.name for stack in traced_stacks())
    return f"Framework {asked.stack.name!r} is not traced yet{reason}; traced are {traced}."


STACK_IS_TRACED = Rule(
    broken=lambda asked: asked.stack.untraced is not None, pointer="/layout/framework", words=_untraced
)


def _runs_other_kernels(asked: Asked) -> bool:
    kernels, stack = asked.job.kernels, asked.stack
    return kernels is not None and not stack.has_liger_kernels and (kernels == "fused") is not stack.has_fused_kernels


def _other_kernels(asked: Asked) -> str:
    known = "fused" if asked.stack.has_fused_kernels else "eager"
    return f"{asked.stack.name} is traced with {known} kernels, not {asked.job.kernels} ones yet."


STACK_HAS_THE_KERNELS = Rule(broken=_runs_other_kernels, pointer="/training/kernels", words=_other_kernels)
# Asked first: what other rules say of a request is true of stacks that are traced.
RULES_OF_FRAMEWORKS = (STACK_IS_TRACED,)
RULES = (STACK_HAS_THE_KERNELS,)
