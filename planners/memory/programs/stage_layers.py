"""The layers of a stage as programs go through them: what each kind takes on a rank, in runs of like ones."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Protocol

import numpy as np

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE, BoolArray, FloatArray, any_of
from plimsoll.planners.layouts.stages import ModelRun, model_runs
from plimsoll.planners.memory.activation_offload import returns_weights
from plimsoll.planners.memory.activity import LayerActivity, LayerBackward, casts_weights
from plimsoll.planners.memory.holdings import LayerHoldings, shard_ranks
from plimsoll.planners.memory.mixture_backward import are_grouped
from plimsoll.planners.memory.programs.casts_to_fp8 import casts_to_fp8
from plimsoll.planners.memory.programs.chunks import WHOLE, chunk_parts, goes_round_once
from plimsoll.planners.memory.programs.multi_token import joint_bytes
from plimsoll.planners.memory.programs.paired import paired_bytes
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.remembered import remembered_bytes
from plimsoll.planners.memory.programs.whole_sequences import before_scatter, moments_of_gathered, moments_of_whole
from plimsoll.planners.memory.sent_parts import NOTHING_SENT
from plimsoll.planners.memory.steps.layers import Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import (
    NO_BYTES,
    NO_UNIT,
    LayerOnRank,
    Moment,
    Unit,
    mask_of,
    only,
    plus,
    some,
)
from plimsoll.planners.memory.unfused_attention import is_unfused

FP8 = "fp8"
# Residual, its gradient, the last matrix's output and the gradient that goes to its adapter (peft, `LoraLayer`).
RECOMPUTED_BESIDE_UNPACKED = 4
# What the architecture calls the operations of experts that work on every token.
SHARED = "shared"
NO_EXPERT_UNITS: BoolArray = np.zeros(1, dtype=bool)


def stage_layers(
    asked: Question, *, gradient_bytes: FloatArray | None, expert_units: BoolArray = NO_EXPERT_UNITS
) -> Layers:
    """Return the layers of every stage.

    A layer's gradients lie on the device in `gradient_bytes` of each element until the layer is done; None where they
    are added up as they are made.
    """

    @functools.cache
    def layer(run: ModelRun, is_recomputed: bool | None) -> LayerOnRank:
        own = _layer(asked, run.kind, is_recomputed, gradient_bytes=gradient_bytes, expert_units=expert_units)
        return _joined(asked, own) if run.is_multi_token else own

    return layers_of(_runs(asked, layer))


class OfRun(Protocol):
    """Returns a layer of a run; `is_recomputed` None where that is as the layout says of all layers."""

    def __call__(self, run: ModelRun, is_recomputed: bool | None, /) -> LayerOnRank: ...


def _joined(asked: Question, layer: LayerOnRank) -> LayerOnRank:
    """Return a layer for multi-token prediction, with what joins it to the model."""
    joint = joint_bytes(asked)
    return replace(
        layer,
        kept=layer.kept + joint,
        beside_moments=plus(layer.beside_moments, joint),
        is_multi_token=True,
    )


def layer_of_kind(asked: Question, kind: int) -> LayerOnRank:
    """Return a layer of a kind whose weights are no units, recomputed or not as the layout says of all layers."""
    return _layer(asked, kind, None, gradient_bytes=None, expert_units=NO_EXPERT_UNITS)


def _runs(asked: Question, layer: OfRun) -> list[Run]:
    """Return the runs of a stage's layers; where only some are recomputed, those and the others apart.

    The lowest layers are the recomputed ones (Megatron-LM, --recompute-method block), or every nth is.
    """
    layouts, rows, job = asked.layouts, asked.rows, asked.job
    of_model = zip(model_runs(ByIdentity(job.model)), rows.layers_of_run, strict=True)
    every = job.recompute_every
    if every is not None:
        runs = []
        is_full = layouts.recompute == FULL
        for run, count in of_model:
            groups = np.where(is_full, count // every, 0)
            unit = (*(layer(run, False),) * (every - 1), layer(run, True))
            runs += [Run(unit=unit, count=groups), Run(unit=unit[:1], count=count - groups * every)]
        return runs
    if (layouts.full_layers == ALL_LAYERS).all():
        return [Run(unit=(layer(run, None),), count=count) for run, count in of_model]
    left = asked.active.recomputed_layers.astype(np.int64)
    runs = []
    for run, count in of_model:
        recomputed = np.minimum(left, count)
        left = left - recomputed
        runs += [
            Run(unit=(layer(run, True),), count=recomputed),
            Run(unit=(layer(run, False),), count=count - recomputed),
        ]
    return runs


def _layer(
    asked: Question,
    kind: int,
    is_recomputed: bool | None,
    *,
    gradient_bytes: FloatArray | None,
    expert_units: BoolArray,
) -> LayerOnRank:
    """Return a layer; `is_recomputed` None where that is as the layout says of all layers."""
    layouts, job = asked.layouts, asked.job
    held, own = asked.held.layers[kind], asked.active.layers[kind]
    kernels = job.profile.kernels
    if not any_of(held.experts):
        expert_units = NO_EXPERT_UNITS  # a dense layer of a mixture
    recomputed = layouts.recompute == FULL
    if is_recomputed is not None:
        recomputed = recomputed & np.bool_(is_recomputed)
    backward = own.backward
    at_work = backward.mask + backward.input
    message = asked.active.p2p_message
    unit, experts = (NO_UNIT, None) if gradient_bytes is None else _units(asked, held, expert_units)
    kept = np.where(recomputed, own.checkpoint, own.kept)
    is_mixture = bool(job.model.experts_per_token)
    returned = before_experts = NO_BYTES
    if is_mixture and are_grouped(kernels):
        returned = np.where(recomputed, 0.0, backward.beside_combine)
        if own.parts is not NOTHING_SENT:
            # Of the last stage's highest layer all is there, unless other chunks go forward besides.
            goes = layouts.activation_offload & (~asked.rows.has_head | (layouts.virtual_pipeline > 1))
            beside = np.where(goes, own.parts.sent_last, 0.0)
            returned = np.maximum(returned + beside, beside + np.where(goes, own.parts.at_experts, 0.0))
    is_selective = layouts.recompute == SELECTIVE
    remembered = handed_down = NO_BYTES
    if is_mixture and are_grouped(kernels):
        remembered, handed_down = remembered_bytes(asked, own, recomputed)
    runs_again = recomputed | is_selective
    beside = np.where(recomputed, at_work, np.where(is_selective, backward.mask, 0.0))
    whole_moments = []
    if gradient_bytes is not None:
        whole_moments = moments_of_whole(asked, kind, held, own, gradient_bytes, runs_again)
    parts, summed = None, WHOLE
    if job.profile.weights.pipelines_gather_once:
        parts = chunk_parts(asked, kind)
    if parts is not None:
        summed = np.where(goes_round_once(layouts, job), 1.0 - parts.below_highest, 1.0)
    at_experts = at_experts_again = experts_gathered_again = at_experts_reduced = NO_BYTES
    beside_reduction: tuple[Moment, ...] = ()
    if experts is not None:
        before = np.where(recomputed, own.checkpoint, backward.at_expert_reduction - message)
        before_experts = np.minimum(np.where(expert_units, before, 0.0), kept)
        is_none, runs_again = layouts.recompute == NONE, _runs_experts_again(asked)
        at_experts = np.where(is_none, backward.working_set, np.where(recomputed, 0.0, own.kept)) + message
        at_experts_again = np.where(runs_again, backward.at_combine + message, 0.0)
        experts_gathered_again = np.where(runs_again, experts.buffer, 0.0)
        at_experts_reduced = backward.at_expert_reduction
        beside_reduction = _whole(_beside_reduced_experts(asked, held, backward, recomputed))
    return LayerOnRank(
        unit=unit,
        experts=experts,
        has_expert_unit=mask_of(expert_units),
        is_recomputed=mask_of(recomputed),
        kept=np.ceil(kept),
        kept_before_experts=some(np.ceil(before_experts)),
        beside_moments=some(np.ceil(beside + backward.not_recomputed)),
        moments=_whole(_moments(asked, held, own, recomputed, expert_units, gradient_bytes) + whole_moments),
        below_highest=WHOLE if parts is None else parts.below_highest,
        in_lowest=WHOLE if parts is None else parts.lowest,
        summed_at_first=summed,
        before_scatter=_before_output(before_scatter(asked, own, runs_again), own),
        beside_return=some(np.ceil(returned)),
        at_experts=np.ceil(at_experts),
        at_experts_again=some(np.ceil(at_experts_again)),
        experts_gathered_again=some(experts_gathered_again),
        at_experts_reduced=np.ceil(at_experts_reduced),
        beside_reduction=beside_reduction,
        comes_back_twice=some(np.where(layouts.activation_offload, np.ceil(own.parts.sent - own.parts.freed), 0.0)),
        stays_as_highest=some(np.ceil(_stays_as_highest(asked, own))),
        remembered=remembered,
        handed_down=handed_down,
        paired=some(np.ceil(paired_bytes(asked, own, _at_last_matrix(asked, held, own, recomputed)))),
    )


def _stays_as_highest(asked: Question, own: LayerActivity) -> FloatArray:
    """Return what more a stage's highest layer keeps where parts of layers go to the host: all of it stays.

    Of mixtures whose passes run beside others, or in chunks, the layer below has come back as well: the backward pass
    before ends with that (`bulk_reload`, which goes on to the next chunk once its forward pass is over).
    """
    if own.parts is NOTHING_SENT:
        return NO_BYTES
    layouts = asked.layouts
    has_experts = np.bool_(any_of(own.parts.freed_in_experts))
    layers = np.where(has_experts & (layouts.expert_overlap | (layouts.virtual_pipeline > 1)), 2.0, 1.0)
    return np.where(layouts.activation_offload, layers * own.parts.freed, 0.0)


def _before_output(scattered: FloatArray, own: LayerActivity) -> FloatArray:
    """Return the most that a layer's forward pass holds for a moment beside what it keeps."""
    if own.weighed_outputs is NO_BYTES:
        return scattered
    return np.maximum(scattered, np.ceil(own.weighed_outputs))


def _whole(moments: list[Moment]) -> tuple[Moment, ...]:
    return tuple(Moment(name, np.ceil(activations), np.ceil(gradients)) for name, activations, gradients in moments)


def _units(asked: Question, held: LayerHoldings, expert_units: BoolArray) -> tuple[Unit, Unit | None]:
    """Return a layer's weights, and its experts where they are a unit of their own."""
    job = asked.job
    size, reduce_bytes, copies = job.precision.compute_bytes, job.reduce_bytes, job.profile.weights.gather_copies
    shard, widening = held.gradient_bytes, reduce_bytes / job.states.gradient
    whole = Unit(
        weights=np.ceil(size * (held.padded if copies else held.elements) + held.frozen_bytes),
        buffer=gathered_into(asked, size * held.padded + held.frozen_bytes),
        gradients=np.ceil(size * held.elements),
        reduced=np.ceil(reduce_bytes * held.padded),
        summed=np.ceil(reduce_bytes * held.elements),
        last_matrix_gradient=np.ceil(size * np.maximum(held.last_matrix, held.last_experts)),
        output=np.ceil(shard * widening),
        shard=np.ceil(shard),
        last_gradient=some(np.where(is_divided(asked), size * held.last_weight, 0.0)),
        last_summed=some(np.where(is_divided(asked), reduce_bytes * held.last_weight, 0.0)),
    )
    if not any_of(expert_units):
        return whole, None

    # The ranks that hold the same experts divide them.
    has_copies = shard_ranks(asked.layouts, job) > asked.layouts.expert_parallel

    def apart(amount: FloatArray) -> FloatArray:
        return np.where(expert_units, np.ceil(amount), 0.0)

    experts = Unit(
        weights=apart(size * (held.experts_padded if copies else held.experts)),
        buffer=np.where(has_copies, apart(size * held.experts_padded), 0.0),
        gradients=apart(size * held.experts),
        reduced=apart(reduce_bytes * held.experts_padded),
        summed=apart(reduce_bytes * held.experts),
        last_matrix_gradient=apart(size * held.last_experts),
        output=apart(held.expert_gradient_bytes * widening),
        shard=apart(held.expert_gradient_bytes),
        last_gradient=np.where(has_copies, apart(size * held.last_experts), 0.0),
        last_summed=np.where(has_copies, apart(reduce_bytes * held.last_experts), 0.0),
    )
    rest = Unit(
        weights=whole.weights - experts.weights,
        buffer=gathered_into(asked, size * held.padded + held.frozen_bytes - apart(size * held.experts_padded)),
        gradients=whole.gradients - experts.gradients,
        reduced=whole.reduced - experts.reduced,
        summed=whole.summed - experts.summed,
        last_matrix_gradient=np.where(expert_units, np.ceil(size * held.last_matrix), whole.last_matrix_gradient),
        output=whole.output - experts.output,
        shard=whole.shard - experts.shard,
        last_gradient=whole.last_gradient,
        last_summed=whole.last_summed,
    )
    return rest, experts


def is_divided(asked: Question) -> BoolArray:
    """Return where several ranks divide the weights, and FSDP2 gathers into buffers and reduces from them.

    One rank copies its weights from where they lie (torch, distributed/fsdp/_fully_shard/_fsdp_param_group.py,
    `wait_for_unshard`).
    """
    if not asked.job.profile.weights.gather_copies:
        return np.ones(1, dtype=bool)
    return shard_ranks(asked.layouts, asked.job) > 1


def gathered_into(asked: Question, amount: FloatArray) -> FloatArray:
    """Return the buffer that weights of so many bytes are gathered into."""
    return np.where(is_divided(asked), np.ceil(amount), 0.0)


def _moments(
    asked: Question,
    held: LayerHoldings,
    own: LayerActivity,
    recomputed: BoolArray,
    expert_units: BoolArray,
    gradient_bytes: FloatArray | None,
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
        return [Moment("layer", layer.working_set + layer.transient + held.dequantized_bytes, NO_BYTES)]
    is_mixture = bool(job.model.experts_per_token)
    combined = np.maximum(layer.at_combine, layer.at_recomputed_combine)
    softmax = []
    if any_of(layer.mask) or is_unfused(job.attention, kernels):
        softmax.append(Moment("softmax", _at_attention(asked, layer, recomputed), NO_BYTES))
    if any_of(layer.brings_back):
        at_attention = _at_attention(asked, layer, recomputed)
        softmax.append(Moment("attention", np.where(layer.brings_back, at_attention, 0.0), NO_BYTES))
    if own.parts is not NOTHING_SENT:
        # Until a layer's attention has been differentiated parts of the layer below come back.
        back = np.where(asked.layouts.activation_offload, own.parts.back_at_attention, 0.0)
        softmax.append(
            Moment("attention beside what comes back", _at_attention(asked, layer, recomputed) + back, NO_BYTES)
        )
    if is_mixture and are_grouped(kernels):
        # Their kernels add weight gradients up where they accumulate; nothing is gathered.
        last = _at_last_matrix(asked, held, own, recomputed)
        return [Moment("outputs' gradient", combined, NO_BYTES), Moment("last matrix", last, NO_BYTES), *softmax]
    # Where weight gradients are added up as they are made, autograd's are empty ones (`AtRest.empty_gradients`).
    fresh = NO_BYTES if kernels.transformer_engine else size * np.maximum(held.last_matrix, held.last_experts)
    returned = mask_of(returns_weights(asked.layouts, job) & ~recomputed)
    last = _at_last_matrix(asked, held, own, recomputed)
    moments = [Moment("last matrix", plus(last, only(returned, fresh)), fresh)]
    if any_of(layer.second_run):
        moments.append(Moment("end of the second run", np.where(recomputed, layer.second_run, 0.0), NO_BYTES))
    if any_of(layer.at_last_norm):
        moments.append(Moment("last norm", layer.at_last_norm, NO_BYTES))
    moments += softmax
    if gradient_bytes is None:
        return moments + (moments_of_gathered(asked, held, own) if kernels.transformer_engine else [])
    behind, behind_attention = gradient_bytes * held.feed_forward, gradient_bytes * held.behind_attention
    if own.has_state_space:
        # Of weights whose products have been differentiated autocast's copies are gone (torch, autocast_mode.cpp).
        behind_attention = behind_attention - np.where(casts_weights(asked.layouts, job), size * held.feed_forward, 0.0)

    has_expert_units = any_of(expert_units)

    def of_one_unit(amount: FloatArray) -> FloatArray:
        return np.where(expert_units, 0.0, amount) if has_expert_units else amount

    if job.precision.compute_format == FP8:
        moments += casts_to_fp8(asked, held, layer, gradient_bytes=gradient_bytes)
    if is_mixture and not kernels.experts_in_turn:
        moments.append(Moment("outputs' gradient", combined, NO_BYTES))
    if is_mixture and job.method == "full":
        first = size * (held.experts - held.last_experts)
        live = plus(layer.at_expert_matmuls, only(returned, first))
        moments.append(Moment("experts' first product", live, np.maximum(gradient_bytes * held.experts, first)))
    if any_of(layer.at_first_matmuls):
        moments.append(Moment("first matrices", of_one_unit(layer.at_first_matmuls), of_one_unit(behind)))
    return [
        *moments,
        Moment("second norm", of_one_unit(layer.at_second_norm), of_one_unit(behind)),
        Moment("attention", of_one_unit(_at_attention(asked, layer, recomputed)), of_one_unit(behind_attention)),
        Moment("first norm", of_one_unit(layer.at_input_norm), of_one_unit(gradient_bytes * held.elements)),
    ]


def _at_last_matrix(asked: Question, held: LayerHoldings, own: LayerActivity, recomputed: BoolArray) -> FloatArray:
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


def _at_attention(asked: Question, layer: LayerBackward, recomputed: BoolArray) -> FloatArray:
    """Return what is alive of a layer at its attention, with scores that come back from the host where they wait there.

    What a second run makes stays on the device.
    """
    if not any_of(layer.returned_scores):
        return layer.attention_gradients
    comes_back = asked.layouts.activation_offload & ~recomputed
    result: FloatArray = layer.attention_gradients + np.where(comes_back, layer.returned_scores, 0.0)
    return result


def _at_adapter_cast(asked: Question, layer: LayerBackward, recomputed: BoolArray) -> FloatArray:
    """Return what is alive as the last adapter's input is cast: in the layer's only run, or in its second one.

    The first one is in the forward pass, which holds the embedding's output and the layer's input besides; what it
    saves has mostly left for the host where activations wait there.
    """
    if not any_of(layer.at_adapter_cast):
        return NO_BYTES
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
    runs_again: BoolArray = np.bool_(has_shared) & (layouts.recompute != NONE) & is_shared
    return runs_again


def _beside_reduced_experts(
    asked: Question, held: LayerHoldings, layer: LayerBackward, recomputed: BoolArray
) -> list[Moment]:
    """Return the moments of the rest of a layer while its experts, whose weights are gone, are reduced."""
    size = asked.job.precision.compute_bytes
    behind = size * (held.behind_attention - held.experts)
    dense = size * (held.elements - held.experts)
    return [
        Moment("attention beside reduced experts", _at_attention(asked, layer, recomputed), behind),
        Moment("first norm beside reduced experts", layer.at_input_norm, dense),
    ]
