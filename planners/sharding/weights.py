"""What of one weight stands on a tensor-parallel and expert-parallel rank, before ZeRO or FSDP cuts it.

Every stack refuses degrees that do not divide heads or features; what does not
divide and is legal all the same is the vocabulary (padded or cut in ceilings), the
key-value heads (replicated or cut through) and, in vLLM, the number of experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.sharding.cuts import LocalTensor
from plimsoll.planners.sharding.layout import Mesh, ShardLayout
from plimsoll.planners.sharding.policy import KeyValueHeads, ShardingPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeight:
    """A weight on one rank: so many tensors alike (an expert's each, where a stack keeps experts apart)."""

    tensor: LocalTensor
    tensors: int

    @property
    def stored_elements(self) -> int:
        """Return all its elements, padding included."""
        return self.tensors * self.tensor.stored_elements


def is_expert(weight: Weight) -> bool:
    """Return whether expert parallelism deals the weight out."""
    return weight.experts > 1


def local_weight(
    weight: Weight, mesh: Mesh, policy: ShardingPolicy, *, tensor_rank: int = 0, expert_rank: int = 0
) -> LocalWeight:
    """Return what stands on one rank; raises `ImpossibleLayout` for degrees the stack would refuse."""
    if not is_expert(weight):
        return LocalWeight(tensor=_dense(weight, mesh.tensor, policy, tensor_rank), tensors=1)
    first, last = expert_span(weight.experts, mesh.expert, expert_rank, policy)
    inner, dim = _one_expert(weight)
    shape = _divided(weight, inner, dim, mesh.tensor, policy)
    if not policy.stacks_experts:
        tensor = LocalTensor(shape=shape, elements=math.prod(shape))
        return LocalWeight(tensor=tensor, tensors=last - first)
    shape = _stacked(weight, last - first, shape)
    cut_dim = policy.expert_cut_dim(weight.experts, mesh)
    return LocalWeight(tensor=LocalTensor(shape=shape, elements=math.prod(shape), cut_dim=cut_dim), tensors=1)


def checkpoint_tensor(weight: Weight, layout: ShardLayout, policy: ShardingPolicy) -> tuple[int, ...]:
    """Return what stands of one of its checkpoint's tensors on the rank that holds most, before ZeRO or FSDP."""
    if not is_expert(weight):
        return local_weight(weight, layout.dense_mesh, policy).tensor.shape
    mesh = policy.expert_mesh(layout)
    inner, dim = _one_expert(weight)
    shape = _divided(weight, inner, dim, mesh.tensor, policy)
    if not weight.is_fused:
        return shape
    first, last = expert_span(weight.experts, mesh.expert, 0, policy)
    return _stacked(weight, last - first, shape)


def expert_span(experts: int, expert_parallel: int, expert_rank: int, policy: ShardingPolicy) -> tuple[int, int]:
    """Return the first expert of a rank and the one after its last; they are dealt out in order.

    Source: vLLM, model_executor/layers/fused_moe/layer.py, determine_expert_map
    ("linear" placement; the first ranks have one more where they do not divide).
    """
    base, extra = divmod(experts, expert_parallel)
    if base == 0 or (extra and not policy.deals_experts_unevenly):
        raise ImpossibleLayout(
            f"{experts} experts do not divide over expert_parallel {expert_parallel}.",
            rule="experts-divide",
            pointer="/layout/expert_parallel",
        )
    first = expert_rank * base + min(expert_rank, extra)
    return first, first + base + (expert_rank < extra)


def expert_boundaries(weight: Weight, mesh: Mesh) -> set[int]:
    """Return the expert ranks from which on a rank holds fewer experts than those before."""
    return {weight.experts % mesh.expert} if is_expert(weight) else set()


def tensor_boundaries(weight: Weight, mesh: Mesh, policy: ShardingPolicy) -> set[int]:
    """Return the tensor ranks from which on a rank holds another shape, or fewer of the model's elements."""
    if weight.split is not Split.VOCABULARY:
        return set()
    rows = weight.shape[0]
    full = rows // policy.vocabulary_rows(rows, mesh.tensor)
    return {full, full + 1}


def tensor_copies(weight: Weight, tensor_parallel: int, policy: ShardingPolicy) -> tuple[tuple[int, int], ...]:
    """Return (elements, copies) of the parts of one tensor: how many tensor-parallel ranks hold each alike."""
    elements = math.prod(weight.shape)
    if weight.dim is None or weight.split is Split.REPLICATED:
        return ((elements, tensor_parallel),)
    length = weight.shape[weight.dim]
    return tuple(
        (elements // length * part, _copies(units, tensor_parallel, weight, policy))
        for part, units in _sections(weight)
    )


def _dense(weight: Weight, tensor_parallel: int, policy: ShardingPolicy, tensor_rank: int) -> LocalTensor:
    if weight.split is not Split.VOCABULARY:
        shape = _divided(weight, weight.shape, weight.dim, tensor_parallel, policy)
        return LocalTensor(shape=shape, elements=math.prod(shape))
    rows, width = weight.shape[0], math.prod(weight.shape[1:])
    most = policy.vocabulary_rows(rows, tensor_parallel)
    held = min(max(rows - tensor_rank * most, 0), most)
    local = most if policy.vocabulary_multiple else held
    return LocalTensor(shape=(local, *weight.shape[1:]), elements=held * width)


def _one_expert(weight: Weight) -> tuple[tuple[int, ...], int | None]:
    """Return the shape of one expert's tensor and the dimension that tensor parallelism divides."""
    if not weight.is_fused:
        return weight.shape, weight.dim
    if _joins_rows(weight):
        return (weight.shape[0] // weight.experts, *weight.shape[1:]), weight.dim
    return weight.shape[1:], None if weight.dim is None else weight.dim - 1


def _stacked(weight: Weight, experts: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of so many experts as one tensor."""
    return (experts * shape[0], *shape[1:]) if _joins_rows(weight) else (experts, *shape)


def _joins_rows(weight: Weight) -> bool:
    """Return whether the experts' rows follow one another in one matrix (DBRX), with no dimension of their own."""
    return weight.is_fused and weight.shape[0] != weight.experts


def _divided(
    weight: Weight, shape: tuple[int, ...], dim: int | None, tensor_parallel: int, policy: ShardingPolicy
) -> tuple[int, ...]:
    """Return the shape on every rank; all are alike."""
    if dim is None or weight.split is Split.REPLICATED or tensor_parallel == 1:
        return shape
    sections = ((shape[dim], weight.units),) if _joins_rows(weight) else _sections(weight)
    local = 0
    for length, units in sections:
        divided = length * _copies(units, tensor_parallel, weight, policy)
        if divided % tensor_parallel:
            raise _uneven(weight, f"dimension {length}", tensor_parallel)
        local += divided // tensor_parallel
    return (*shape[:dim], local, *shape[dim + 1 :])


def _sections(weight: Weight) -> tuple[tuple[int, int], ...]:
    if weight.sections or weight.dim is None:
        return weight.sections
    return ((weight.shape[weight.dim], weight.units),)


def _copies(units: int, tensor_parallel: int, weight: Weight, policy: ShardingPolicy) -> int:
    """Return how many ranks hold each unit; 1 where units are divided, or cut through, among the ranks."""
    if not units or units % tensor_parallel == 0:
        return 1
    divides = tensor_parallel % units == 0
    if divides and policy.key_value_heads is KeyValueHeads.REPLICATED:
        return tensor_parallel // units
    if divides and policy.key_value_heads is KeyValueHeads.CUT and weight.part is Part.ATTENTION:
        return 1
    raise _uneven(weight, f"{units} heads or groups", tensor_parallel)


def _uneven(weight: Weight, what: str, tensor_parallel: int) -> ImpossibleLayout:
    name = weight.name.replace("{layer}", "*").replace("{expert}", "*")
    return ImpossibleLayout(
        f"{what} of {name} cannot be divided over {tensor_parallel} ranks.",
        rule="tensor-parallel-divides",
        pointer="/layout/tensor_parallel",
    )
