"""What one rank holds, row by row: the quantities that the phases add up.

All arrays have one entry for each row of `StageRows`; bytes unless the name
says otherwise. Source of the FSDP2 buffers: closed forms checked against traces
of FSDP2 with transformers (`profiles/fsdp2.toml`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import OperationKind, Part, Split, Weight
from planners.layout.candidates import Candidates, FloatArray, IntArray
from planners.layout.experts import expert_tensor_ranks
from planners.memory.frozen import dequantized_matrix_bytes, frozen_bytes, frozen_weight_bytes
from planners.memory.job import BlockWeights, Job
from planners.memory.shards import (
    Divisions,
    divisions,
    moment_bytes,
    over_experts,
    padded_elements,
    shard_elements,
    split_elements,
)
from planners.memory.stages import StageRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """A stage's states at rest, `layer_*` for one layer and `root_*` for embedding, norm and head."""

    parameters: FloatArray
    gradients: FloatArray
    layer_gradients: FloatArray
    optimizer: FloatArray
    host: FloatArray
    local_parameters: FloatArray
    layer_elements: FloatArray
    layer_frozen: FloatArray
    layer_padded: FloatArray
    root_elements: FloatArray
    root_frozen: FloatArray
    root_padded: FloatArray
    stage_elements: FloatArray
    head_matrix_elements: FloatArray
    largest_matrix_elements: FloatArray
    dequantized: FloatArray
    dummy_gradients: FloatArray


def shard_ranks(layouts: Candidates, job: Job) -> IntArray:
    """Return how many ranks divide what ZeRO shards; some stacks count the context ranks too."""
    ranks = layouts.shard_group
    return ranks * layouts.context_parallel if job.profile.sharding.over_context else ranks


def holdings(layouts: Candidates, rows: StageRows, job: Job) -> Holdings:
    """Return the states of every row, as the profile shards and widens them."""
    rules, states = job.profile.sharding, job.states
    ranks = shard_ranks(layouts, job)

    def division(from_stage: int) -> Divisions:
        return divisions(
            layouts.tensor_parallel,
            np.where(layouts.zero_stage >= from_stage, ranks, 1),
            layouts.expert_parallel,
            expert_tensor_parallel=expert_tensor_ranks(layouts, job),
            cuts_whole_experts=rules.cuts_whole_experts,
        )

    by_parameters, by_optimizer = division(rules.parameters_from), division(rules.optimizer_from)
    by_gradients = by_parameters if rules.gradients_from == rules.parameters_from else division(rules.gradients_from)
    total = _StageSum(job, rows)

    def stored(by: Divisions) -> FloatArray:
        return total.of(lambda part: shard_elements(part.trainable, by, flat=rules.flat))

    parameter_elements = stored(by_parameters)
    gradient_elements = parameter_elements if by_gradients is by_parameters else stored(by_gradients)
    accumulator_elements = (
        stored(division(rules.accumulators_from)) if states.accumulator else np.zeros(rows.owner.size)
    )
    master_elements = stored(by_optimizer) if states.master else np.zeros(rows.owner.size)
    has_gradients = np.isin(layouts.zero_stage, rules.gradient_zero_stages)[rows.owner]
    frozen = total.of(lambda part: frozen_bytes(part.frozen, by_parameters, job))
    element_bytes = states.moment if job.optimizer.moment_bytes is None else job.optimizer.moment_bytes
    moments = total.of(
        lambda part: moment_bytes(
            part.trainable, by_optimizer, flat=rules.flat, optimizer=job.optimizer, element_bytes=element_bytes
        )
    )
    parameters = parameter_elements * states.parameter + frozen
    masters = master_elements * states.master
    accumulators = accumulator_elements * states.accumulator
    to_host = layouts.offload[rows.owner]
    host = np.where(to_host >= 1, masters + moments + accumulators, 0.0) + np.where(to_host == 2, parameters, 0.0)
    if job.optimizer.paged_to_host:
        host = np.where(to_host >= 1, host, moments)
        moments = np.zeros_like(moments)
    layer_gradient_elements = total.largest_layer(
        lambda part: shard_elements(part.trainable, by_gradients, flat=rules.flat)
    )
    return Holdings(
        parameters=np.where(to_host == 2, 0.0, parameters),
        gradients=np.where(has_gradients, gradient_elements * states.gradient, 0.0)
        + np.where(to_host >= 1, 0.0, accumulators),
        layer_gradients=layer_gradient_elements * states.gradient,
        optimizer=np.where(to_host >= 1, 0.0, masters + moments),
        host=host,
        local_parameters=parameter_elements,
        layer_elements=total.largest_layer(lambda part: split_elements(part.trainable, by_parameters)),
        layer_frozen=total.largest_layer(lambda part: _frozen_whole(part, by_parameters, job)),
        layer_padded=total.largest_layer(lambda part: padded_elements(part.trainable, by_parameters, flat=rules.flat)),
        root_elements=total.root(lambda part: split_elements(part.trainable, by_parameters)),
        root_frozen=total.root(lambda part: _frozen_whole(part, by_parameters, job)),
        root_padded=total.root(lambda part: padded_elements(part.trainable, by_parameters, flat=rules.flat)),
        stage_elements=total.of(lambda part: split_elements(part.trainable, by_parameters)),
        head_matrix_elements=np.where(rows.has_head, _by_degree(layouts, rows, lambda t: _head_matrix(job, t)), 0.0),
        largest_matrix_elements=_by_degree(layouts, rows, lambda t: _largest_matrix(job, t)),
        dequantized=_by_degree(
            layouts, rows, lambda t: max(dequantized_matrix_bytes(part.frozen, t, job) for part in job.layers)
        ),
        dummy_gradients=_by_degree(layouts, rows, lambda t: _dummy_gradient_bytes(job, t)),
    )


class _StageSum:
    """Adds a quantity of single layers up over what each stage holds."""

    def __init__(self, job: Job, rows: StageRows) -> None:
        self._job = job
        self._rows = rows
        self._owner = rows.owner
        # With a tied head on another stage than the embedding, the matrix stands on both.
        self._has_copy = rows.has_head & ~rows.has_embedding & job.model.tied_head

    def of(self, quantity: Callable[[BlockWeights], FloatArray]) -> FloatArray:
        """Return layers, embedding and head together."""
        total = self.root(quantity)
        for count, part in zip(self._rows.layers_of_kind, self._job.layers, strict=True):
            total = total + count * quantity(part)[self._owner]
        return total

    def root(self, quantity: Callable[[BlockWeights], FloatArray]) -> FloatArray:
        """Return what of the quantity belongs to embedding, last norm and head."""
        embedding = quantity(self._job.embedding)[self._owner]
        head = quantity(self._job.head)[self._owner]
        total: FloatArray = np.where(self._rows.has_embedding, embedding, 0.0) + np.where(
            self._rows.has_head, head, 0.0
        )
        if self._has_copy.any():
            tied = quantity(_vocabulary_only(self._job.embedding))[self._owner]
            total = total + np.where(self._has_copy, tied, 0.0)
        return total

    def largest_layer(self, quantity: Callable[[BlockWeights], FloatArray]) -> FloatArray:
        """Return the quantity of the largest kind of layer."""
        largest: FloatArray = np.max([quantity(part) for part in self._job.layers], axis=0)[self._owner]
        return largest


def _vocabulary_only(part: BlockWeights) -> BlockWeights:
    def chosen(weights: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(weight for weight in weights if weight.split is Split.VOCABULARY)

    return BlockWeights(block=part.block, trainable=chosen(part.trainable), frozen=chosen(part.frozen))


def _frozen_whole(part: BlockWeights, by: Divisions, job: Job) -> FloatArray:
    """Return the frozen bytes of a gathered layer: the splits over tensors and experts alone divide it."""

    def whole(weights: Sequence[Weight], cut: Divisions) -> FloatArray:
        table = {
            degree: float(sum(frozen_weight_bytes(weight, degree, job) for weight in weights))
            for degree in np.unique(cut.tensor_parallel).tolist()
        }
        return np.array([table[degree] for degree in cut.tensor_parallel.tolist()])[cut.inverse]

    return over_experts(whole, part.frozen, by)


def _by_degree(layouts: Candidates, rows: StageRows, quantity: Callable[[int], float]) -> FloatArray:
    degrees, inverse = np.unique(layouts.tensor_parallel, return_inverse=True)
    return np.array([float(quantity(degree)) for degree in degrees.tolist()])[inverse][rows.owner]


def _head_matrix(job: Job, tensor_parallel: int) -> int:
    """Return the elements of the head's own gradient; a frozen head has none."""
    part = job.embedding if job.model.tied_head else job.head
    return sum(
        weight.local_elements(tensor_parallel)
        for weight in part.trainable
        if weight.split is Split.VOCABULARY or weight.part is Part.HEAD
    )


def _largest_matrix(job: Job, tensor_parallel: int) -> int:
    return max(
        (weight.local_elements(tensor_parallel) // weight.experts for part in job.layers for weight in part.trainable),
        default=0,
    )


def _dummy_gradient_bytes(job: Job, tensor_parallel: int) -> int:
    """Return one compute-precision gradient of every distinct matrix of the layers, one for all experts."""
    if not job.profile.kernels.dummy_weight_gradients:
        return 0
    distinct = {
        (weight.name.rsplit(".", 2)[-2], weight.shape): weight.local_elements(tensor_parallel) // weight.experts
        for part in job.layers
        for weight in part.trainable
        if weight.is_linear
    }
    return job.precision.compute_bytes * sum(distinct.values())


def rotary_table_bytes(job: Job) -> int:
    """Return the cosines and sines of every position, for all layers once."""
    for part in job.layers:
        kinds = {op.kind for op in part.block.operations}
        if OperationKind.ROTARY in kinds:
            head_dim = max(op.key_dim for op in part.block.operations)
            return 2 * job.precision.compute_bytes * head_dim * job.sequence_length
    return 0


def adapter_activation_bytes(part: BlockWeights, job: Job) -> float:
    """Return the bytes a token of the adapters' narrow outputs, which the second factor keeps."""
    narrow = sum(weight.shape[0] for weight in part.trainable if weight.name.endswith("lora_A.weight"))
    return 0.0 if job.method == "full" else float(narrow * job.precision.compute_bytes)
