"""Which stacks are traced, and with which kernels."""

from __future__ import annotations

from plimsoll.planners.stacks.profile import load_profile
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


def _of_another_version(asked: Asked) -> bool:
    version = asked.layout.get("framework_version")
    release = None if version is None else load_profile(asked.job.framework, version=version).release
    return release is not None and not release.is_newest


VERSION_IS_THE_WORKER_S = Rule(
    broken=_of_another_version,
    pointer="/framework_version",
    words=lambda asked: (
        f"The plan is for {asked.layout['framework_version']} of {asked.stack.program or asked.stack.name}; a trace "
        "runs as its newest version does."
    ),
)
# Asked first: what other rules say of a request is true of stacks that are traced.
RULES_OF_FRAMEWORKS = (STACK_IS_TRACED, VERSION_IS_THE_WORKER_S)
RULES = (STACK_HAS_THE_KERNELS,)
