"""Which weights each quantizing stack leaves alone, and how it stores the others: the one table of both.

Every stack leaves embeddings, the output head, norms, routers and whatever is no
matrix of a linear layer as they are; nearly all leave vision towers, and some more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plimsoll.planners.architecture import ModelSpec, Part, Split, Weight
from plimsoll.planners.formats import StorageScheme, storage_scheme, stored_bytes
from plimsoll.planners.formats.storage import ScaledOver
from plimsoll.planners.ground.errors import UnknownName

BY_EVERY_STACK: Mapping[Part, str] = MappingProxyType(
    {
        Part.EMBEDDING: "embedding",
        Part.HEAD: "output head",
        Part.NORM: "norm",
        Part.ROUTER: "expert router",
    }
)
# Recipes for checkpoints name the tower among what they ignore; transformers with bitsandbytes knows no such list.
_VISION = MappingProxyType({Part.VISION: "vision tower"})
_FUSED = MappingProxyType(
    {Part.EXPERT: "experts are one fused parameter, which transformers with bitsandbytes leaves alone"}
)
_ALL_BUT_EXPERTS = MappingProxyType(
    {
        **{part: "only experts are quantized" for part in Part if part not in (*BY_EVERY_STACK, Part.EXPERT)},
        **_VISION,
    }
)
# Named in PreTrainedModel._keep_in_fp32_modules: T5's second matrices, the indexers' weights of DeepSeek-V3.2, GLM-5.
_KEPT_IN_FULL_BY_TRANSFORMERS = MappingProxyType(
    {
        ".DenseReluDense.wo.": "transformers keeps it in full precision",
        ".indexer.weights_proj.": "transformers keeps it in full precision",
    }
)


def _int4_groups(
    name: str,
    *,
    inputs_per_group: int = 128,
    zero_point_bits: int = 0,
    tensor_scale_bytes: int = 0,
    input_bytes: int = 0,
    output_bytes: int = 0,
) -> StorageScheme:
    """Return 4-bit integers with a 16-bit scale for each group of inputs, and what else a stack keeps."""
    return StorageScheme(
        name=name,
        format="int4",
        scaled_over=ScaledOver.GROUP,
        scale_bits=16,
        block_size=inputs_per_group,
        zero_point_bits=zero_point_bits,
        tensor_scale_bytes=tensor_scale_bytes,
        input_bytes=input_bytes,
        output_bytes=output_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedStack:
    """A stack's quantized checkpoint (or weights in memory): what is left alone, and how the rest is stored.

    `leaves_alone` gives, for parts beyond `BY_EVERY_STACK`, the reason, and
    `leaves_named` the same for weights whose name holds a text. Experts may be
    stored otherwise than the rest: `expert_storage`.
    """

    name: str
    storage: StorageScheme
    source: str
    expert_storage: StorageScheme | None = None
    leaves_alone: Mapping[Part, str] = field(default_factory=lambda: _VISION)
    leaves_named: Mapping[str, str] = field(default_factory=dict)
    double_quantization: bool = False

    def reason_to_leave(self, weight: Weight) -> str | None:
        """Return why the stack leaves a weight in its own dtype, or None where it is quantized."""
        reason = BY_EVERY_STACK.get(weight.part) or self.leaves_alone.get(weight.part)
        if reason is not None:
            return reason
        if not weight.is_linear:
            return "bias" if weight.name.endswith("bias") else "not the matrix of a linear layer"
        return next((reason for text, reason in self.leaves_named.items() if text in weight.name), None)

    def storage_of(self, part: Part) -> StorageScheme:
        """Return how a quantized matrix of a part of the model is stored."""
        return self.expert_storage if part is Part.EXPERT and self.expert_storage is not None else self.storage

    def matrix_bytes(self, shape: tuple[int, ...], part: Part = Part.FEED_FORWARD) -> int:
        """Return the exact bytes of a quantized matrix, [..., output features, input features]."""
        return stored_bytes(self.storage_of(part), shape, double_quantization=self.double_quantization)


def inputs_are_last(weight: Weight) -> bool:
    """Return whether a linear weight's last dimension is the input features, as nn.Linear has it."""
    last = len(weight.shape) - 1
    return weight.dim == last if weight.split is Split.ROW else weight.dim != last


def matrix_shape(weight: Weight, shape: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return a linear weight's shape (or its shard's `shape`) as [output features, input features].

    Fused experts stay in front. GPT-2's Conv1D matrices and some fused experts are
    stored the other way round; quantizers turn them, so that a row is always one
    output feature.
    """
    shape = weight.shape if shape is None else shape
    if inputs_are_last(weight):
        return shape
    return (*shape[:-2], shape[-1], shape[-2])


def checkpoint_bytes(spec: ModelSpec, stack: QuantizedStack, *, kept_bytes: int = 2) -> int:
    """Return the exact bytes of all tensors of a quantized checkpoint, `kept_bytes` an element left alone.

    A tied head counts once. File headers are not counted.
    """
    return sum(
        block.repeats * weight.tensors * weight_bytes(weight, stack, kept_bytes=kept_bytes)
        for block in spec.blocks
        for weight in block.weights
    )


def weight_bytes(
    weight: Weight, stack: QuantizedStack, *, kept_bytes: int, shape: tuple[int, ...] | None = None
) -> int:
    """Return the bytes of one tensor of a weight, or of its shard of `shape`."""
    shape = weight.shape if shape is None else shape
    if stack.reason_to_leave(weight) is None:
        return stack.matrix_bytes(matrix_shape(weight, shape), weight.part)
    return math.prod(shape) * kept_bytes


_BITSANDBYTES = "transformers 5.23, integrations/bitsandbytes.py, replace_with_bnb_linear: nn.Linear and Conv1D alone"
_COMPRESSED = "vLLM, model_executor/layers/quantization/compressed_tensors; llm-compressor recipes ignore lm_head"
# AutoGPTQ and GPTQModel keep the group of every input feature as an int32, g_idx; so does compressed-tensors where
# the activations' order decided the groups.
GROUP_INDEX_BYTES = 4
# compressed-tensors keeps a packed matrix' two lengths as int64, weight_shape.
PACKED_SHAPE_BYTES = 16
# modelopt keeps one fp32 scale of the weight's blocks and one of the input a tensor, weight_scale_2 and input_scale.
TWO_SCALARS_BYTES = 8

_ALL = (
    *(
        QuantizedStack(
            name=f"bitsandbytes-{scheme}",
            storage=storage_scheme("int8-channel" if scheme == "int8" else scheme),
            leaves_alone=_FUSED,
            leaves_named=_KEPT_IN_FULL_BY_TRANSFORMERS,
            source=_BITSANDBYTES,
        )
        for scheme in ("int8", "nf4", "fp4")
    ),
    QuantizedStack(
        name="bitsandbytes-nf4-double",
        storage=storage_scheme("nf4"),
        leaves_alone=_FUSED,
        leaves_named=_KEPT_IN_FULL_BY_TRANSFORMERS,
        double_quantization=True,
        source=_BITSANDBYTES,
    ),
    QuantizedStack(
        name="bitsandbytes-nf4-linear-experts",
        storage=storage_scheme("nf4"),
        leaves_alone={},
        leaves_named=_KEPT_IN_FULL_BY_TRANSFORMERS,
        source="transformers 4.57, integrations/bitsandbytes.py: experts are linear layers there, each for itself",
    ),
    QuantizedStack(
        name="awq",
        storage=storage_scheme("int4"),
        source="AutoAWQ, awq/modules/linear/gemm.py: qweight, qzeros, scales; modules_to_not_convert: gate",
    ),
    QuantizedStack(
        name="gptq",
        storage=_int4_groups("gptq", zero_point_bits=4, input_bytes=GROUP_INDEX_BYTES),
        source="GPTQModel, nn_modules/qlinear: qweight, qzeros, scales, g_idx",
    ),
    QuantizedStack(
        name="autogptq",
        storage=_int4_groups("autogptq", zero_point_bits=4, input_bytes=GROUP_INDEX_BYTES, output_bytes=2),
        source="AutoGPTQ, nn_modules/qlinear: as gptq, with a 16-bit bias for every matrix, zero where it had none",
    ),
    QuantizedStack(
        name="compressed-tensors-w4a16",
        storage=_int4_groups("pack-quantized", tensor_scale_bytes=PACKED_SHAPE_BYTES),
        source=_COMPRESSED + "; symmetric: weight_packed, weight_scale, weight_shape",
    ),
    QuantizedStack(
        name="compressed-tensors-w4a16-ordered",
        storage=_int4_groups("pack-quantized", tensor_scale_bytes=PACKED_SHAPE_BYTES, input_bytes=GROUP_INDEX_BYTES),
        source=_COMPRESSED + "; as w4a16, with weight_g_idx",
    ),
    QuantizedStack(
        name="compressed-tensors-int4-experts",
        storage=_int4_groups("pack-quantized", inputs_per_group=32, tensor_scale_bytes=PACKED_SHAPE_BYTES),
        leaves_alone=_ALL_BUT_EXPERTS,
        source=(
            "moonshotai/Kimi-K2.5, config.json: groups of 32, ignores self_attn, shared_experts and the dense layers'"
            " mlp; compressed-tensors, weight_packed, weight_scale, weight_shape"
        ),
    ),
    QuantizedStack(
        name="compressed-tensors-w8a8",
        storage=StorageScheme(name="int-quantized", format="int8", scaled_over=ScaledOver.ROW, scale_bits=16),
        source=_COMPRESSED + "; one 16-bit scale an output channel",
    ),
    QuantizedStack(
        name="compressed-tensors-fp8-dynamic",
        storage=StorageScheme(name="float-quantized", format="fp8-e4m3", scaled_over=ScaledOver.ROW, scale_bits=16),
        source=_COMPRESSED + "; one 16-bit scale an output channel, activations scaled as they come",
    ),
    QuantizedStack(
        name="fp8-on-loading",
        storage=storage_scheme("fp8"),
        source="vLLM, model_executor/layers/quantization/fp8.py: weights quantized while loading, one scale a tensor",
    ),
    QuantizedStack(
        name="w8a8-wide-scales",
        storage=storage_scheme("int8-channel"),
        source=_COMPRESSED + "; vLLM loads the checkpoint's channel scales into fp32",
    ),
    QuantizedStack(
        name="bitsandbytes-nf4-fused",
        storage=storage_scheme("nf4"),
        source="vLLM, model_executor/layers/quantization/bitsandbytes.py: linear layers and fused experts",
    ),
    QuantizedStack(
        name="modelopt-fp8",
        storage=StorageScheme(
            name="modelopt-fp8",
            format="fp8-e4m3",
            scaled_over=ScaledOver.TENSOR,
            tensor_scale_bytes=TWO_SCALARS_BYTES,
        ),
        source="vLLM, model_executor/layers/quantization/modelopt.py: weight_scale, input_scale",
    ),
    QuantizedStack(
        name="deepseek-fp8",
        storage=StorageScheme(
            name="deepseek-fp8", format="fp8-e4m3", scaled_over=ScaledOver.TILE, scale_bits=32, block_size=128
        ),
        source="DeepSeek-V3, arXiv:2412.19437, section 3.3.2: tiles of 128 x 128, weight_scale_inv in fp32",
    ),
    QuantizedStack(
        name="deepseek-mxfp4-fp8",
        storage=StorageScheme(
            name="deepseek-fp8-ue8m0", format="fp8-e4m3", scaled_over=ScaledOver.TILE, scale_bits=8, block_size=128
        ),
        expert_storage=storage_scheme("mxfp4"),
        source=(
            "deepseek-ai/DeepSeek-V4-Flash, config.json: expert_dtype fp4; quantization_config fp8, tiles of "
            "128 x 128, scale_fmt ue8m0"
        ),
    ),
    QuantizedStack(
        name="qwen-fp8",
        storage=StorageScheme(
            name="qwen-fp8", format="fp8-e4m3", scaled_over=ScaledOver.TILE, scale_bits=16, block_size=128
        ),
        source="Qwen3-FP8 checkpoints: tiles of 128 x 128, weight_scale_inv in bf16",
    ),
    QuantizedStack(
        name="gpt-oss-mxfp4",
        storage=storage_scheme("mxfp4"),
        leaves_alone=_ALL_BUT_EXPERTS,
        source=(
            "gpt-oss model card, arXiv:2508.10925, section 2.1; vLLM, model_executor/layers/quantization/mxfp4.py: "
            "linear layers unquantized"
        ),
    ),
    QuantizedStack(
        name="compressed-tensors-mxfp4",
        storage=storage_scheme("mxfp4"),
        source=_COMPRESSED + "; mxfp4-pack-quantized",
    ),
    QuantizedStack(
        name="modelopt-nvfp4",
        storage=StorageScheme(
            name="modelopt-nvfp4",
            format="nvfp4",
            scaled_over=ScaledOver.GROUP,
            scale_bits=8,
            tensor_scale_bytes=TWO_SCALARS_BYTES,
            block_size=16,
            has_fixed_block_size=True,
        ),
        source="vLLM, model_executor/layers/quantization/modelopt.py: weight_scale, weight_scale_2, input_scale",
    ),
    # Schemes that this service makes itself, and stores as `formats` says.
    *(
        QuantizedStack(name=f"plimsoll-{scheme}", storage=storage_scheme(scheme), source="planners/formats/storage.py")
        for scheme in ("fp8", "fp8-channel", "int8", "int8-group", "int4", "mxfp4", "nvfp4")
    ),
)

QUANTIZED_STACKS: Mapping[str, QuantizedStack] = MappingProxyType({stack.name: stack for stack in _ALL})

# Whose rules a scheme follows when this service quantizes with it: bitsandbytes' own formats are read by transformers.
STACK_OF_SCHEME: Mapping[str, QuantizedStack] = MappingProxyType(
    {
        "int8-channel": QUANTIZED_STACKS["bitsandbytes-int8"],
        "nf4": QUANTIZED_STACKS["bitsandbytes-nf4"],
        "fp4": QUANTIZED_STACKS["bitsandbytes-fp4"],
        **{name.removeprefix("plimsoll-"): stack for name, stack in QUANTIZED_STACKS.items() if "plimsoll" in name},
    }
)


def quantized_stack(name: str) -> QuantizedStack:
    """Return the stack of that name; raises `UnknownName` and lists the near ones."""
    if name not in QUANTIZED_STACKS:
        raise UnknownName(name, QUANTIZED_STACKS)
    return QUANTIZED_STACKS[name]
