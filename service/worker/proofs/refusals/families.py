"""What is traced of some families and not of others: how their matrices are split, what else divides them."""

from __future__ import annotations

from itertools import chain

from plimsoll.planners.architecture import Part
from plimsoll.planners.families import describe_config, traits
from plimsoll.planners.families.family import LLAMA_PARTS
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.service.worker.jobs.job import MIXED_PRECISIONS
from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.jobs.stack import Replication
from plimsoll.service.worker.jobs.states import is_fully_sharded
from plimsoll.service.worker.stacks.found import traced_stacks

# torch, aten/src/ATen/native/GroupedMMUtils.h, `_grouped_mm_validate_inputs`: strides are multiples of 16 bytes.
ROW_BYTES = 16
SIXTEEN_BIT_BYTES = 2


def _model_type(asked: Asked) -> str:
    model_type: str = asked.job.config["model_type"]
    return model_type


def _has_latents(asked: Asked) -> bool:
    """Return whether keys and values are latents of transformers' model, which a stack's own divides by itself."""
    return asked.job.tracing.has_latent_attention and not asked.stack.runs_own_model(asked.job)


def _fused_latents(asked: Asked) -> str:
    if not asked.stack.own_model:
        return f"{_model_type(asked)!r} is traced without fused kernels only."
    return (
        f"{_model_type(asked)!r} is traced by {asked.stack.program}'s own code, in bf16-mixed or fp16-mixed, with "
        "flash attention over whole sequences, AdamW or Muon."
    )


LATENTS_ARE_NOT_FUSED = Rule(
    broken=lambda asked: _has_latents(asked) and asked.stack.has_fused_kernels,
    pointer="/layout/framework",
    words=_fused_latents,
)


def _splits_latents_otherwise(asked: Asked) -> bool:
    job = asked.job
    is_known = asked.stack.splits_latents and job.sequence_parallel and job.context_parallel == 1
    return _has_latents(asked) and job.tensor_parallel > 1 and not is_known


def _latents(_asked: Asked) -> str:
    (stack,) = traced_stacks(lambda stack: stack.splits_latents)
    return (
        f"Latent attention over tensor-parallel ranks is traced as {stack.program} does it: {stack.name}, a split "
        "sequence."
    )


LATENTS_ARE_SPLIT_BY_HEAD = Rule(broken=_splits_latents_otherwise, pointer="/layout/tensor_parallel", words=_latents)
LATENTS_ARE_NOT_SPLIT_BESIDE_EXPERTS = Rule(
    broken=lambda asked: _has_latents(asked) and asked.job.tensor_parallel > 1 and asked.job.expert_parallel > 1,
    pointer="/layout/expert_parallel",
    words="Experts over other ranks are not traced beside tensor parallelism yet.",
)


def _has_unknown_matrices(asked: Asked) -> bool:
    family, stack = asked.job.tracing, asked.stack
    is_known = (
        family.has_llama_matrices or (stack.groups_experts and family.groups_experts) or stack.runs_own_model(asked.job)
    )
    is_asked = asked.job.tensor_parallel > 1 or stack.has_fused_kernels
    return not family.has_latent_attention and not is_known and is_asked


MATRICES_ARE_KNOWN = Rule(
    broken=_has_unknown_matrices,
    pointer=lambda asked: "/layout/tensor_parallel" if asked.job.tensor_parallel > 1 else "/layout/framework",
    words=lambda asked: f"{_model_type(asked)!r} is traced without tensor parallelism and fused kernels only.",
)
RULES_OF_MATRICES = (
    LATENTS_ARE_NOT_FUSED,
    LATENTS_ARE_SPLIT_BY_HEAD,
    LATENTS_ARE_NOT_SPLIT_BESIDE_EXPERTS,
    MATRICES_ARE_KNOWN,
)


def _divides_other_parts(asked: Asked) -> bool:
    is_divided = asked.job.pipeline_parallel > 1 or asked.job.context_parallel > 1
    return traits(_model_type(asked)).parts != LLAMA_PARTS and is_divided


OTHER_PARTS_ARE_WHOLE = Rule(
    broken=_divides_other_parts,
    pointer=lambda asked: (
        "/layout/pipeline_parallel" if asked.job.pipeline_parallel > 1 else "/layout/context_parallel"
    ),
    words=lambda asked: f"{_model_type(asked)!r} is traced without pipelines and with whole sequences only.",
)
TRANSPOSED_MATRICES_HAVE_16_BITS = Rule(
    broken=lambda asked: asked.job.tracing.has_transposed_matrices and asked.job.method == "qlora",
    pointer="/training/method",
    words=lambda asked: (
        f"The matrices of {_model_type(asked)!r}, whose first dimension is the input's, are not traced in four bits "
        "yet."
    ),
)


def _casts_experts(asked: Asked) -> bool:
    is_autocast = asked.stack.replication is Replication.AUTOCAST and asked.job.precision in MIXED_PRECISIONS
    return asked.job.has_experts and not is_fully_sharded(asked.job, asked.stack) and is_autocast


EXPERTS_ARE_NOT_CAST = Rule(
    broken=_casts_experts,
    pointer="/layout/zero_stage",
    words="Experts held in fp32 are not traced: torch's grouped product is not cast by autocast.",
)


def _unaligned_width(asked: Asked) -> int | None:
    """Return a width of the experts that a rank has whose rows do not all start on 16 bytes; None if there is none."""
    job = asked.job
    if not job.has_experts or asked.stack.groups_experts:
        return None
    number_bytes = FP32_BYTES if job.precision in ("fp32", "tf32") else SIXTEEN_BIT_BYTES
    model = describe_config(job.config, name=job.model_name)
    widths = (
        width
        for weight in chain.from_iterable(block.weights for block in model.layers)
        if weight.part is Part.EXPERT
        for width in weight.local_shape(job.expert_tensor_parallel)[weight.is_fused :]
    )
    return next((width for width in widths if width * number_bytes % ROW_BYTES), None)


EXPERTS_START_ON_16_BYTES = Rule(
    broken=lambda asked: _unaligned_width(asked) is not None,
    pointer=lambda asked: "/layout/tensor_parallel" if asked.job.tensor_parallel > 1 else "/model/config",
    words=lambda asked: (
        f"torch's grouped product takes rows that start on {ROW_BYTES} bytes: experts {_unaligned_width(asked)} wide "
        f"on a rank are not traced in {asked.job.precision}."
    ),
)
RULES = (
    OTHER_PARTS_ARE_WHOLE,
    TRANSPOSED_MATRICES_HAVE_16_BITS,
    EXPERTS_ARE_NOT_CAST,
    EXPERTS_START_ON_16_BYTES,
)
