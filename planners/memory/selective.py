"""What a layer saves under selective recomputation, which each stack understands in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from plimsoll.planners.architecture import Block, Operation, OperationKind, Part, Split, Weight
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION, dropped, restored
from plimsoll.planners.memory.activations import (
    DISPATCHED_TENSORS,
    EXPERT_TENSORS,
    QUERY,
    ROUTER,
    SavedBytes,
    by_division,
    checkpoint_width,
    saved_bytes,
)
from plimsoll.planners.memory.latents import KEY_VALUE_LATENT
from plimsoll.planners.memory.unfused_attention import (
    is_unfused,
    recomputed_inputs_bytes,
    repeated_operands_bytes,
)
from plimsoll.planners.stacks.records import Kernels

ATTENTION_OPERANDS = frozenset(("attention_input", "query", "key", "value"))
# Which weights an operation multiplies by, by the first word of its name; attention's have names of their own.
PART_OF_PREFIX = {"feed": Part.FEED_FORWARD, "shared": Part.SHARED_EXPERT}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """One call of a matrix multiplication: the tensors it writes, and whether a bias is added within it."""

    outputs: tuple[str, ...]
    has_bias: bool


def selectively_saved_bytes(
    block: Block,
    kernels: Kernels,
    *,
    policy: str,
    attention: str,
    element_bytes: int,
    fp8_input_bytes: float = 0,
    adds_biases_apart: bool = False,
    modules: tuple[str, ...] = (),
) -> SavedBytes:
    """Return what one layer saves under selective recompute: of `modules`, or where none are named by the policy.

    `attention_scores` throws the score matrices away and nothing else, as
    Korthikanti et al. 2022 do (arXiv:2205.05198). `alternate_matmuls` saves the layer's
    input, every second matrix product and the attention's output, as torchtitan does;
    every policy but these saves all. `adds_biases_apart`: a product's bias is a sum of its own.
    """
    everything = saved_bytes(
        block,
        kernels,
        attention=attention,
        element_bytes=element_bytes,
        fp8_input_bytes=fp8_input_bytes,
        without=dropped(block, modules, fuses_norms=kernels.transformer_engine),
    )
    if CORE_ATTENTION in modules or (not modules and policy == "attention_scores"):
        inputs = 0
        if is_unfused(attention, kernels):
            inputs = recomputed_inputs_bytes(block, element_bytes) - repeated_operands_bytes(block, element_bytes)
        elif kernels.transformer_engine and attention == "flash":
            inputs = -_statistic_bytes(block, kernels)
        return replace(everything, score_bytes=0.0, tensor_bytes=everything.tensor_bytes + inputs)
    if modules:
        return everything
    if policy != "alternate_matmuls":
        return everything
    attentions = [op for op in block.operations if op.kind is OperationKind.ATTENTION]
    # A product that writes keys and values at once is wider than the tensor that it is named after.
    written = {op.output: op.matmul_shape[1] for op in block.operations if op.matmul_shape is not None}
    widths = {tensor.name: max(tensor.width, written.get(tensor.name, 0)) for tensor in block.tensors}
    outputs = (*_saved_outputs(block, kernels, adds_biases_apart), *(operation.output for operation in attentions))
    # Of a row-parallel product every rank's part of the sum is as long as the whole.
    row_parallel = {op.output for op in block.operations if op.is_row_parallel}
    products = by_division(block, ((name, element_bytes * widths[name]) for name in outputs), gathered=row_parallel)
    layer_input = selective_input_bytes(block, policy=policy, element_bytes=element_bytes)
    return replace(
        products,
        sequence_bytes=layer_input + products.sequence_bytes,
        tensor_bytes=products.tensor_bytes + _statistic_bytes(block, kernels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrownAway:
    """What of a layer is thrown away and comes back in its backward pass, where Megatron-Core's modules say so.

    `until_attention` is not back before the attention is differentiated, behind the whole feed-forward. Back, tensors
    stand twice: those `at_attention`, and `within_feed_forward` from the layer's first moment on.
    Source: Megatron-Core 0.16.1, core/tensor_parallel/random.py, `CheckpointWithoutOutput`.
    """

    until_attention: SavedBytes
    at_attention: SavedBytes
    within_feed_forward: SavedBytes


def thrown_away(
    block: Block,
    kernels: Kernels,
    everything: SavedBytes,
    *,
    attention: str,
    element_bytes: int,
    modules: tuple[str, ...],
) -> ThrownAway | None:
    """Return what of `everything` is thrown away; None where that is nothing, or only within experts."""
    names = restored(block, modules, fuses_norms=kernels.transformer_engine)
    if not names:
        return None
    of_attention = names & ATTENTION_OPERANDS
    left = saved_bytes(block, kernels, attention=attention, element_bytes=element_bytes, without=of_attention)
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    # The latent that a second run begins with is a part of a product, which is copied for its norm.
    begins = {KEY_VALUE_LATENT} & widths.keys() if QUERY in names else set()
    again, beside = (
        by_division(block, ((name, element_bytes * widths[name]) for name in part), gathered=())
        for part in (of_attention | begins, names - of_attention)
    )
    return ThrownAway(
        until_attention=SavedBytes(
            gathered_bytes=everything.gathered_bytes - left.gathered_bytes,
            sequence_bytes=everything.sequence_bytes - left.sequence_bytes,
            tensor_bytes=everything.tensor_bytes - left.tensor_bytes,
        ),
        at_attention=again,
        within_feed_forward=beside,
    )


def _statistic_bytes(block: Block, kernels: Kernels) -> int:
    """Return what flash attention keeps of a token beside its operands and its output."""
    heads = sum(operation.heads for operation in block.operations if operation.kind is OperationKind.ATTENTION)
    return kernels.flash_statistic_bytes * heads


def scattered_bytes(block: Block, kernels: Kernels, *, policy: str, element_bytes: int) -> int:
    """Return what is saved of each token of a rank once sums over tensor-parallel ranks are scattered by token.

    torchtitan's list names the reduce-scatters, so that their outputs are saved as well; compiled, but for the last.
    """
    if policy != "alternate_matmuls":
        return 0
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    unneeded = _last_output(block) if kernels.compiled else ()
    dense = (op.output for op in block.operations if op.is_row_parallel and op.output not in DISPATCHED_TENSORS)
    return element_bytes * sum(widths[output] for output in dense if output not in unneeded)


def exchanged_bytes(block: Block, *, policy: str, element_bytes: int) -> int:
    """Return what is saved of each token of a rank once its copies go to experts on other ranks and come back.

    torchtitan's list names the all-to-alls, so that the outputs of both are saved
    (models/llama4/infra/parallelize.py, `_op_sac_save_list`).
    """
    if policy != "alternate_matmuls":
        return 0
    return 2 * element_bytes * sum(tensor.width for tensor in block.tensors if tensor.name == "dispatched")


def selective_input_bytes(block: Block, *, policy: str, element_bytes: int) -> int:
    """Return what a layer's second run starts from, which stays until the layer has been differentiated."""
    return element_bytes * checkpoint_width(block) if policy == "alternate_matmuls" else 0


def not_recomputed_bytes(
    block: Block, kernels: Kernels, *, policy: str, element_bytes: int, adds_biases_apart: bool = False
) -> tuple[int, int]:
    """Return what is saved of a token that the layer's second run does not take up, which stops before its end.

    The layer's last product, where it is among those saved, is saved until the layer has been differentiated: every
    rank's part of the sum, and, over tensor-parallel ranks, the scattered sum of a rank's own tokens. Compiled it is
    not saved.
    """
    if policy != "alternate_matmuls" or kernels.compiled:
        return 0, 0
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    kept = _saved_outputs(block, kernels, adds_biases_apart)
    saved = [output for output in kept if output not in (*DISPATCHED_TENSORS, *EXPERT_TENSORS)]
    last = _last_output(block)
    part = element_bytes * sum(widths[output] for output in last if output in saved[-1:])
    return part, element_bytes * sum(widths[output] for output in last if output not in DISPATCHED_TENSORS)


def _last_output(block: Block) -> tuple[str, ...]:
    """Return what a layer's last product writes, which is added to the residual and needed for no gradient."""
    return tuple(operation.output for operation in block.operations if operation.is_row_parallel)[-1:]


def _saved_outputs(block: Block, kernels: Kernels, adds_biases_apart: bool) -> Iterator[str]:
    """Yield what the first, third, fifth … product writes.

    torchtitan's list names aten.mm and counts its calls; a product with a bias is
    aten.addmm, is not counted and never saved (distributed/activation_checkpoint.py), unless the bias is added
    afterwards. Neither is the router's (`per_op_sac_force_recompute_mm_shapes_by_fqns`), nor the experts' grouped one,
    which is an operation of its own. Compiled, what no gradient needs is not saved though the list names it.
    """
    unneeded = _last_output(block) if kernels.compiled else ()
    plain = [product for product in _products(block) if adds_biases_apart or not product.has_bias]
    for product in plain[::2]:
        yield from (output for output in product.outputs if output not in unneeded)


def _products(block: Block) -> Iterator[_Product]:
    """Yield the multiplications in their order; matrices that the checkpoint holds as one are multiplied by at once."""
    operations = [
        operation
        for operation in block.operations
        if operation.kind is OperationKind.MATMUL and not _is_left_out(operation)
    ]
    biases = {weight.name for weight in block.weights if weight.name.endswith(".bias")}
    index = 0
    while index < len(operations):
        weights = _weights_like(block, operations[index])
        alike = _run_of_kind(operations, index)
        is_fused = len(weights) == 1 and len(alike) > 1
        done = alike if is_fused else alike[:1]
        has_bias = any(weight.name.removesuffix(".weight") + ".bias" in biases for weight in weights)
        yield _Product(outputs=tuple(operation.output for operation in done), has_bias=has_bias)
        index += len(done)


def _is_left_out(operation: Operation) -> bool:
    return operation.name == ROUTER or operation.name.startswith("expert_")


def _run_of_kind(operations: list[Operation], start: int) -> list[Operation]:
    """Return the operations from `start` on that read the same tensor: queries, keys and values, or gate and up."""
    run = []
    for operation in operations[start:]:
        if operation.inputs != operations[start].inputs:
            break
        run.append(operation)
    return run


def _weights_like(block: Block, operation: Operation) -> list[Weight]:
    """Return the matrices of the operation's half that lie the same way: first ones, or the last."""
    part = PART_OF_PREFIX.get(operation.name.split("_")[0], Part.ATTENTION)
    return [
        weight
        for weight in block.weights
        if weight.is_linear and weight.part is part and (weight.split is Split.ROW) is operation.is_row_parallel
    ]
