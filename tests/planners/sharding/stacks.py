"""What every stack does with a tensor, element by element: the oracle of the property tests.

A model's weights are arrays of their own indices; padding is -1. Each rank's
tensors are made as the stack's own loader makes them, one rank at a time, with
none of the planner's formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import ModelSpec, Part, Split, Weight
from plimsoll.planners.sharding import ShardingPolicy, ShardLayout
from tests.planners.sharding.policies import NAMES

PADDED_TO = {"megatron": 128, "vllm": 64}


@dataclass
class Held:
    """One rank's tensor: the indices it holds, its shape, and what it takes in memory."""

    weight: str
    indices: np.ndarray
    stored: int


def even(array: np.ndarray, ranks: int, rank: int, axis: int) -> np.ndarray:
    size = array.shape[axis] // ranks
    assert size * ranks == array.shape[axis]
    return np.take(array, range(rank * size, (rank + 1) * size), axis=axis)


def torch_chunk(array: np.ndarray, ranks: int, rank: int, axis: int) -> np.ndarray:
    size = math.ceil(array.shape[axis] / ranks)
    stop = array.shape[axis]
    return np.take(array, range(min(rank * size, stop), min((rank + 1) * size, stop)), axis=axis)


def tensor_part(array: np.ndarray, weight: Weight, axis: int | None, ranks: int, rank: int, stack: str) -> np.ndarray:
    """Return a tensor-parallel rank's part as Megatron, vLLM or DTensor load it."""
    if weight.split is Split.VOCABULARY:
        if stack not in PADDED_TO:
            return torch_chunk(array, ranks, rank, 0)
        multiple = PADDED_TO[stack] * (ranks if stack == "megatron" else 1)
        missing = -len(array) % multiple
        padded = np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), constant_values=-1)
        return even(padded, ranks, rank, 0)
    if axis is None or weight.split is Split.REPLICATED:
        return array
    sections = weight.sections or ((array.shape[axis], weight.units),)
    if weight.is_fused:
        sections = ((array.shape[axis], weight.units),)
    parts, start = [], 0
    for length, units in sections:
        section = np.take(array, range(start, start + length), axis=axis)
        start += length
        if units and units < ranks and not (stack == "megatron" and weight.part is Part.ATTENTION):
            parts.append(even(section, units, rank * units // ranks, axis))  # a whole head on several ranks
        else:
            parts.append(even(section, ranks, rank, axis))
    return np.concatenate(parts, axis=axis)


def rank_tensors(
    spec: ModelSpec, layers: tuple[int, ...], layout: ShardLayout, policy: ShardingPolicy, rank: int
) -> list[Held]:
    """Return all that one rank holds, dense tensors first, then experts, then buffers."""
    stage, within = divmod(rank, layout.ranks_per_stage)
    arrays = stage_arrays(spec, layers, stage)
    shard = within // layout.tensor_parallel % layout.shard_ranks
    dense, experts, buffers = [], [], []
    for name, weight, array in arrays:
        if weight.experts > 1:
            experts.extend(expert_tensors(name, weight, array, layout, policy, within))
            continue
        part = tensor_part(
            array, weight, weight.dim, layout.tensor_parallel, within % layout.tensor_parallel, NAMES[policy]
        )
        (buffers if weight.is_buffer else dense).append((name, part, 0))
    held = cut(dense, layout.shard_ranks, shard, NAMES[policy])
    if experts:
        mesh = policy.expert_mesh(layout)
        own = within // (mesh.tensor * mesh.expert) % mesh.shard
        held += cut(experts, mesh.shard, own, NAMES[policy])
    return held + [Held(name, part, part.size) for name, part, _ in buffers]


def stage_arrays(spec: ModelSpec, layers: tuple[int, ...], stage: int) -> list[tuple[str, Weight, np.ndarray]]:
    """Return (name, weight, indices) of a stage; each weight's indices are its own, all experts' together."""
    first = sum(layers[:stage])
    wanted = []
    if stage == 0:
        wanted += [("", weight) for weight in spec.embedding.weights]
    for layer in range(first, first + layers[stage]):
        (block,) = [block for block in spec.layers if layer in block.layers]
        wanted += [(str(layer), weight) for weight in block.weights]
    if stage == len(layers) - 1:
        if stage and spec.tied_head:
            wanted += [("", weight) for weight in spec.embedding.weights if weight.split is Split.VOCABULARY]
        wanted += [("", weight) for weight in spec.head.weights]
    return [
        (
            weight.name.replace("{layer}", layer),
            weight,
            np.arange(weight.elements).reshape(
                weight.shape if weight.tensors == 1 else (weight.tensors, *weight.shape)
            ),
        )
        for layer, weight in wanted
    ]


def expert_tensors(name, weight, array, layout, policy, within):
    """Return a rank's experts: one tensor, or one an expert."""
    mesh = policy.expert_mesh(layout)
    tensor, expert = within % mesh.tensor, within // mesh.tensor % mesh.expert
    joined = weight.is_fused and len(array) != weight.experts
    each = array.reshape(weight.experts, -1, *array.shape[1:]) if joined else array
    dim = weight.dim if weight.dim is None or joined or not weight.is_fused else weight.dim - 1
    dealt = np.array_split(np.arange(weight.experts), mesh.expert)[expert]  # the first ranks get one more
    parts = [tensor_part(each[index], weight, dim, mesh.tensor, tensor, NAMES[policy]) for index in dealt]
    if NAMES[policy] == "megatron":
        return [(name, part, 0) for part in parts]
    stack = np.concatenate(parts) if joined else np.stack(parts)
    second = NAMES[policy] == "torchtitan" and mesh.shard * mesh.expert > weight.experts
    return [(name, stack, 1 if second else 0)]


def cut(tensors, ranks: int, rank: int, stack: str) -> list[Held]:
    """Return what ZeRO or FSDP leaves of a rank's tensors."""
    if ranks == 1 or stack in ("ddp", "vllm"):
        return [Held(name, part, part.size) for name, part, _ in tensors]
    if stack in ("fsdp2", "torchtitan"):
        return [
            Held(name, torch_chunk(part, ranks, rank, axis), torch_chunk(part, ranks, 0, axis).size)
            for name, part, axis in tensors
        ]
    if stack == "deepspeed-zero3":
        padded = (
            (name, np.pad(part.ravel(), (0, -part.size % ranks), constant_values=-1)) for name, part, _ in tensors
        )
        return [Held(name, even(flat, ranks, rank, 0), len(flat) // ranks) for name, flat in padded]
    return flat_buffer(tensors, ranks, rank, stack)


def flat_buffer(tensors, ranks: int, rank: int, stack: str) -> list[Held]:
    """Return a rank's equal part of one buffer of everything, tensor by tensor."""
    start_multiple, end_multiple = {
        "reference": (1, ranks), "fsdp1": (1, ranks), "nanotron": (1, ranks),
        "deepspeed-zero2": (1, 2 * ranks), "megatron": (64, math.lcm(ranks, 128)),
    }[stack]  # fmt: skip
    owners, values = [], []
    for index, (_, part, _) in reversed(list(enumerate(tensors))) if stack == "megatron" else enumerate(tensors):
        gap = -len(owners) % start_multiple
        owners += [-1] * gap + [index] * part.size
        values += [-1] * gap + part.ravel().tolist()
    gap = -len(owners) % end_multiple
    owner, value = np.array(owners + [-1] * gap), np.array(values + [-1] * gap)
    owner, value = even(owner, ranks, rank, 0), even(value, ranks, rank, 0)
    return [
        Held(name, value[owner == index], int((owner == index).sum())) for index, (name, _, _) in enumerate(tensors)
    ]
