"""What one rank holds, row by row: the quantities that the phases add up.

All arrays have one entry for each row of `StageRows`; bytes unless the name
says otherwise. Source of the FSDP2 buffers: closed forms checked against traces
of FSDP2 with transformers (`profiles/fsdp2.toml`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planners.architecture import OperationKind, Part, Split, Weight
from planners.layout.candidates import Candidates, FloatArray, IntArray
from planners.memory.frozen import dequantized_matrix_bytes, frozen_bytes, whole_frozen_bytes
from planners.memory.job import BlockWeights, Job
from planners.memory.shards import (
    MOST_KEPT_ANSWERS,
    Divisions,
    Way,
    divisions,
    local,
    matrix_elements,
    moment_bytes,
    padded_elements,
    shard_elements,
    split_elements,
)
from planners.memory.stages import StageRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """A stage's states at rest.

    `layer_*` are one layer's, `root_*` those of embedding, last norm and head
    together, `head_*` those of last norm and head.
    """

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
    head_elements: FloatArray
    head_padded: FloatArray
    head_gradients: FloatArray
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
        return divisions(layouts, np.where(layouts.zero_stage >= from_stage, ranks, 1), job)

    by_parameters, by_optimizer = division(rules.parameters_from), division(rules.optimizer_from)
    by_gradients = by_parameters if rules.gradients_from == rules.parameters_from else division(rules.gradients_from)
    total = _StageSum(job, rows)

    def stored(by: Divisions) -> FloatArray:
        return total.of(lambda part: shard_elements(part, by))

    parameter_elements = stored(by_parameters)
    gradient_elements = parameter_elements if by_gradients is by_parameters else stored(by_gradients)
    accumulator_elements = (
        stored(division(rules.accumulators_from)) if states.accumulator else np.zeros(rows.owner.size)
    )
    master_elements = stored(by_optimizer) if states.master else np.zeros(rows.owner.size)
    has_gradients = np.isin(layouts.zero_stage, rules.gradient_zero_stages)[rows.owner]
    frozen = total.of(lambda part: by_parameters.spread(lambda way: frozen_bytes(part, way, job)))
    element_bytes = states.moment if job.optimizer.moment_bytes is None else job.optimizer.moment_bytes
    moments = total.of(lambda part: moment_bytes(part, by_optimizer, job.optimizer, element_bytes))
    parameters = parameter_elements * states.parameter + frozen
    masters = master_elements * states.master
    accumulators = accumulator_elements * states.accumulator
    to_host = layouts.offload[rows.owner]
    host = np.where(to_host >= 1, masters + moments + accumulators, 0.0) + np.where(to_host == 2, parameters, 0.0)
    if job.optimizer.paged_to_host:
        host = np.where(to_host >= 1, host, moments)
        moments = np.zeros_like(moments)
    layer_gradient_elements = total.largest_layer(lambda part: shard_elements(part, by_gradients))

    def whole_frozen(part: BlockWeights) -> FloatArray:
        return by_parameters.spread(lambda way: whole_frozen_bytes(part, way, job))

    def on_stages(quantity: Callable[[Job, Way], float]) -> FloatArray:
        return by_parameters.spread(lambda way: quantity(job, way))[rows.owner]

    return Holdings(
        parameters=np.where(to_host == 2, 0.0, parameters),
        gradients=np.where(has_gradients, gradient_elements * states.gradient, 0.0)
        + np.where(to_host >= 1, 0.0, accumulators),
        layer_gradients=layer_gradient_elements * states.gradient,
        optimizer=np.where(to_host >= 1, 0.0, masters + moments),
        host=host,
        local_parameters=parameter_elements,
        layer_elements=total.largest_layer(lambda part: split_elements(part, by_parameters)),
        layer_frozen=total.largest_layer(whole_frozen),
        layer_padded=total.largest_layer(lambda part: padded_elements(part, by_parameters)),
        root_elements=total.root(lambda part: split_elements(part, by_parameters)),
        root_frozen=total.root(whole_frozen),
        root_padded=total.root(lambda part: padded_elements(part, by_parameters)),
        head_elements=total.head(lambda part: split_elements(part, by_parameters)),
        head_padded=total.head(lambda part: padded_elements(part, by_parameters)),
        head_gradients=total.head(lambda part: shard_elements(part, by_gradients)) * states.gradient,
        stage_elements=total.of(lambda part: split_elements(part, by_parameters)),
        head_matrix_elements=np.where(rows.has_head, on_stages(_head_matrix), 0.0),
        largest_matrix_elements=on_stages(_largest_matrix),
        dequantized=on_stages(lambda _, way: max(dequantized_matrix_bytes(part, way, job) for part in job.layers)),
        dummy_gradients=on_stages(_dummy_gradient_bytes),
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
        total: FloatArray = np.where(self._rows.has_embedding, embedding, 0.0) + self.head(quantity)
        if self._has_copy.any():
            tied = quantity(_vocabulary_only(self._job.embedding))[self._owner]
            total = total + np.where(self._has_copy, tied, 0.0)
        return total

    def head(self, quantity: Callable[[BlockWeights], FloatArray]) -> FloatArray:
        """Return what of the quantity belongs to the last norm and to a head of its own."""
        return np.where(self._rows.has_head, quantity(self._job.head)[self._owner], 0.0)

    def largest_layer(self, quantity: Callable[[BlockWeights], FloatArray]) -> FloatArray:
        """Return the quantity of the largest kind of layer."""
        largest: FloatArray = np.max([quantity(part) for part in self._job.layers], axis=0)[self._owner]
        return largest


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _vocabulary_only(part: BlockWeights) -> BlockWeights:
    def chosen(weights: Sequence[Weight]) -> tuple[Weight, ...]:
        return tuple(weight for weight in weights if weight.split is Split.VOCABULARY)

    return BlockWeights(block=part.block, trainable=chosen(part.trainable), frozen=chosen(part.frozen))


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _head_matrix(job: Job, way: Way) -> int:
    """Return the elements of the head's own gradient; a frozen head has none."""
    part = job.embedding if job.model.tied_head else job.head
    return sum(
        local(weight, way)[0].stored_elements
        for weight in part.trainable
        if weight.split is Split.VOCABULARY or weight.part is Part.HEAD
    )


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _largest_matrix(job: Job, way: Way) -> int:
    return max((matrix_elements(weight, way) for part in job.layers for weight in part.trainable), default=0)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _dummy_gradient_bytes(job: Job, way: Way) -> int:
    """Return one compute-precision gradient of every distinct matrix of the layers, one for all experts."""
    if not job.profile.kernels.dummy_weight_gradients:
        return 0
    distinct = {
        (weight.name.rsplit(".", 2)[-2], weight.shape): matrix_elements(weight, way)
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
