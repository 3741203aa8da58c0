"""Bytes of weights that do not learn: LoRA's base in 16 bits, QLoRA's in four."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planners.architecture import Part, Weight
from plimsoll.planners.families import traits
from plimsoll.planners.families.family import Untraced
from plimsoll.planners.formats import tensor_bytes
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.memory.shards import Way, local, matrix_elements
from plimsoll.planners.quantization.stacks import quantized_stack
from plimsoll.planners.sharding import first_rank
from plimsoll.planners.sharding.weights import LocalWeight

# Dettmers et al. 2023 quote half a byte a base parameter, its scales apart (arXiv:2305.14314).
QUOTED_FOUR_BIT_BYTES = 0.5
# Code beside a checkpoint has experts that are linear layers of their own, as transformers had before 5.
LINEAR_EXPERTS = "bitsandbytes-nf4-linear-experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseWidth:
    """In what width a job's frozen weights lie: all that their bytes depend on beside the weights themselves.

    `is_exact` says that bitsandbytes' own layout is counted and not the textbook's half byte; `stored_bytes` is the
    width of what is not packed in four bits, `unpacking_bytes` what is live of each element as it is unpacked.
    `quantized_as` names the stack that says which weights are packed.
    """

    is_four_bit: bool
    quantized_as: str
    is_exact: bool
    double_quantization: bool
    stored_bytes: int
    compute_bytes: int
    unpacking_bytes: int

    @property
    def packs(self) -> bool:
        """Return whether matrices are packed tensor by tensor, with scales."""
        return self.is_four_bit and self.is_exact

    def quantizes(self, weight: Weight) -> bool:
        """Return whether bitsandbytes quantizes the weight under an adapter."""
        return quantized_stack(self.quantized_as).reason_to_leave(weight) is None

    @property
    def plain_bytes(self) -> float:
        """Return the bytes of one parameter that is not packed so."""
        return QUOTED_FOUR_BIT_BYTES if self.is_four_bit and not self.is_exact else float(self.stored_bytes)

    @property
    def gathered_bytes(self) -> float:
        """Return the bytes of one such parameter as it is gathered: sharding stacks cast what they send."""
        return min(self.plain_bytes, float(self.compute_bytes))


def base_width(job: Job) -> BaseWidth:
    """Return the width of a job's frozen weights."""
    return BaseWidth(
        is_four_bit=job.method == "qlora",
        quantized_as=_quantized_as(job),
        is_exact=job.profile.exact_quantization,
        double_quantization=job.lora.double_quantization,
        stored_bytes=job.frozen_bytes,
        compute_bytes=job.precision.compute_bytes,
        unpacking_bytes=job.profile.kernels.four_bit_unpacking_bytes or job.precision.compute_bytes,
    )


def _quantized_as(job: Job) -> str:
    has_own_code = traits(job.model.model_type).untraced is Untraced.REMOTE_CODE
    return LINEAR_EXPERTS if has_own_code else job.profile.frozen_base.quantized_as


def frozen_bytes(part: BlockWeights, width: BaseWidth, way: Way) -> float:
    """Return what a rank stores of a part's frozen weights, divided over the shard ranks.

    bitsandbytes quantizes the layers' matrices and leaves embedding, head and
    norms in 16 bits; the textbook counts half a byte for every parameter.
    """
    plain, packed = _apart(part, width)
    total = first_rank(plain, way.layout, way.policy).stored * width.plain_bytes
    for weight in packed:
        held, mesh = local(weight, way)
        total += math.ceil(_four_bit_bytes(held, width) / mesh.shard)
    return total


def whole_frozen_bytes(part: BlockWeights, width: BaseWidth, way: Way) -> float:
    """Return the frozen bytes of a gathered part, with the padding of its shards but of what is packed in four bits."""
    plain, packed = _apart(part, width)
    total = first_rank(plain, way.layout, way.policy).gathered * width.gathered_bytes
    return total + sum(_four_bit_bytes(local(weight, way)[0], width) for weight in packed)


def unpacked_bytes(part: BlockWeights, width: BaseWidth, way: Way) -> float:
    """Return what unpacking a part's quantized matrices reads (codes and scales) and writes (16 bits) on a rank."""
    total = 0.0
    for weight in part.frozen:
        if width.quantizes(weight):
            held, _ = local(weight, way)
            packed = _four_bit_bytes(held, width) if width.is_exact else held.stored_elements * QUOTED_FOUR_BIT_BYTES
            total += packed + width.compute_bytes * held.stored_elements
    return total


def _apart(part: BlockWeights, width: BaseWidth) -> tuple[list[Weight], list[Weight]]:
    """Return the frozen weights in one width, and those packed in four bits tensor by tensor."""
    packed = [weight for weight in part.frozen if width.packs and width.quantizes(weight)]
    return [weight for weight in part.frozen if not (width.packs and width.quantizes(weight))], packed


def _four_bit_bytes(held: LocalWeight, width: BaseWidth) -> int:
    one = tensor_bytes("nf4", held.tensor.shape, double_quantization=width.double_quantization)
    return held.tensors * one


def dequantized_matrix_bytes(part: BlockWeights, width: BaseWidth, way: Way) -> int:
    """Return the largest matrix that has to be unpacked, or cast, before it can be multiplied by.

    Autocast keeps the casts of weights that learn alone (torch, aten/autocast_mode.cpp, `cached_cast`).
    """
    plain, packed = _apart(part, width)
    is_cast = width.stored_bytes != width.compute_bytes
    made = [weight for weight in plain if is_cast and weight.is_linear]
    unpacked = width.unpacking_bytes * max((matrix_elements(weight, way) for weight in packed), default=0)
    return max(unpacked, width.compute_bytes * max((matrix_elements(weight, way) for weight in made), default=0))


def frozen_note(job: Job) -> str:
    """Return in what width a job's frozen weights are held, in words."""
    if job.low_precision_weights:
        return f"The frozen base's matrices are held in {job.precision.computed}, the rest of it in 16 bits."
    held = {2: "16 bits", 4: "fp32"}.get(job.frozen_bytes, f"{8 * job.frozen_bytes} bits")
    what = "The part of the frozen base that is not packed in four bits" if job.method == "qlora" else "The frozen base"
    if job.lora.base_dtype is not None:
        return f"{what} is held in {job.lora.base_dtype}, as asked."
    reason = job.profile.frozen_base.reason if job.precision.is_mixed else f"precision {job.precision.name} means"
    return f"{what} is held in {held}, as {reason}; set training.lora.base_dtype if yours differs."


def stacked_experts_note(job: Job) -> str | None:
    """Return what is said of experts that are one parameter a layer, None where there are none or nothing is to say.

    Source: transformers 5.23, integrations/bitsandbytes.py, `replace_with_bnb_linear`; peft 0.21,
    tuners/lora/layer.py, `ParamWrapper`, and utils/transformers_weight_conversion.py, `_convert_peft_config_moe`.
    """
    width = base_width(job)
    experts = [weight for part in job.layers for weight in part.frozen if weight.part is Part.EXPERT]
    if not width.is_exact or all(width.quantizes(weight) for weight in experts if weight.is_linear):
        return None
    said = []
    if width.is_four_bit:
        said.append(
            "Experts stay in 16 bits: transformers 5 holds those of a layer as one parameter, and bitsandbytes packs "
            "the matrices of linear layers alone."
        )
    if any(weight.part is Part.EXPERT for part in job.layers for weight in part.trainable):
        said.append(
            "Adapters of experts are counted as of linear layers: peft reaches stacked experts by target_parameters "
            "alone, and what it adds up anew of a layer's experts then is not counted. Name attention's matrices in "
            "training.lora.target_modules to leave experts without adapters."
        )
    return " ".join(said) or None
