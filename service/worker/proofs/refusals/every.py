"""All rules in the order in which they are asked, and the one place where a job is read and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.reading import read_job
from plimsoll.service.worker.jobs.rule import DEVICE, Asked, Rule, Subject, first_broken
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.proofs.refusals import (
    adapters,
    companions,
    devices,
    evaluations,
    families,
    kernels,
    ranks,
    requests,
    sharding,
    stacks,
)
from plimsoll.service.worker.stacks.found import find_stack

RULES: Mapping[Subject, tuple[Rule, ...]] = {
    Subject.FRAMEWORK: stacks.RULES_OF_FRAMEWORKS,
    Subject.REQUEST: requests.RULES,
    Subject.STACK: stacks.RULES,
    Subject.SHARDING: sharding.RULES,
    Subject.MATRICES: families.RULES_OF_MATRICES,
    Subject.OFFLOAD: sharding.RULES_OF_OFFLOAD,
    Subject.ADAPTERS: adapters.RULES,
    Subject.EXPERTS: ranks.RULES_OF_EXPERTS,
    Subject.KERNELS: kernels.RULES,
    Subject.FAMILY: families.RULES,
    Subject.CONTEXT: ranks.RULES_OF_CONTEXT,
    Subject.COMPANIONS: companions.RULES,
    Subject.EVALUATIONS: evaluations.RULES,
    Subject.DEVICE: devices.RULES,
}


def rules_of(stack: Stack, *, on_device: bool) -> Iterator[Rule]:
    """Yield the rules that a stack's jobs are held to, in order: of each subject every stack's and then its own."""
    for subject in Subject:
        if on_device or subject is not Subject.DEVICE:
            yield from RULES[subject]
            yield from stack.rules.get(subject, ())


def refuse(asked: Asked, *, on_device: bool) -> None:
    """Raise `NotYetAvailable`, naming the reason, for a job that cannot be proved, on a device or in a trace."""
    broken = first_broken(rules_of(asked.stack, on_device=on_device), asked)
    if broken is not None:
        raise broken.refusal(asked)


def proved_job(request: Mapping[str, Any]) -> tuple[TraceJob, Stack]:
    """Return the training job of a validation request, and its stack.

    Raises `NotYetAvailable`, naming it, for whatever cannot be proved at the request's level, and `InvalidQuestion`
    for a request that lacks its parts.
    """
    job = read_job(request)
    stack = find_stack(job.framework, job.kernels)
    asked = Asked(job=job, stack=stack, training=request["request"]["training"], layout=request["plan"]["layout"])
    refuse(asked, on_device=request["level"] == DEVICE)
    return job, stack
