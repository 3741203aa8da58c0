"""What one rank holds, row by row: the quantities that programs add up.

All arrays broadcast against those of `StageRows`; bytes unless the name says
otherwise. Source of the FSDP2 buffers: closed forms checked against traces
of FSDP2 with transformers (docs/agreement.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np

from plimsoll.planners.architecture import Part, Split, Weight
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.terms import PIPEDREAM, ZERO_STAGES
from plimsoll.planners.jobs.job import BlockWeights, Job, low_precision_matrices
from plimsoll.planners.jobs.optimizers import EIGHT_BIT_BYTES, EIGHT_BIT_SCALE_BYTES
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray, any_of, once
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.dealt import dealt_states
from plimsoll.planners.memory.frozen import base_width, dequantized_matrix_bytes, frozen_bytes, whole_frozen_bytes
from plimsoll.planners.memory.shards import (
    MOST_KEPT_ANSWERS,
    WHOLE,
    Divisions,
    Way,
    divisions,
    local,
    matrix_elements,
    moment_bytes,
    padded_elements,
    shard_elements,
    small_moment_bytes,
    split_elements,
)
from plimsoll.planners.memory.stage_parts import copies_of_table, vocabulary_only
from plimsoll.planners.sharding.parameters import updated_as_one

FEED_FORWARD_PARTS = (Part.FEED_FORWARD, Part.EXPERT, Part.SHARED_EXPERT, Part.ROUTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHoldings:
    """One layer of a kind, in elements unless the name says bytes.

    Of what learns: `padded` as it is gathered into a buffer, `feed_forward` behind the second norm, `behind_attention`
    with the attention's last matrix; `last_experts` are the experts' last matrices, where one tensor holds them all.
    """

    elements: FloatArray
    frozen_bytes: FloatArray
    padded: FloatArray
    gradient_bytes: FloatArray
    last_matrix: FloatArray
    feed_forward: FloatArray
    behind_attention: FloatArray
    experts: FloatArray
    experts_padded: FloatArray
    expert_gradient_bytes: FloatArray
    last_experts: FloatArray
    last_weight: FloatArray
    dequantized_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """A stage's states at rest, on the device and on the `host`; `stage_elements` learn, before ZeRO divides them."""

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    host: FloatArray
    host_parameters: FloatArray
    host_gradients: FloatArray
    local_parameters: FloatArray
    stage_elements: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings(States):
    """A stage's states at rest, and what its program gathers, reduces and updates of them.

    `root_*` are those of embedding, last norm and head together, `head_*` those of last norm and head, `layers` those
    of one layer of each kind, and `layers_frozen` whole bytes of what does not learn in all of a stage's; what is
    `sent` waits on the host for the optimizer, and is on the device only as it is reduced. `table_elements` are the
    embedding's matrix where layers for multi-token prediction embed tokens. `update_gather_bytes` are copies of updated
    parameters that were dealt out whole, `widened_gradients` copies in fp32 of gradients that the update reads.
    """

    layers_frozen: FloatArray
    root_elements: FloatArray
    root_frozen: FloatArray
    head_frozen: FloatArray
    root_padded: FloatArray
    root_gradients: FloatArray
    head_elements: FloatArray
    head_padded: FloatArray
    head_gradients: FloatArray
    root_gradients_sent: FloatArray
    head_gradients_sent: FloatArray
    head_matrix_elements: FloatArray
    table_elements: FloatArray
    largest_matrix_elements: FloatArray
    update_gather_bytes: FloatArray
    widened_gradients: FloatArray
    dummy_gradients: FloatArray
    last_of_head: FloatArray
    layers: tuple[LayerHoldings, ...]


STATES = tuple(entry.name for entry in fields(States))


@once
def shard_ranks(layouts: Candidates, job: Job) -> IntArray:
    """Return how many ranks divide what ZeRO shards; some stacks count the context ranks too."""
    ranks = layouts.shard_group
    return ranks * layouts.context_parallel if job.profile.sharding.over_context else ranks


class _Divided:
    """Knows how every state of a job is divided, and what stages have of those that are asked for again."""

    def __init__(self, layouts: Candidates, rows: StageRows, job: Job) -> None:
        # It is kept with the layouts, and so does not keep them.
        self.job, self.stages = job, _Stages(job, rows)
        rules, ranks = job.profile.sharding, shard_ranks(layouts, job)
        divided_from = {rules.parameters_from, rules.optimizer_from, rules.gradients_from}
        if job.states.accumulator:
            divided_from.add(rules.accumulators_from)
        self._divisions = {
            zero_stage: divisions(layouts, np.where(layouts.zero_stage >= zero_stage, ranks, WHOLE), job)
            for zero_stage in divided_from
        }
        self._stored: dict[int, _Amounts] = {}
        self.by_parameters = self._divisions[rules.parameters_from]
        self.by_optimizer = self._divisions[rules.optimizer_from]
        self.by_gradients = self._divisions[rules.gradients_from]
        self.gradients = self.stored(rules.gradients_from)
        self.frozen = _frozen(self.stages, self.by_parameters, job)
        self.split = self.stages.amounts(lambda part: split_elements(part, self.by_parameters))
        self.moment_bytes = job.states.moment if job.optimizer.moment_bytes is None else job.optimizer.moment_bytes
        self.dealt = None
        if job.profile.update.deals_parameters:
            self.dealt = dealt_states(rows, self.by_optimizer, job, self.moment_bytes)
        # Where they are on the host, a unit's is on the device only from its reduction until it is sent.
        self.on_device = np.ones(1)
        if any_of(layouts.offload):
            self.on_device = np.where(are_gradients_sent(layouts, job), 0.0, 1.0)

    def stored(self, zero_stage: int) -> _Amounts:
        """Return the elements that a rank stores of such a state."""
        if zero_stage not in self._stored:
            by = self._divisions[zero_stage]
            self._stored[zero_stage] = self.stages.amounts(lambda part: shard_elements(part, by))
        return self._stored[zero_stage]

    def moments(self) -> FloatArray:
        """Return the bytes of the optimizer's moments, where they are divided."""
        job, element_bytes = self.job, self.moment_bytes
        embedding_bytes = FP32_BYTES if _is_widened(job) else element_bytes
        return self.stages.amounts(
            lambda part: moment_bytes(
                part, self.by_optimizer, job.optimizer, embedding_bytes if part is job.embedding else element_bytes
            )
        ).total()


def states(layouts: Candidates, rows: StageRows, job: Job) -> States:
    """Return the states of every row at rest, as the profile shards and widens them."""
    return _states(layouts, ByIdentity(rows), job)


@once
def _divided(layouts: Candidates, rows: ByIdentity[StageRows], job: Job) -> _Divided:
    return _Divided(layouts, rows.value, job)


@once
def _states(layouts: Candidates, same: ByIdentity[StageRows], job: Job) -> States:
    own, widths, rules = _divided(layouts, same, job), job.states, job.profile.sharding
    nothing, to_host = np.zeros(1), layouts.offload
    local_parameters, parts = own.stored(rules.parameters_from).total(), own.stored(rules.optimizer_from).total()
    parameters = local_parameters * widths.parameter + own.frozen.stored
    parameters = parameters + _low_precision_weights(own.stages, own.by_parameters, job)
    parameters = parameters * _weight_versions(same.value, job)
    has_gradients = in_zero_stages(layouts.zero_stage, rules.gradient_zero_stages)
    gradients = np.where(has_gradients, own.gradients.total() * widths.gradient, 0.0)
    accumulators = own.stored(rules.accumulators_from).total() * widths.accumulator if widths.accumulator else nothing
    if own.dealt is None:
        masters, moments = parts * widths.master if widths.master else nothing, own.moments()
    else:
        masters, moments = nothing, own.dealt.state_bytes
    resident = moments
    if job.optimizer.paged_to_host:
        resident = _not_paged(own.stages, own.by_optimizer, job, own.moment_bytes)
    at_rest = States(
        parameters=parameters,
        gradients=gradients + accumulators,
        optimizer=masters + resident,
        host=moments - resident if job.optimizer.paged_to_host else nothing,
        host_parameters=nothing,
        host_gradients=nothing,
        local_parameters=local_parameters,
        stage_elements=own.split.total(),
    )
    if not any_of(to_host):
        return at_rest
    host_parameters = np.where(to_host == 2, parameters, 0.0)
    waiting = parts * job.host_gradient_bytes if job.host_gradient_bytes != widths.accumulator else accumulators
    copies = parts * 2 * FP32_BYTES if job.profile.host.copies_parameters and not widths.master else nothing
    host = np.where(to_host >= 1, masters + moments + waiting + copies, 0.0) + host_parameters
    host_gradients = np.where(_waits_in_own_format(layouts, job), gradients * (1.0 - own.on_device), 0.0)
    host = host + host_gradients
    if job.profile.host.flat_buffer_stages:
        has_buffer = in_zero_stages(layouts.zero_stage, job.profile.host.flat_buffer_stages)
        host = host + np.where((to_host == 1) & has_buffer, parts * widths.parameter, 0.0)
    return replace(
        at_rest,
        parameters=np.where(to_host == 2, 0.0, parameters),
        gradients=gradients * own.on_device + np.where(to_host >= 1, 0.0, accumulators),
        optimizer=np.where(to_host >= 1, 0.0, masters + resident),
        host=np.where(to_host >= 1, host, at_rest.host),
        host_parameters=host_parameters,
        host_gradients=host_gradients,
    )


def holdings(layouts: Candidates, rows: StageRows, job: Job) -> Holdings:
    """Return the states of every row with what its program gathers, reduces and updates."""
    own, at_rest = _divided(layouts, ByIdentity(rows), job), states(layouts, rows, job)
    padded = own.stages.amounts(lambda part: padded_elements(part, own.by_parameters))
    root_gradients = own.gradients.root() * job.states.gradient
    head_gradients = own.gradients.head_alone() * job.states.gradient
    return Holdings(
        **{name: getattr(at_rest, name) for name in STATES},
        layers_frozen=own.frozen.of_layers,
        root_elements=own.split.root(),
        root_frozen=own.frozen.root,
        head_frozen=own.frozen.head,
        root_padded=padded.root(),
        root_gradients=root_gradients * own.on_device,
        head_elements=own.split.head_alone(),
        head_padded=padded.head_alone(),
        head_gradients=head_gradients * own.on_device,
        root_gradients_sent=root_gradients * (1.0 - own.on_device),
        head_gradients_sent=head_gradients * (1.0 - own.on_device),
        head_matrix_elements=np.where(rows.has_head, own.by_parameters.spread(_head_matrix, _head_part(job)), 0.0),
        table_elements=np.where(rows.has_multi_token, own.by_parameters.spread(_head_matrix, job.embedding), 0.0)
        if job.multi_token is not None
        else np.zeros(1),
        largest_matrix_elements=functools.reduce(
            np.maximum,
            [
                own.by_parameters.spread(
                    _largest_updated if job.profile.update.joins_projections else _largest_matrix, part
                )
                for part in job.layers
            ],
        ),
        update_gather_bytes=np.zeros(1) if own.dealt is None else own.dealt.gathered_elements * job.states.parameter,
        widened_gradients=_widened_gradients(own, job),
        dummy_gradients=_dummy_gradient_bytes(job, rows, own.by_parameters),
        last_of_head=np.where(rows.has_head, own.by_parameters.spread(_last_weight, job.head), 0.0),
        layers=tuple(
            LayerHoldings(
                elements=own.split.layers[kind],
                frozen_bytes=own.frozen.layers[kind],
                padded=padded.layers[kind],
                gradient_bytes=own.gradients.layers[kind] * job.states.gradient,
                last_matrix=own.by_parameters.spread(_last_matrix, part),
                feed_forward=own.by_parameters.spread(_feed_forward_weights, part),
                behind_attention=own.by_parameters.spread(_weights_behind_attention, part),
                experts=_experts_of(split_elements, part, job, own.by_parameters),
                experts_padded=_experts_of(padded_elements, part, job, own.by_parameters),
                expert_gradient_bytes=_experts_of(shard_elements, part, job, own.by_gradients) * job.states.gradient,
                last_experts=own.by_parameters.spread(_last_stacked_matrices, part),
                last_weight=own.by_parameters.spread(_last_weight, part),
                dequantized_bytes=own.frozen.dequantized_of[kind],
            )
            for kind, part in enumerate(job.layers)
        ),
    )


def _widened_gradients(own: _Divided, job: Job) -> FloatArray:
    """Return the fp32 copies of narrower gradients that an update of master weights makes of a rank's part."""
    states = job.states
    is_narrow = states.gradient < FP32_BYTES and states.master > 0 and states.moment == FP32_BYTES
    if not (job.profile.update.widens_gradients and is_narrow):
        return np.zeros(1)
    return own.stored(job.profile.sharding.optimizer_from).total() * float(FP32_BYTES)


def _is_widened(job: Job) -> bool:
    """Return whether the embedding's states are in fp32, of an optimizer that has eight bits for others."""
    return job.profile.widens_embedding_states and job.optimizer.moment_bytes == EIGHT_BIT_BYTES


def _not_paged(model: _Stages, by: Divisions, job: Job, element_bytes: float) -> FloatArray:
    """Return what stays on the device of moments that are paged: those of small tensors, and the scales of eight bits.

    Source: bitsandbytes 0.50, optim/optimizer.py, `init_state` (`absmax1`, `absmax2`).
    """
    kind, scale_bytes = job.optimizer, 0.0
    if kind.moment_bytes == EIGHT_BIT_BYTES:
        element_bytes, scale_bytes = 1.0, EIGHT_BIT_SCALE_BYTES

    def resident(part: BlockWeights) -> FloatArray:
        small = small_moment_bytes(part, by, kind, element_bytes)
        is_widened = part is job.embedding and _is_widened(job)
        return small if is_widened or not scale_bytes else small + moment_bytes(part, by, kind, scale_bytes)

    return model.amounts(resident).total()


def are_gradients_sent(layouts: Candidates, job: Job) -> BoolArray:
    """Return where gradients follow the optimizer to the host."""
    stages = job.profile.host.gradient_stages
    sent: BoolArray = (layouts.offload >= 1) & in_zero_stages(layouts.zero_stage, stages)
    return sent


def _waits_in_own_format(layouts: Candidates, job: Job) -> BoolArray:
    """Return where gradients that were sent to the host wait there in their own format.

    Those of the last micro-batch go straight into a flat buffer, where there is one; one micro-batch needs no other
    place.
    """
    is_flat = in_zero_stages(layouts.zero_stage, job.profile.host.flat_buffer_stages)
    waits: BoolArray = ~is_flat | (layouts.micro_batches(job.global_batch_size) > 1)
    return waits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frozen:
    """Bytes of the weights that do not learn: what a stage stores, and what of it a gather makes whole."""

    stored: FloatArray
    of_layers: FloatArray
    root: FloatArray
    head: FloatArray
    layers: tuple[FloatArray, ...]
    dequantized_of: tuple[FloatArray, ...]


def _frozen(model: _Stages, by: Divisions, job: Job) -> _Frozen:
    """Return the frozen weights' bytes; zeros that broadcast where everything learns."""
    if not any(part.frozen for part in job.parts):
        nothing = np.zeros(1)
        nothings = (nothing,) * len(job.layers)
        return _Frozen(
            stored=nothing,
            of_layers=nothing,
            root=nothing,
            head=nothing,
            layers=nothings,
            dequantized_of=nothings,
        )
    width = base_width(job)
    stored = model.amounts(lambda part: by.spread(frozen_bytes, part, width))
    whole = model.amounts(lambda part: by.spread(whole_frozen_bytes, part, width))
    unpacked = tuple(by.spread(dequantized_matrix_bytes, part, width) for part in job.layers)
    return _Frozen(
        stored=stored.total(),
        of_layers=whole.of_layers(),
        root=whole.root(),
        head=whole.head_alone(),
        layers=whole.layers,
        dequantized_of=unpacked,
    )


def _weight_versions(rows: StageRows, job: Job) -> FloatArray:
    """Return how many versions of its weights a stage has: PipeDream keeps one for each micro-batch in flight."""
    return np.maximum(rows.in_flight, 1.0) if job.pipeline_schedule == PIPEDREAM else np.ones(1)


def _low_precision_weights(model: _Stages, by: Divisions, job: Job) -> FloatArray:
    """Return what the layers' matrices in 8 or 4 bits, which ZeRO does not divide, take over those in the stored width.

    Weights that lie so alone are these copies.
    """
    if job.low_precision is None:
        return np.zeros(1)
    matrices = model.amounts(lambda part: split_elements(low_precision_matrices(part), by))
    stored = job.states.parameter if job.method == "full" else job.frozen_bytes
    spared = stored if job.low_precision_weights else 0
    result: FloatArray = (matrices.total() - matrices.root()) * (job.low_precision.weight_copy_bytes - spared)
    return result


def in_zero_stages(zero_stage: IntArray, wanted: Sequence[int]) -> BoolArray:
    """Return where a layout's ZeRO stage is one of `wanted`."""
    return _is_wanted(tuple(wanted))[zero_stage]


@functools.cache
def _is_wanted(wanted: tuple[int, ...]) -> BoolArray:
    return np.array([stage in wanted for stage in ZERO_STAGES])


def has_gathering(zero_stage: IntArray, job: Job, *ways: str) -> BoolArray:
    """Return where the weights are held in one of these ways, as the profile says for each ZeRO stage."""
    return in_zero_stages(
        zero_stage, [int(stage) for stage, way in job.profile.weights.gathering.items() if way in ways]
    )


class _Stages:
    """Knows which parts of the model each stage holds."""

    def __init__(self, job: Job, rows: StageRows) -> None:
        self._job = job
        self._rows = rows
        self._copies = copies_of_table(rows, job)
        self._has_copies = bool(any_of(self._copies))

    def amounts(self, quantity: Callable[[BlockWeights], FloatArray]) -> _Amounts:
        """Return a quantity of single layers, of embedding and head, to be added up over each stage."""
        job = self._job
        tied = quantity(vocabulary_only(job.embedding)) if self._has_copies else None
        return _Amounts(
            rows=self._rows,
            copies=self._copies,
            embedding=quantity(job.embedding),
            layers=tuple(quantity(part) for part in job.layers),
            head=quantity(job.head),
            tied=tied,
            joints=None if job.multi_token is None else job.model.multi_token_layers * quantity(job.multi_token),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amounts:
    """A quantity of each part of the model; `tied` is the embedding's matrix, which stands again in so many `copies`.

    `joints` are all that join layers for multi-token prediction to the model.
    """

    rows: StageRows
    copies: IntArray
    embedding: FloatArray
    layers: tuple[FloatArray, ...]
    head: FloatArray
    tied: FloatArray | None
    joints: FloatArray | None

    def total(self) -> FloatArray:
        """Return what each stage has of layers, embedding and head together."""
        return self._with_layers(self.root())

    def of_layers(self) -> FloatArray:
        """Return what each stage has of layers alone."""
        return self._with_layers(np.zeros(1))

    def _with_layers(self, total: FloatArray) -> FloatArray:
        for count, amount in zip(self.rows.layers_of_kind, self.layers, strict=True):
            total = total + count * amount
        return total if self.joints is None else total + np.where(self.rows.has_multi_token, self.joints, 0.0)

    def root(self) -> FloatArray:
        """Return what of the quantity belongs to embedding, last norm and head."""
        total: FloatArray = np.where(self.rows.has_embedding, self.embedding, 0.0) + self.head_alone()
        if self.tied is not None:
            total = total + self.copies * self.tied
        return total

    def head_alone(self) -> FloatArray:
        """Return what of the quantity belongs to the last norm and to a head of its own."""
        return np.where(self.rows.has_head, self.head, 0.0)


def _dummy_gradient_bytes(job: Job, rows: StageRows, by: Divisions) -> FloatArray:
    """Return one compute-precision gradient of each distinct matrix that a stage has, where the stack keeps them."""
    if not job.profile.kernels.transformer_engine:
        return np.zeros(1)
    parts, counts = job.layers, rows.layers_of_kind
    if job.multi_token is not None:
        parts, counts = (*parts, job.multi_token), (*counts, rows.has_multi_token.astype(np.int64))
    elements = np.where(rows.has_head, by.spread(_head_matrix, _head_part(job)), 0.0)
    for kinds in _matrices_of_kinds(parts):
        layers = sum(counts[kind] for kind in kinds)
        elements = elements + np.where(layers > 0, by.spread(_distinct_matrices, parts, kinds), 0.0)
    return job.precision.compute_bytes * elements


def _head_part(job: Job) -> BlockWeights:
    """Return the part that has the head's matrix."""
    return job.embedding if job.model.tied_head else job.head


def _head_matrix(part: BlockWeights, way: Way) -> int:
    """Return the elements of the head's own gradient; a frozen head has none."""
    return sum(
        local(weight, way)[0].stored_elements
        for weight in part.trainable
        if weight.split is Split.VOCABULARY or weight.part is Part.HEAD
    )


def _largest_matrix(part: BlockWeights, way: Way) -> int:
    return max((matrix_elements(weight, way) for weight in part.trainable), default=0)


def _largest_updated(part: BlockWeights, way: Way) -> int:
    """Return the elements of the largest matrix that is updated as one, where a stack joins those of one input."""
    return max(
        (sum(matrix_elements(weight, way) for weight in one) for one in updated_as_one(part.trainable)), default=0
    )


def _last_matrix(part: BlockWeights, way: Way) -> int:
    """Return the elements of the larger of the matrices that end attention and feed-forward, or else of any.

    As a half of a layer is differentiated the last matrix's gradient comes first, when all that the half keeps is
    there; a wider one before it (gate and up in one) follows when much has been let go of.
    """
    last = [weight for weight in part.trainable if weight.split is Split.ROW]
    return max((matrix_elements(weight, way) for weight in last or part.trainable), default=0)


def _last_weight(part: BlockWeights, way: Way) -> int:
    """Return the elements of the last weight that a module with the part's weights names: a norm's, where it has any.

    transformers' decoder layers name their norms last, and a matrix before its bias.
    """
    norms = [weight for weight in part.trainable if weight.part is Part.NORM]
    is_layer = bool(part.block.layers)
    named_last = norms if norms and is_layer else part.trainable
    return local(named_last[-1], way)[0].stored_elements if named_last else 0


def _feed_forward_weights(part: BlockWeights, way: Way) -> int:
    """Return the elements of what learns behind a layer's second norm."""
    behind = (weight for weight in part.trainable if weight.part in FEED_FORWARD_PARTS)
    return sum(local(weight, way)[0].stored_elements for weight in behind)


def _weights_behind_attention(part: BlockWeights, way: Way) -> int:
    """Return the elements of what learns behind a layer's attention: its output's matrix as well."""
    output = (weight for weight in part.trainable if weight.part is Part.ATTENTION and weight.split is Split.ROW)
    return _feed_forward_weights(part, way) + sum(local(weight, way)[0].stored_elements for weight in output)


def _experts_of(
    quantity: Callable[[BlockWeights, Divisions], FloatArray], part: BlockWeights, job: Job, by: Divisions
) -> FloatArray:
    """Return a quantity of the experts of one kind of layer; nothing of a dense model."""
    return quantity(_experts_only(part), by) if job.model.experts_per_token else np.zeros(1)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _experts_only(part: BlockWeights) -> BlockWeights:
    return BlockWeights(
        block=part.block, trainable=tuple(weight for weight in part.trainable if weight.experts > 1), frozen=()
    )


def _last_stacked_matrices(part: BlockWeights, way: Way) -> int:
    """Return the elements of the experts' last matrices, the first to be differentiated."""
    if not way.policy.stacks_experts:
        return 0
    last = (weight for weight in part.trainable if weight.experts > 1 and weight.split is Split.ROW)
    return sum(local(weight, way)[0].stored_elements for weight in last)


@functools.lru_cache(maxsize=MOST_KEPT_ANSWERS)
def _matrices_of_kinds(layers: tuple[BlockWeights, ...]) -> Mapping[tuple[int, ...], tuple[Weight, ...]]:
    """Return the distinct matrices of the layers, one for all experts, by the kinds of layers that have them."""
    found: dict[tuple[str, tuple[int, ...]], tuple[Weight, list[int]]] = {}
    for kind, part in enumerate(layers):
        for weight in part.trainable:
            if weight.is_linear:
                kinds = found.setdefault((weight.name.rsplit(".", 2)[-2], weight.shape), (weight, []))[1]
                kinds += [] if kind in kinds else [kind]
    of_kinds: dict[tuple[int, ...], tuple[Weight, ...]] = {}
    for weight, kinds in found.values():
        of_kinds[tuple(kinds)] = (*of_kinds.get(tuple(kinds), ()), weight)
    return MappingProxyType(of_kinds)


def _distinct_matrices(layers: tuple[BlockWeights, ...], kinds: tuple[int, ...], way: Way) -> int:
    """Return the elements of every distinct matrix that these kinds of layers alone have, one for all experts."""
    return sum(matrix_elements(weight, way) for weight in _matrices_of_kinds(layers)[kinds])


def adapter_activation_bytes(part: BlockWeights, method: str, element_bytes: int) -> float:
    """Return the bytes a token of the adapters' narrow outputs, which the second factor keeps."""
    narrow = sum(weight.shape[0] for weight in part.trainable if weight.name.endswith("lora_A.weight"))
    return 0.0 if method == "full" else float(narrow * element_bytes)
