"""The planner of this tree against stored traces, line by line; nothing here loads torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.random_plans.draw import DrawnPlan
from benchmarks.random_plans.planning import Asked, allocated_bytes, planned_memory, read_request
from plimsoll.planners.families import traits
from plimsoll.planners.plans import Memory
from plimsoll.planners.stacks.profile import load_profile

# A plan that is so much below its trace counts as below it: less are sums that nobody plans, of small tensors.
BELOW_FRACTION = 0.003
FAR_ABOVE_FRACTION = 0.03
SHORT_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One traced stage beside its plan; `classes` are what the plan is counted under.

    Of the textbook's sums no program runs, so that their traces are another stack's. What is planned of the host counts
    loading and checkpoints in, so that it may be far above a step's.
    """

    name: str
    is_textbook: bool
    classes: tuple[str, ...]
    planned_bytes: int
    traced_bytes: int
    planned_phase: str
    traced_phase: str
    apart: Mapping[str, int]
    planned_host_bytes: int
    traced_host_bytes: int

    @property
    def distance(self) -> float:
        """Return the plan over the trace, less one: below zero where the plan says too little."""
        return self.planned_bytes / self.traced_bytes - 1

    @property
    def is_below(self) -> bool:
        """Return whether the plan says less than was traced."""
        return self.distance < -BELOW_FRACTION

    @property
    def is_below_on_host(self) -> bool:
        """Return whether the plan says less of the host than was traced."""
        return self.planned_host_bytes < self.traced_host_bytes * (1 - BELOW_FRACTION)

    @property
    def is_far_above(self) -> bool:
        """Return whether the plan says much more than was traced."""
        return self.distance > FAR_ABOVE_FRACTION


def compared(plans: Iterable[DrawnPlan], lines: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield a row for every traced stage; a plan whose trace failed has none."""
    by_number = {plan.number: plan for plan in plans}
    for line in lines:
        if "failed" in line:
            continue
        plan = by_number[line["number"]]
        asked = read_request(plan.request)
        memory = planned_memory(asked, plan.layout)
        for stage in line["stages"]:
            yield _row(plan, asked, memory, stage)


def _row(plan: DrawnPlan, asked: Asked, memory: Memory, traced: Mapping[str, Any]) -> Row:
    planned = memory.stages[traced["stage"]]
    items = planned.items
    return Row(
        name=f"{plan.number:03}.{planned.stage} {name_of(plan)}",
        is_textbook=load_profile(plan.layout.framework).is_textbook,
        classes=tuple(classes_of(plan, asked)),
        planned_bytes=allocated_bytes(planned),
        traced_bytes=traced["peak_bytes"],
        planned_phase=planned.phase,
        traced_phase=traced["peak_phase"],
        apart={name: getattr(items, name) - held for name, held in traced["items"].items() if hasattr(items, name)},
        planned_host_bytes=memory.host_bytes,
        traced_host_bytes=traced.get("host_bytes", 0),
    )


def name_of(plan: DrawnPlan) -> str:
    """Return what a plan is, in few words."""
    layout, training = plan.layout, plan.request["training"]
    config = plan.request["model"]["config"]
    degrees = (
        ("dp", layout.data_parallel), ("group", layout.shard_group), ("tp", layout.tensor_parallel),
        ("pp", layout.pipeline_parallel), ("vp", layout.virtual_pipeline), ("cp", layout.context_parallel),
        ("ep", layout.expert_parallel), ("acc", layout.gradient_accumulation_steps),
    )  # fmt: skip
    plain = {"group": layout.data_parallel}
    words = [config["model_type"], layout.framework, f"zero{layout.zero_stage}"]
    words += [f"{name}{degree}" for name, degree in degrees if degree != plain.get(name, 1)]
    words.append(f"{layout.micro_batch_size}x{training['sequence_length']}")
    words.append(
        layout.recompute if layout.recompute_layers is None else f"{layout.recompute}:{layout.recompute_layers}"
    )
    usual = {"method": "full", "precision": "bf16-mixed", "optimizer": "adamw", "attention": "flash", "kernels": None}
    words += [str(training[name]) for name, value in usual.items() if training.get(name, value) != value]
    words += [word for word, is_so in _switches(plan) if is_so]
    return " ".join(words)


def _switches(plan: DrawnPlan) -> tuple[tuple[str, bool], ...]:
    layout = plan.layout
    return (
        ("sp", layout.sequence_parallel),
        ("fused-loss", layout.fused_cross_entropy),
        ("acts-on-host", layout.activation_offload),
        ("states-on-host", layout.offload != "none"),
        ("gpipe", layout.pipeline_schedule == "gpipe"),
        ("tied", bool(plan.request["model"]["config"].get("tie_word_embeddings"))),
    )


CLASSES: tuple[tuple[str, Callable[[DrawnPlan], bool]], ...] = (
    ("tensor parallel", lambda plan: plan.layout.tensor_parallel > 1),
    ("pipeline", lambda plan: plan.layout.pipeline_parallel > 1),
    ("interleaved", lambda plan: plan.layout.virtual_pipeline > 1),
    ("context parallel", lambda plan: plan.layout.context_parallel > 1),
    ("expert parallel", lambda plan: plan.layout.expert_parallel > 1),
    ("shard group", lambda plan: plan.layout.shard_group != plan.layout.data_parallel),
    ("accumulation", lambda plan: plan.layout.gradient_accumulation_steps > 1),
    ("one rank", lambda plan: plan.layout.gpus == 1),
    ("short", lambda plan: plan.layout.micro_batch_size * plan.request["training"]["sequence_length"] < SHORT_TOKENS),
    ("mixture", lambda plan: traits(plan.request["model"]["config"]["model_type"]).has_experts),
    ("eager attention", lambda plan: plan.request["training"]["attention"] == "eager"),
    ("other optimizer", lambda plan: plan.request["training"]["optimizer"] != "adamw"),
)


def classes_of(plan: DrawnPlan, asked: Asked) -> Iterator[str]:
    """Yield everything that a plan is counted under, the stack and the method first."""
    layout, question = plan.layout, asked.question
    yield from (f"stack {layout.framework}", f"method {question.method}", f"zero {layout.zero_stage}")
    parts = "" if layout.recompute_layers is None else " of some layers"
    modules = " of modules" if question.recompute is not None and question.recompute.modules else ""
    yield from (f"recompute {layout.recompute}{parts}{modules}", f"precision {question.precision}")
    yield f"kernels {question.kernels or 'as the stack has them'}"
    yield from (name for name, holds in CLASSES if holds(plan))
    yield from (word for word, is_so in _switches(plan) if is_so)
