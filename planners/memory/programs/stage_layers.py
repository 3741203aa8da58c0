"""The layers of a stage as programs go through them: what each kind takes on a rank, in runs of like ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE, BoolArray, FloatArray, IntArray
from plimsoll.planners.layouts.stages import model_runs
from plimsoll.planners.memory.activity import LayerActivity, LayerBackward
from plimsoll.planners.memory.holdings import LayerHoldings
from plimsoll.planners.memory.items import NOTHING
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.layers import Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import LayerOnRank, Moment, Unit

FP8 = "fp8"
# Residual, its gradient, the last matrix's output and the gradient that goes to its adapter (peft, `LoraLayer`).
RECOMPUTED_BESIDE_UNPACKED = 4
# What the architecture calls the operations of experts that work on every token.
SHARED = "shared"
NO_UNIT = Unit(weights=NOTHING, buffer=NOTHING, gradients=NOTHING, reduced=NOTHING, shard=NOTHING)


def stage_layers(asked: Question, *, are_gathered: bool, expert_units: BoolArray) -> Layers:
    """Return the layers of every stage; where they `are_gathered`, a layer's gradients wait for each other."""

    @functools.cache
    def layer(kind: int, is_recomputed: bool | None) -> LayerOnRank:
        return _layer(asked, kind, is_recomputed, are_gathered=are_gathered, expert_units=expert_units)

    return layers_of(_runs(asked, layer))


def layer_of_kind(asked: Question, kind: int) -> LayerOnRank:
    """Return a layer of a kind whose weights are no units, recomputed or not as the layout says of all layers."""
    return _layer(asked, kind, None, are_gathered=False, expert_units=np.zeros(1, dtype=bool))


def _runs(asked: Question, layer: Callable[[int, bool | None], LayerOnRank]) -> list[Run]:
    """Return the runs of a stage's layers; where only some are recomputed, those and the others apart.

    The lowest layers are the recomputed ones (Megatron-LM, --recompute-method block), or every so-manieth is.
    """
    layouts, rows, job = asked.layouts, asked.rows, asked.job
    of_model = zip(model_runs(ByIdentity(job.model)), rows.layers_of_run, strict=True)
    every = job.recompute_every
    if every is not None:
        runs = []
        is_full = layouts.recompute == FULL
        for run, count in of_model:
            groups = np.where(is_full, count // every, 0)
            unit = (*(layer(run.kind, False),) * (every - 1), layer(run.kind, True))
            runs += [Run(unit=unit, count=groups), Run(unit=unit[:1], count=count - groups * every)]
        return runs
    if (layouts.full_layers == ALL_LAYERS).all():
        return [Run(unit=(layer(run.kind, None),), count=count) for run, count in of_model]
    left = asked.active.recomputed_layers.astype(np.int64)
    runs = []
    for run, count in of_model:
        recomputed = np.minimum(left, count)
        left = left - recomputed
        runs += [
            Run(unit=(layer(run.kind, True),), count=recomputed),
            Run(unit=(layer(run.kind, False),), count=count - recomputed),
        ]
    return runs


def _layer(
    asked: Question, kind: int, is_recomputed: bool | None, *, are_gathered: bool, expert_units: BoolArray
) -> LayerOnRank:
    """Return a layer; `is_recomputed` None where that is as the layout says of all layers."""
    layouts, job = asked.layouts, asked.job
    held, own = asked.held.layers[kind], asked.active.layers[kind]
    kernels = job.profile.kernels
    recomputed = layouts.recompute == FULL
    if is_recomputed is not None:
        recomputed = recomputed & np.bool_(is_recomputed)
    backward = own.backward
    at_work = NOTHING if kernels.norm_keeps_fp32 or job.profile.is_textbook else own.checkpoint
    at_work = own.checkpoint - at_work
    message = asked.active.p2p_message
    unit, experts = _units(asked, held, expert_units)
    kept = np.where(recomputed, own.checkpoint, own.kept)
    is_mixture = bool(job.model.experts_per_token)
    returned = before_experts = NOTHING
    if is_mixture and are_grouped(kernels):
        returned = np.where(recomputed, 0.0, np.maximum(backward.beside_combine - message, 0.0))
    if experts is not NO_UNIT:
        before = np.where(recomputed, own.checkpoint, backward.at_expert_reduction - message)
        before_experts = np.where(expert_units, before, 0.0)
    is_none = layouts.recompute == NONE
    return LayerOnRank(
        unit=unit,
        experts=experts,
        is_recomputed=recomputed,
        kept=np.ceil(kept),
        kept_before_experts=np.ceil(np.minimum(before_experts, kept)),
        beside_moments=np.ceil(np.where(recomputed, at_work, 0.0) + backward.not_recomputed),
        moments=_whole(_moments(asked, held, own, recomputed, expert_units, are_gathered=are_gathered)),
        beside_return=np.ceil(returned),
        at_experts=np.ceil(
            np.where(is_none, backward.working_set, np.where(recomputed, 0.0, own.kept)) + message
        ),
        at_experts_again=np.where(_runs_experts_again(asked), np.ceil(backward.at_combine + message), 0.0),
        experts_gathered_again=np.where(_runs_experts_again(asked), experts.buffer, 0.0),
        at_experts_reduced=np.ceil(backward.at_expert_reduction),
        beside_reduction=_whole(_beside_reduced_experts(asked, held, backward)) if experts is not NO_UNIT else (),
    )


def _whole(moments: list[Moment]) -> tuple[Moment, ...]:
    return tuple(Moment(name, np.ceil(activations), np.ceil(gradients)) for name, activations, gradients in moments)


def _units(asked: Question, held: LayerHoldings, expert_units: BoolArray) -> tuple[Unit, Unit]:
    """Return a layer's weights, and its experts where they are a unit of their own."""
    job = asked.job
    size, reduce_bytes = job.precision.compute_bytes, job.profile.weights.reduce_bytes
    shard = held.gradient_bytes
    whole = Unit(
        weights=np.ceil(size * held.elements + held.frozen_bytes),
        buffer=np.ceil(size * held.padded + held.frozen_bytes),
        gradients=np.ceil(size * held.elements),
        reduced=np.ceil(reduce_bytes * held.padded),
        shard=np.ceil(shard),
    )
    if not expert_units.any() or held.experts is NOTHING:
        return whole, NO_UNIT

    def apart(amount: FloatArray) -> FloatArray:
        return np.where(expert_units, np.ceil(amount), 0.0)

    experts = Unit(
        weights=apart(size * held.experts),
        buffer=apart(size * held.experts_padded),
        gradients=apart(size * held.experts),
        reduced=apart(reduce_bytes * held.experts_padded),
        shard=apart(held.expert_gradient_bytes),
    )
    rest = Unit(
        weights=whole.weights - experts.weights,
        buffer=whole.buffer - experts.buffer,
        gradients=whole.gradients - experts.gradients,
        reduced=whole.reduced - experts.reduced,
        shard=whole.shard - experts.shard,
    )
    return rest, experts


def _moments(
    asked: Question,
    held: LayerHoldings,
    own: LayerActivity,
    recomputed: BoolArray,
    expert_units: BoolArray,
    *,
    are_gathered: bool,
) -> list[Moment]:
    """Return the moments of a layer's backward pass at which most can be held, the last matrix first.

    At its last matrix all its tensors are live, gradients that meet and one matrix's
    gradient; at the first matrices of a feed-forward whose kernels work in place one half less; at its norms less of
    them and, where a unit's gradients are reduced together, those of all matrices behind: the worse for wide layers and
    few tokens. A mixture has two more: its outputs' gradient is scattered before any matrix has one, and at the
    experts' first product theirs all have.
    """
    job, layer = asked.job, own.backward
    kernels, size = job.profile.kernels, job.precision.compute_bytes
    if job.profile.is_textbook:
        return [Moment("layer", layer.working_set + layer.transient + held.dequantized_bytes, NOTHING)]
    is_mixture = bool(job.model.experts_per_token)
    combined = np.maximum(layer.at_combine, layer.at_recomputed_combine)
    if is_mixture and are_grouped(kernels):
        # Their kernels add weight gradients up where they accumulate; nothing is gathered.
        last = _at_last_matrix(asked, held, own, recomputed)
        return [Moment("outputs' gradient", combined, NOTHING), Moment("last matrix", last, NOTHING)]
    fresh = size * np.maximum(held.last_matrix, held.last_experts)
    moments = [Moment("last matrix", _at_last_matrix(asked, held, own, recomputed), fresh)]
    if not are_gathered:
        return moments
    behind = size * held.feed_forward

    def of_one_unit(amount: FloatArray) -> FloatArray:
        return np.where(expert_units, 0.0, amount) if expert_units.any() else amount

    if job.precision.compute_format == FP8:
        # A matrix is cast before it has a gradient of its own: the layer's last one, and the first of its feed-forward.
        cast = kernels.fp8_cast_bytes * held.last_matrix
        # Its input, for its own gradient; the input's gradient is done.
        widest = (layer.last_matmul_gradients - asked.active.p2p_message) * (kernels.fp8_cast_bytes / size)
        moments += [
            Moment("last matrix cast", layer.at_last_matmul + cast, NOTHING),
            Moment("its input cast", layer.working_set + layer.last_matmul_gradients + widest, NOTHING),
            Moment("first matrix cast", layer.at_second_norm + cast, np.maximum(behind - size * held.last_matrix, 0.0)),
        ]
    if is_mixture and job.method == "full":
        moments += [
            Moment("outputs' gradient", combined, NOTHING),
            Moment("experts' first product", layer.at_expert_matmuls, size * held.experts),
        ]
    if kernels.works_in_place:
        moments.append(Moment("first matrices", of_one_unit(layer.at_first_matmuls), of_one_unit(behind)))
    return [
        *moments,
        Moment("second norm", of_one_unit(layer.at_second_norm), of_one_unit(behind)),
        Moment("attention", of_one_unit(layer.attention_gradients), of_one_unit(size * held.behind_attention)),
        Moment("first norm", of_one_unit(layer.at_input_norm), of_one_unit(size * held.elements)),
    ]


def _at_last_matrix(
    asked: Question, held: LayerHoldings, own: LayerActivity, recomputed: BoolArray
) -> FloatArray:
    """Return what is alive of a layer at its last matrix.

    Gradients of its widest tensor meet after that matrix has been multiplied by. One that has to be unpacked first
    is there before they meet: as its input's gradient is made, or, where the layer is recomputed, at the end of its
    second run, which holds the residual and its gradient, the output, and for an adapter the scaled gradient.
    """
    layer, job, message = own.backward, asked.job, asked.active.p2p_message
    if job.method != "qlora":
        return np.maximum(layer.at_last_matmul + held.dequantized_bytes, _at_adapter_cast(asked, layer, recomputed))
    second_run = np.where(recomputed, RECOMPUTED_BESIDE_UNPACKED * message, 0.0)
    unpacked = held.dequantized_bytes + np.maximum(layer.last_matmul_gradients, second_run)
    result: FloatArray = layer.working_set + np.maximum(layer.transient, unpacked)
    return result


def _at_adapter_cast(asked: Question, layer: LayerBackward, recomputed: BoolArray) -> FloatArray:
    """Return what is alive as the last adapter's input is cast: in the layer's only run, or in its second one.

    The first one is in the forward pass, which holds the embedding's output and the layer's input besides; what it
    saves has mostly left for the host where activations wait there.
    """
    if not layer.at_adapter_cast.any():
        return NOTHING
    kernels, message = asked.job.profile.kernels, asked.active.p2p_message
    first_run = layer.at_adapter_cast + (1.0 + kernels.norm_keeps_fp32) * message
    first_run = np.where(asked.layouts.activation_offload, 0.0, first_run)
    result: FloatArray = np.where(recomputed, layer.at_adapter_cast, first_run)
    return result


def _runs_experts_again(asked: Question) -> BoolArray:
    """Return where a second run of a layer ends with its experts' buffer still there.

    They are gathered as in a forward pass, and their buffer is let go of as that ends (torch,
    distributed/fsdp/_fully_shard/_fsdp_state.py, `_post_forward`). One rank alone gathers nothing; without shared
    experts the gradient meets the experts' own hook first.
    """
    layouts = asked.layouts
    has_shared = any(op.name.startswith(SHARED) for part in asked.job.layers for op in part.block.operations)
    is_shared = layouts.shard_group > layouts.expert_parallel
    return np.bool_(has_shared) & (layouts.recompute != NONE) & is_shared


def _beside_reduced_experts(asked: Question, held: LayerHoldings, layer: LayerBackward) -> list[Moment]:
    """Return the moments of the rest of a layer while its experts, whose weights are gone, are reduced."""
    size = asked.job.precision.compute_bytes
    behind = size * (held.behind_attention - held.experts)
    dense = size * (held.elements - held.experts)
    return [
        Moment("attention beside reduced experts", layer.attention_gradients, behind),
        Moment("first norm beside reduced experts", layer.at_input_norm, dense),
    ]
