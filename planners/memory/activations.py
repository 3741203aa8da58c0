"""What a layer saves for its backward pass, derived from its operations.

Autograd saves what each operation's gradient needs: a matrix product its input,
a norm its input, an activation its input, attention its operands, output and
statistics. A tensor has a name and is counted once, however many operations
save it. With fused kernels and dropout this gives Korthikanti et al. 2022
(arXiv:2205.05198): s·b·h·(34 + 5·a·s/h) bytes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from plimsoll.planners.architecture import Block, Operation, OperationKind, Part, Region, ScanKernel
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.memory.eager_attention import (
    attentions_of,
    has_scores,
    kept_score_bytes,
    save_copied_output,
    save_of_fp32_kernel,
    save_repeated_heads,
)
from plimsoll.planners.memory.latents import save_latents, save_normed_latents
from plimsoll.planners.memory.recurrent import fused_operations, save_gated_delta, saved_scan_inputs, scan_bytes
from plimsoll.planners.memory.routing import routing_bytes, save_router_input
from plimsoll.planners.memory.sequence_first import copied_output_bytes, exchanged_output_bytes
from plimsoll.planners.memory.unfused_attention import behind_kernel_bytes, is_unfused, save_operands
from plimsoll.planners.stacks.records import Kernels

# Traced over LlamaRMSNorm: the input; the gradient's two products and the derivatives of mean and square.
NORM_BACKWARD_TENSORS = 6
# torch's mask of a dropout (aten/src/ATen/native/cuda/Dropout.cu: a bool an element).
MASK_BYTES = 1
# The router's product is never in fp8 (Megatron-LM, core/transformer/moe/router.py: torch's own matrix product).
# A sigmoid, which saves its output alone.
ATTENTION_GATING = "attention_gating"
ROUTER, ROUTER_SCORES = "router", "router_scores"
# The tensors of a mixture that hold tokens as their experts' ranks have them (`architecture/mixture_of_experts.py`).
DISPATCHED_TENSORS = ("dispatched", "expert_output")
RESIDUAL, QUERY = "residual", "query"
COMBINE, SHARED_COMBINE = "combine", "shared_combine"
NO_CASTS: Mapping[str, int] = MappingProxyType({})
EXPERT_TENSORS = ("expert_gate", "expert_up", "expert_inner", "expert_product")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Bytes saved of one layer for each token of a micro-batch.

    `sequence_bytes` are divided by sequence parallelism only, `tensor_bytes` by
    the tensor-parallel degree, `gathered_bytes` by neither. `score_bytes` are for
    each token and each position of the sequence (eager attention), also divided
    by tensor parallelism. `dispatched_bytes` are saved of tokens as they stand before and after their
    experts, `expert_bytes` within an expert, divided like `tensor_bytes`: the tokens that a rank was sent,
    not its own. `ring_bytes` are saved besides, divided by tensor parallelism, where several ranks have parts of a
    sequence, `exchanged_bytes` where they exchange heads, and `exchanged_alone_bytes` where a micro-batch is one
    sequence then.
    """

    gathered_bytes: float = 0.0
    sequence_bytes: float = 0.0
    tensor_bytes: float = 0.0
    score_bytes: float = 0.0
    dispatched_bytes: float = 0.0
    expert_bytes: float = 0.0
    ring_bytes: float = 0.0
    exchanged_bytes: float = 0.0
    exchanged_alone_bytes: float = 0.0


NOTHING_SAVED = SavedBytes()


def saved_bytes(
    block: Block,
    kernels: Kernels,
    *,
    attention: str,
    element_bytes: int,
    learning: frozenset[str] | None = None,
    frozen_input_bytes: int = 0,
    autocast: bool = False,
    adapter_casts: Mapping[str, int] = NO_CASTS,
    fp8_input_bytes: int = 0,
    without: frozenset[str] = frozenset(),
) -> SavedBytes:
    """Return what one layer saves when nothing is recomputed.

    `learning` names the matrix products whose weights (or adapters) learn, None
    meaning all: the gradient of a frozen matrix's input needs the matrix and not
    the input, so that no more than `frozen_input_bytes` of each of its features are saved.
    `autocast`: fp32 weights, cast as they are used, so that the residual stream is fp32.
    `adapter_casts`: how many fp32 adapters read each tensor under autocast, each a cast of its own.
    `fp8_input_bytes`: products in fp8 save that much of each element of their inputs, in tensors of
    their own (0: the 16-bit input). `without` names tensors that are computed again.
    """
    saved = _saved_elements(block, kernels, element_bytes, learning, frozen_input_bytes, fp8_input_bytes)
    if has_scores(attention, kernels):
        save_repeated_heads(block, saved, element_bytes)
        save_copied_output(block, saved, element_bytes, learning)
    elif is_unfused(attention, kernels):
        save_operands(block, saved, element_bytes)
    elif kernels.transformers_modules and element_bytes == FP32_BYTES:
        save_of_fp32_kernel(block, saved, element_bytes)
    if kernels.repeats_shared_heads:
        save_repeated_heads(block, saved, element_bytes, single_is_view=True)
    if autocast:
        _save_casts(block, saved, kernels, element_bytes)
    if adapter_casts:
        _save_adapter_casts(block, saved, kernels, element_bytes, adapter_casts)
    if kernels.transformer_engine and QUERY not in without:
        save_normed_latents(block, saved, element_bytes)
    for name in without:
        saved.pop(name, None)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    sizes = ((name, widths[name] * size) for name, size in saved.items())
    tensors = by_division(block, sizes, gathered=_gathered_inputs(block, kernels))
    sequence_statistics, tensor_statistics = _norm_statistic_bytes(block, kernels)
    sequence, tensor_total = tensors.sequence_bytes + sequence_statistics, tensors.tensor_bytes + tensor_statistics
    routing = 0 if ROUTER_SCORES in without else routing_bytes(block, kernels, element_bytes)
    sequence += _dropout_bytes(block, kernels, widths) + routing
    scan = scan_bytes(block, kernels, element_bytes)
    sequence, tensor_total = sequence + scan.sequence_bytes, tensor_total + scan.tensor_bytes
    heads = sum(op.heads for op in block.operations if op.kind is OperationKind.ATTENTION)
    if attention == "flash":
        statistics = heads * kernels.flash_statistic_bytes
        ring = _ring_bytes(block, kernels, element_bytes)
        twice = exchanged_output_bytes(block, kernels, element_bytes=element_bytes, without=without)
        copied = copied_output_bytes(block, kernels, attention=attention, element_bytes=element_bytes)
        return replace(
            tensors,
            sequence_bytes=sequence,
            tensor_bytes=tensor_total + statistics,
            ring_bytes=ring,
            exchanged_bytes=float(max(twice - copied, 0)),
            exchanged_alone_bytes=float(min(twice, copied)),
        )
    if has_scores(attention, kernels):
        own = sum(op.heads * kept_score_bytes(op, element_bytes, autocast=autocast) for op in attentions_of(block))
        return replace(tensors, sequence_bytes=sequence, tensor_bytes=tensor_total, score_bytes=float(own))
    if is_unfused(attention, kernels):
        behind = float(behind_kernel_bytes(block, element_bytes))
        return replace(tensors, sequence_bytes=sequence, tensor_bytes=tensor_total, score_bytes=behind)
    score = kernels.eager_score_bytes + (kernels.eager_score_dropout_bytes if has_dropout(block) else 0)
    scores = heads * score * element_bytes / 2
    return replace(tensors, sequence_bytes=sequence, tensor_bytes=tensor_total, score_bytes=scores)


def by_division(block: Block, sizes: Iterable[tuple[str, float]], *, gathered: Container[str]) -> SavedBytes:
    """Return the bytes of named tensors by what divides them; nothing divides those in `gathered`."""
    regions = {tensor.name: tensor.region for tensor in block.tensors}
    total = dict.fromkeys(("gathered_bytes", "sequence_bytes", "tensor_bytes", "dispatched_bytes", "expert_bytes"), 0.0)
    for name, size in sizes:
        if name in DISPATCHED_TENSORS:
            division = "dispatched_bytes"
        elif name in EXPERT_TENSORS:
            division = "expert_bytes"
        elif name in gathered:
            division = "gathered_bytes"
        else:
            division = "sequence_bytes" if regions[name] is Region.SEQUENCE else "tensor_bytes"
        total[division] += size
    return SavedBytes(**total)


def checkpoint_width(block: Block) -> int:
    """Return the features of a layer's input, all that full recompute saves of it."""
    return next(tensor.width for tensor in block.tensors if tensor.name == RESIDUAL)


def meeting_gradients(
    block: Block,
    learning: frozenset[str] | None,
    *,
    experts_in_turn: bool = False,
    in_place: bool = False,
    own_code: bool = False,
    drops_inputs: bool = False,
) -> tuple[float, int]:
    """Return the widest divided tensor's features, and how many gradients of it meet in the backward pass.

    Of a gated layer three meet as the product of its halves is differentiated, of an ungated one two as its
    activation is, or as many as transformers' `own_code` of it makes; the tensor that the last matrix multiplied has
    been let go of by then, and makes up for one, unless that matrix is frozen and it was not saved, or the activation
    keeps it as well; what is saved behind a dropout (`drops_inputs`) meets a gradient of its own. Where kernels work
    `in_place` the halves' gradients take the halves' own places: the product's alone is new, and meets all that was
    saved.
    Of experts that work in turn only one's tensors count, for the tokens that go to it on average. What a fused scan
    reads is wider than a narrow feed-forward, and is not there yet as that is differentiated.
    """
    scanned = _scanned_before_feed_forward(block)
    experts = max((weight.experts for weight in block.weights), default=1) if experts_in_turn else 1
    widths = [
        tensor.width / (experts if tensor.name.startswith("expert_") else 1)
        for tensor in block.tensors
        if tensor.region is Region.TENSOR and tensor.name not in scanned
    ]
    widest = max(widths, default=0.0)
    last = [op.name for op in block.operations if op.kind is OperationKind.MATMUL and op.is_row_parallel][-1:]
    is_saved = learning is None or not last or (last[0] in learning and not drops_inputs)
    ungated = [op for op in block.operations if op.kind is OperationKind.ACTIVATION]
    if not ungated:
        return widest, 1 if in_place else 3 - is_saved
    if not own_code:
        return widest, 2 - is_saved
    return widest, max(op.meeting_gradients - (is_saved and op.kept_tensors > 0) for op in ungated)


def _scanned_before_feed_forward(block: Block) -> frozenset[str]:
    """Return the tensors of a state space scan that a feed-forward follows."""
    for index, operation in enumerate(block.operations):
        if operation.scan is not None and operation.scan.kernel is ScanKernel.STATE_SPACE:
            inner = (OperationKind.GATED_ACTIVATION, OperationKind.ACTIVATION)
            is_followed = any(later.kind in inner for later in block.operations[index:])
            return frozenset((*operation.inputs, operation.output) if is_followed else ())
    return frozenset()


def has_dropout(block: Block) -> bool:
    """Return whether the layer is of the kind that is trained with dropout: an ungated one with LayerNorm's biases.

    Squared ReLU between RMSNorms (Nemotron-H, arXiv:2504.03624, section 2.1) is trained without.
    """
    is_ungated = any(op.kind is OperationKind.ACTIVATION for op in block.operations)
    return is_ungated and any(weight.part is Part.NORM and weight.name.endswith(".bias") for weight in block.weights)


def _saved_elements(
    block: Block,
    kernels: Kernels,
    element_bytes: int,
    learning: frozenset[str] | None,
    frozen_input_bytes: int,
    fp8_input_bytes: int,
) -> dict[str, float]:
    """Return bytes for each element of every tensor that some operation saves."""
    saved: dict[str, float] = {}
    in_fp8: set[str] = set()
    fused = fused_operations(block, kernels)
    upcasts = kernels.norm_keeps_fp32 and not has_layer_norms(block)
    for operation in block.operations:
        if operation.kind is OperationKind.MATMUL and operation.name in fused:
            continue
        if operation.kind is OperationKind.MATMUL and learning is not None:
            for name in operation.inputs if frozen_input_bytes else ():
                saved[name] = max(saved.get(name, 0.0), float(frozen_input_bytes))
            if operation.name in learning and not kernels.adapter_dropout_bytes:
                for name in operation.inputs:
                    saved[name] = max(saved.get(name, 0.0), float(element_bytes))
            continue
        if fp8_input_bytes and operation.kind is OperationKind.MATMUL and operation.name != ROUTER:
            in_fp8.update(operation.inputs)
            continue
        for name in _saved_names(operation):
            saved[name] = max(saved.get(name, 0.0), float(element_bytes))
        if operation.kind is OperationKind.NORM and upcasts and operation.name not in fused:
            saved[operation.inputs[0]] = _saved_by_norm(operation, kernels, element_bytes, learns=learning is None)
        if operation.kind is OperationKind.ACTIVATION and kernels.transformers_modules:
            _save_activation(operation, saved, element_bytes)
    for operation in block.operations:
        if operation.name == SHARED_COMBINE or (kernels.combine_keeps_expert_outputs and operation.name == COMBINE):
            saved[operation.inputs[0]] = float(element_bytes)  # which the gradient of the scores needs
    if kernels.packed_query_keeps_all:
        _save_packed(block, saved, element_bytes)
    if kernels.transformers_modules:
        _save_views(block, saved, kernels, element_bytes, learning)
        save_latents(block, saved, kernels, element_bytes, learning)
        save_gated_delta(block, saved, element_bytes)
        save_router_input(block, saved, learning)
    if kernels.gated_keeps_gate_output:
        for operation in block.operations:
            if operation.kind is OperationKind.GATED_ACTIVATION:
                kept = 1 if operation.name == ATTENTION_GATING else max(2, operation.kept_tensors)
                saved[operation.inputs[0]] = float(kept * element_bytes)
    for name in in_fp8:
        saved[name] = saved.get(name, 0.0) + fp8_input_bytes
    for name, calls in _adapter_calls(block, kernels, learning).items() if kernels.adapter_dropout_bytes else ():
        saved[name] = saved.get(name, 0.0) + calls * kernels.adapter_dropout_bytes
    return saved


def _saved_by_norm(operation: Operation, kernels: Kernels, element_bytes: int, *, learns: bool) -> float:
    """Return what a norm in separate operations saves of each element of its input.

    The input upcast to fp32 and, for the scale's gradient, its normalised copy beside the output. One that subtracts
    the mean saves the difference twice, for the square and for the product, and not the input.
    """
    inputs = 2 if operation.is_centred else 1
    scales_in_fp32 = operation.scales_in_fp32 or kernels.norms_scale_in_fp32
    normalised = FP32_BYTES if scales_in_fp32 else element_bytes
    return float(inputs * FP32_BYTES + (normalised if learns and operation.has_scale else 0))


def _save_activation(operation: Operation, saved: dict[str, float], element_bytes: int) -> None:
    """Count as many tensors of the input's width as transformers' own code of the activation saves, or its result."""
    if not operation.kept_tensors:
        saved.pop(operation.inputs[0])
        saved[operation.output] = max(saved.get(operation.output, 0.0), float(element_bytes))
        return
    saved[operation.inputs[0]] = float(operation.kept_tensors * element_bytes)


def _adapter_calls(block: Block, kernels: Kernels, learning: frozenset[str] | None) -> dict[str, int]:
    """Return how many adapters read each tensor; queries, keys and values may have theirs together, as one matrix."""
    if learning is None:
        return {}
    readers: dict[str, set[str]] = {}
    for operation in block.operations:
        if operation.kind is OperationKind.MATMUL and operation.name in learning:
            is_attention = not operation.name.startswith(("feed_forward", "shared", "expert"))
            is_joined = is_attention and kernels.joins_attention_adapters
            for name in operation.inputs:
                readers.setdefault(name, set()).add("attention" if is_joined else operation.name)
    return {name: len(adapters) for name, adapters in readers.items()}


def _save_casts(block: Block, saved: dict[str, float], kernels: Kernels, element_bytes: int) -> None:
    """Count a norm in fp32 throughout, and a cast of its output, or of the stream, for each matrix that it feeds.

    Autocast saves the casts of weights for others and makes those of activations anew. A norm that
    follows a recurrence is a kernel of its own, which autocast leaves as it is.
    Source: torch.autocast, cached_cast; traces of DistributedDataParallel with transformers' Llama.
    """
    recurrences = [op.output for op in block.operations if op.kind is OperationKind.SCAN]
    for operation in block.operations:
        fed = _matrices_fed(block, operation.output)
        if operation.kind is OperationKind.NORM and fed and operation.inputs[0] not in recurrences:
            saved[operation.inputs[0]] = float(FP32_BYTES * _norm_tensors_in_fp32(block, operation, kernels))
            saved[operation.output] = float(fed * element_bytes)
    norms = {op.inputs[0] for op in block.operations if op.kind is OperationKind.NORM}
    for name in (RESIDUAL, *(op.output for op in block.operations if op.kind is OperationKind.ADD)):
        fed = _matrices_fed(block, name)
        if fed:
            saved[name] = (saved[name] if name in norms else 0.0) + fed * element_bytes


def _matrices_fed(block: Block, name: str) -> int:
    """Return how many matrices read a tensor; one that holds several one after the other is a single one."""
    products = {
        op.output: op.matmul_shape for op in block.operations if op.kind is OperationKind.MATMUL and name in op.inputs
    }
    joined = 0
    for operation in block.operations:
        shapes = [shape for shape in (products.get(read) for read in operation.inputs) if shape is not None]
        if len(shapes) < 2 or operation.kind not in (OperationKind.ATTENTION, OperationKind.GATED_ACTIVATION):
            continue
        whole = (sum(outputs for _, outputs in shapes), shapes[0][0])
        joined += (len(shapes) - 1) * any(weight.shape == whole for weight in block.weights)
    return len(products) - joined


def _save_adapter_casts(
    block: Block, saved: dict[str, float], kernels: Kernels, element_bytes: int, casts: Mapping[str, int]
) -> None:
    """Count a cast for each adapter in place of the input that adapters shared, beside what others save of it.

    peft takes the input to the adapter's fp32 and autocast that back to 16 bits, for each adapter anew.
    Source: peft 0.21, tuners/lora/layer.py, `Linear.forward`; tuners/tuners_utils.py, `_cast_input_dtype`.
    """
    others = _saved_elements(block, kernels, element_bytes, frozenset(), 0, 0)
    for name, adapters in casts.items():
        saved[name] = others.get(name, 0.0) + float(adapters * element_bytes)


def _norm_tensors_in_fp32(block: Block, norm: Operation, kernels: Kernels) -> int:
    """Return how many tensors a norm of an input in fp32 saves: one in a kernel, the normalised one too else."""
    if has_layer_norms(block) or not norm.has_scale or not kernels.norm_keeps_fp32:
        return 1
    return 3 if norm.is_centred else 2


def _save_packed(block: Block, saved: dict[str, float], element_bytes: int) -> None:
    """Count keys and values twice where the query is a view of the buffer that holds all three.

    That is so where all three are as wide: one permutation makes the buffer, of
    which the query is saved, and keys and values are copied once more for the rotation.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    for operation in block.operations:
        if operation.kind is OperationKind.ATTENTION and len({widths[name] for name in operation.inputs}) == 1:
            for name in operation.inputs[1:]:
                saved[name] = 2.0 * element_bytes


def _save_views(
    block: Block, saved: dict[str, float], kernels: Kernels, element_bytes: int, learning: frozenset[str] | None
) -> None:
    """Count what transformers' own attention saves of buffers that its tensors are views of, or copies of.

    Of a matrix for queries, keys and values together the value is a view, and saves the whole
    product beside the rotated copies of the other two. A rotation that concatenates leaves heads
    before tokens, and so does the attention's output, which is copied for the next matrix and saved if that learns; one
    in place does not.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    rotations = [operation for operation in block.operations if operation.kind is OperationKind.ROTARY]
    is_fused = any(weight.part is Part.ATTENTION and weight.sections for weight in block.weights)
    for operation in block.operations:
        if operation.kind is not OperationKind.ATTENTION or not rotations:
            continue
        if is_fused:
            value = operation.inputs[-1]
            saved[value] = element_bytes * sum(widths[name] for name in operation.inputs) / widths[value]
        is_copy_saved = any(
            operation.output in op.inputs
            and op.kind in (OperationKind.MATMUL, OperationKind.GATED_ACTIVATION)
            and (learning is None or op.name in learning)
            for op in block.operations
        )
        leaves_heads_first = any(rotation.concatenates for rotation in rotations) and not kernels.works_in_place
        if is_copy_saved and leaves_heads_first:
            saved[operation.output] = 2.0 * element_bytes


def _ring_bytes(block: Block, kernels: Kernels, element_bytes: int) -> float:
    """Return the copy of attention's output that torch's ring makes needful, whose sums have heads before tokens.

    A rotation that concatenates does the same already. Source: torch, distributed/tensor/experimental/
    _context_parallel/_attention.py, `_SDPAMerger`.
    """
    if not kernels.transformers_modules:
        return 0.0
    concatenates = any(op.kind is OperationKind.ROTARY and op.concatenates for op in block.operations)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    outputs = [op.output for op in block.operations if op.kind is OperationKind.ATTENTION]
    return 0.0 if concatenates else float(element_bytes * sum(widths[output] for output in outputs))


def norm_backward_bytes(block: Block, kernels: Kernels, element_bytes: int) -> int:
    """Return what each feature of a norm's input needs as the norm is differentiated, with the residual's gradient.

    A norm in separate operations has its input in fp32 and five products of it and the
    gradient at once; in one kernel its input, and the gradients before and after it, which are one where it works in
    place.
    """
    if kernels.norm_keeps_fp32 and not has_layer_norms(block):
        return NORM_BACKWARD_TENSORS * FP32_BYTES + element_bytes
    return (3 if kernels.works_in_place else 4) * element_bytes


def has_layer_norms(block: Block) -> bool:
    """Return whether the norms are torch's LayerNorm, one kernel everywhere: those have a bias, RMSNorms have none."""
    return any(weight.part is Part.NORM and weight.name.endswith(".bias") for weight in block.weights)


def _norm_statistic_bytes(block: Block, kernels: Kernels) -> tuple[float, float]:
    """Return the statistics of norms, those that sequence parallelism divides and those that tensor parallelism does.

    LayerNorm saves mean and deviation, RMSNorm one number, the norm of each head its own.
    """
    each = kernels.norm_statistic_bytes * (2 if has_layer_norms(block) else 1)
    norms = [operation for operation in block.operations if operation.kind is OperationKind.NORM]
    whole = sum(not operation.heads for operation in norms)
    return float(each * whole), float(each * sum(operation.heads for operation in norms))


def _saved_names(operation: Operation) -> tuple[str, ...]:
    match operation.kind:
        case OperationKind.MATMUL | OperationKind.NORM | OperationKind.ACTIVATION | OperationKind.GATED_ACTIVATION:
            return operation.inputs
        case OperationKind.ATTENTION:
            return (*operation.inputs, operation.output)
        case OperationKind.SCAN:
            return saved_scan_inputs(operation)
        case _:
            return ()


def _gathered_inputs(block: Block, kernels: Kernels) -> frozenset[str]:
    """Return the inputs of column-parallel matrices that a stack saves as gathered, not as its own part."""
    if not kernels.keeps_gathered_inputs:
        return frozenset()
    return frozenset(
        name
        for operation in block.operations
        if operation.kind is OperationKind.MATMUL and not operation.is_row_parallel
        for name in operation.inputs
    )


def _dropout_bytes(block: Block, kernels: Kernels, widths: dict[str, int]) -> float:
    """Return the masks of the dropouts before each residual addition: those of the config, or of the textbook."""
    additions = [operation for operation in block.operations if operation.kind is OperationKind.ADD]
    if kernels.transformers_modules:
        return float(sum(MASK_BYTES * widths[op.inputs[1]] for op in additions if op.drops_out))
    if not has_dropout(block):
        return 0.0
    return float(sum(kernels.dropout_mask_bytes * widths[op.inputs[1]] for op in additions))
