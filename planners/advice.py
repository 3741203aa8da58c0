"""What would make a job fit: changes in the order practitioners try them, each planned before it is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from planners.errors import PlanningStopped, PlimsollError
from planners.hardware import GpuCount
from planners.plans import Advice, TrainingAnswer
from planners.questions import LayoutRequest, Recompute, TrainingQuestion

# More than eight times the GPUs is another project, not advice; small jobs may look as far as eight nodes.
MOST_TIMES_THE_GPUS = 8
LEAST_REACH_GPUS = 64
# Nobody is advised to find more GPUs than the largest training clusters have (xAI's Colossus: 100,000 to 200,000).
MOST_ADVISED_GPUS = 131_072
SHORTEST_SEQUENCE = 512

Change = tuple[Mapping[str, Any], TrainingQuestion, str]


def advice_for(question: TrainingQuestion, plan: Callable[[TrainingQuestion], TrainingAnswer]) -> tuple[Advice, ...]:
    """Return the single changes after which the job fits, in practitioners' order.

    `plan` plans without advice, and may raise `PlanningStopped`. A change that still does not fit, or that the
    framework cannot do, is left out.
    """
    offered: list[Advice] = []
    has_shorter_sequence = False
    for change, changed, reason in _changes(question):
        is_sequence = "training.sequence_length" in change
        if is_sequence and has_shorter_sequence:
            continue
        try:
            answer = plan(changed)
        except PlanningStopped:
            raise
        except PlimsollError:
            # The change cannot be planned at all, so it is no advice.
            continue
        if answer.fits:
            has_shorter_sequence |= is_sequence
            offered.append(_offer(change, answer, reason))
    return tuple(offered)


def _offer(change: Mapping[str, Any], answer: TrainingAnswer, reason: str) -> Advice:
    shown = dict(change)
    if "hardware.gpus" in shown:
        shown["hardware.gpus"] = answer.plan.layout.gpus
    return Advice(
        change=shown,
        peak_bytes=answer.plan.memory.peak_bytes,
        step_seconds=answer.plan.step.seconds,
        fits=answer.fits,
        reason=reason,
    )


def _changes(question: TrainingQuestion) -> Iterator[Change]:
    yield from _training_changes(question)
    yield from _layout_changes(question)
    yield from _job_changes(question)


def _training_changes(question: TrainingQuestion) -> Iterator[Change]:
    """Yield changes that leave the job's result as it is."""
    if question.fused_cross_entropy is False:
        yield (
            {"training.fused_cross_entropy": True},
            replace(question, fused_cross_entropy=True),
            "A fused loss never holds the full logits.",
        )
    if question.precision in ("fp32", "tf32"):
        yield (
            {"training.precision": "bf16-mixed"},
            replace(question, precision="bf16-mixed"),
            "Activations in bf16 take half the bytes.",
        )
    if question.attention == "eager":
        yield (
            {"training.attention": "flash"},
            replace(question, attention="flash"),
            "Flash attention never holds the score matrix.",
        )
    if (question.micro_batch_size or 1) > 1:
        yield (
            {"training.micro_batch_size": 1},
            replace(question, micro_batch_size=1),
            "Smaller micro-batches with more accumulation give the same step.",
        )
    if question.recompute is not None and question.recompute != Recompute(mode="full"):
        yield (
            {"training.recompute": "full"},
            replace(question, recompute=Recompute(mode="full")),
            "Full recompute keeps only each layer's input, for about a third more computation.",
        )


def _layout_changes(question: TrainingQuestion) -> Iterator[Change]:
    """Yield changes of how the work is divided."""
    request = question.layout
    for stage in range((request.zero_stage if request.zero_stage is not None else 3) + 1, 4):
        changed = replace(request, zero_stage=stage)
        yield (
            {"layout.zero_stage": stage},
            replace(question, layout=changed),
            f"ZeRO stage {stage} divides more of the states.",
        )
    if request.offload == "none":
        yield (
            {"layout.offload": "optimizer"},
            replace(question, layout=replace(request, offload="optimizer")),
            "Optimizer states move to the host.",
        )
    if request != LayoutRequest():
        yield (
            {"layout": {}},
            replace(question, layout=LayoutRequest()),
            "With no degree fixed the search finds a layout that fits.",
        )
    if question.framework != "any":
        yield ({"framework": "any"}, replace(question, framework="any"), "Another framework can divide this job.")
    if not question.hardware.gpus.is_free and question.hardware.gpus.maximum < MOST_ADVISED_GPUS:
        smallest = question.hardware.gpus.minimum
        reach = min(max(MOST_TIMES_THE_GPUS * question.hardware.gpus.maximum, LEAST_REACH_GPUS), MOST_ADVISED_GPUS)
        count = GpuCount(minimum=smallest, maximum=reach, is_free=True)
        free = replace(request, data_parallel=None, shard_group=None)
        yield (
            {"hardware.gpus": None},
            replace(question, hardware=replace(question.hardware, gpus=count), layout=free),
            "The fewest GPUs of this kind on which the job fits.",
        )


def _job_changes(question: TrainingQuestion) -> Iterator[Change]:
    """Yield changes of the job itself."""
    length = question.sequence_length // 2
    while length >= SHORTEST_SEQUENCE:
        yield (
            {"training.sequence_length": length},
            replace(question, sequence_length=length),
            "A shorter sequence keeps fewer activations.",
        )
        length //= 2
    methods = {"full": ("lora", "qlora"), "lora": ("qlora",)}.get(question.method, ())
    for method in methods:
        framework = question.framework if question.framework in ("any", "reference") else "any"
        changed = replace(question, method=method, framework=framework, layout=LayoutRequest())
        yield ({"training.method": method}, changed, "Adapters need no optimizer states for the base model.")
