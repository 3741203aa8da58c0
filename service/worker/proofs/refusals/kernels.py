"""Which jobs Liger's kernels and products in fp8 can be put into, and of those which are traced.

Source: linkedin/Liger-Kernel 0.8.5, `transformers/monkey_patch.py`, `ops/`.
"""

from __future__ import annotations

from plimsoll.planners.families import model_types_with
from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.jobs.stack import SelectiveRecompute
from plimsoll.service.worker.stacks.found import traced_stacks


def liger_model_types() -> tuple[str, ...]:
    """Return the families that both Liger has a patch for and the trace has a model of."""
    return model_types_with(lambda family: family.tracing is not None and family.tracing.liger is not None)


FUSED_LOSS_SEES_THE_VOCABULARY = Rule(
    broken=lambda asked: asked.job.fused_cross_entropy and asked.job.tensor_parallel > 1,
    pointer="/layout/fused_cross_entropy",
    words=(
        "Liger's fused cross-entropy multiplies by the whole head and takes the softmax within one rank: a "
        "vocabulary split over tensor-parallel ranks has none."
    ),
)


def _scales_its_logits(asked: Asked) -> bool:
    liger = asked.job.tracing.liger
    return asked.job.fused_cross_entropy and liger is not None and not liger.has_fused_loss


FUSED_LOSS_KNOWS_THE_FAMILY = Rule(
    broken=_scales_its_logits,
    pointer="/layout/fused_cross_entropy",
    words=lambda asked: (
        f"Liger has no fused cross-entropy for {asked.job.config['model_type']!r}, which scales its logits."
    ),
)
LIGER_KNOWS_THE_FAMILY = Rule(
    broken=lambda asked: asked.stack.has_liger_kernels and asked.job.tracing.liger is None,
    pointer="/training/kernels",
    words=lambda asked: (
        f"Liger's kernels are traced in {', '.join(liger_model_types())}, not in {asked.job.config['model_type']!r}."
    ),
)


def _divides_liger(asked: Asked) -> bool:
    job = asked.job
    is_divided = job.tensor_parallel > 1 or job.context_parallel > 1 or job.pipeline_parallel > 1
    return asked.stack.has_liger_kernels and is_divided


LIGER_RUNS_OVER_DATA_PARALLEL_RANKS = Rule(
    broken=_divides_liger,
    pointer="/training/kernels",
    words=(
        "Liger's kernels are traced over data-parallel ranks alone: its norm gathers a sequence that is split "
        "over ranks (ops/rms_norm.py, full_tensor)."
    ),
)


def _rotates_twice(asked: Asked) -> bool:
    keeps_products = asked.job.recompute == "selective" and asked.stack.selective is SelectiveRecompute.OPERATIONS
    return asked.stack.has_liger_kernels and keeps_products


LIGER_ROTATES_ONCE = Rule(
    broken=_rotates_twice,
    pointer="/layout/recompute",
    words=(
        "Selective recomputation keeps the queries' product, which Liger's rotation writes over: computed again, "
        "it would be rotated twice."
    ),
)


def _no_products(asked: Asked) -> str:
    (stack,) = traced_stacks(lambda stack: stack.casts_products)
    return f"{asked.job.framework} is not traced in fp8: only {stack.program}'s products, which are torchao's, are yet."


STACK_CASTS_PRODUCTS = Rule(
    broken=lambda asked: asked.job.precision == FP8_MIXED and not asked.stack.casts_products,
    pointer="/training/precision",
    words=_no_products,
)
RULES = (
    FUSED_LOSS_SEES_THE_VOCABULARY,
    FUSED_LOSS_KNOWS_THE_FAMILY,
    LIGER_KNOWS_THE_FAMILY,
    LIGER_RUNS_OVER_DATA_PARALLEL_RANKS,
    LIGER_ROTATES_ONCE,
    STACK_CASTS_PRODUCTS,
)
