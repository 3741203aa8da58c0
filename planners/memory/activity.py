"""Activations of every stage: kept, thrown away and computed again, per micro-batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.recompute_modules import EXPERT_ACTIVATION, MIXTURE
from plimsoll.planners.layouts.candidates import (
    ALL_LAYERS,
    FULL,
    SELECTIVE,
    BoolArray,
    Candidates,
    FloatArray,
    any_of,
    once,
    recomputes_module,
)
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.activations import MASK_BYTES, NOTHING_SAVED, SavedBytes
from plimsoll.planners.memory.holdings import has_gathering
from plimsoll.planners.memory.layer_bytes import LayerBytes, UnfusedScores, head_bytes, layer_bytes
from plimsoll.planners.memory.layer_events import saved_with_and_without_input_gradient
from plimsoll.planners.memory.preference_loss import compares, learns_head, preference_loss
from plimsoll.planners.memory.rank_share import RankShare, rank_share
from plimsoll.planners.memory.rotary_tables import rotary_cast_bytes
from plimsoll.planners.memory.selective import ThrownAway
from plimsoll.planners.memory.sent_parts import NOTHING_SENT, SentParts, sent_parts
from plimsoll.planners.memory.state_space import live_at_scan
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, plus
from plimsoll.planners.memory.unfused_attention import lacks_kernel

NO_PARTS: dict[str, FloatArray] = dict.fromkeys(("in_experts", "sent", "received"), NO_BYTES)


NOWHERE: BoolArray = np.zeros(1, dtype=bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBackward:
    """Activation bytes of one layer on one rank while it runs backward.

    - `input`: what a second run starts from, wherever it waited, unless it saves that again, and what it leaves;
      `mask`: what such a run is given of eager attention;
    - `second_run`: what is live at the end of one under autocast, or where kernels copy halves of one product in it;
      nothing elsewhere, where later moments hold more;
    - `working_set`: all that the layer saved; `transient`: gradients of its activations; `not_recomputed`: what
      selective recomputation saves of it beside what it recomputes;
    - `at_last_matmul`: the first two at its last matrix product, less what a mixture has freed by then;
      `last_matmul_gradients`: the gradients around that product;
    - `at_second_norm`, `at_input_norm`: at the norm between attention and feed-forward, and at the layer's first one;
      `at_last_norm`: at one behind the last matrix;
      `attention_gradients`: at its attention, with `returned_scores` besides where they come from the host;
      `brings_back`: whether that is a moment of its own, since its operands come back no sooner;
      `at_first_matmuls`: after the first products of its feed-forward;
    - of a mixture, `beside_combine`: beside the layer as tokens return from their experts; `at_recomputed_combine`: the
      same during recomputation; `at_expert_matmuls`, `at_combine`, `at_expert_reduction`: at the experts' first
      products, the sum of their outputs, and the reduction of their gradients.
    """

    input: FloatArray
    mask: FloatArray
    second_run: FloatArray
    working_set: FloatArray
    transient: FloatArray
    at_last_matmul: FloatArray
    at_adapter_cast: FloatArray
    at_input_norm: FloatArray
    at_second_norm: FloatArray
    at_last_norm: FloatArray
    attention_gradients: FloatArray
    brings_back: BoolArray
    returned_scores: FloatArray
    at_first_matmuls: FloatArray
    last_matmul_gradients: FloatArray
    not_recomputed: FloatArray
    beside_combine: FloatArray
    at_recomputed_combine: FloatArray
    at_expert_matmuls: FloatArray
    at_combine: FloatArray
    at_expert_reduction: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Activation bytes of one micro-batch on one rank, by pipeline stage.

    Saved for the backward pass:

    - `stage`: by all layers of the stage; `checkpoint`: by one layer that is recomputed in full, which is its input;
    - `recomputed_layers`, `kept_layers`: how many layers are recomputed in full, and how many are not;
    - `saved_by_several`: of all layers, tensors that several operations save, counted once; `repeated_saves`: the same,
      counted for each further save (`repeated_saves.py`); `waiting`: on its way to the host;
    - `first_adapter_savings`: what the first layer with adapters need not save, as its input needs no gradient;
      `saved_routing`: routing that recomputed layers save;
    - `head`: by the head; `logits`: see `_logits`; `kept_logits`: of them, once the loss is known.

    `p2p_message` is what one pipeline stage sends the next, `gathered` the buffers of tensor parallelism's all-gathers
    and reduce-scatters. `layers` are one layer of each kind. `parts_sent` and `parts_freed` are what of all layers goes
    to the host and leaves the device, where that is by parts; `parts_named` are inputs of the stage's chunks that stay
    of the latter.
    """

    stage: FloatArray
    checkpoint: FloatArray
    recomputed_layers: FloatArray
    kept_layers: FloatArray
    saved_by_several: FloatArray
    repeated_saves: FloatArray
    waiting: FloatArray
    first_adapter_savings: FloatArray
    saved_routing: FloatArray
    head: FloatArray
    logits: FloatArray
    kept_logits: FloatArray
    p2p_message: FloatArray
    gathered: FloatArray
    layers: tuple[LayerActivity, ...]
    parts_sent: FloatArray
    parts_freed: FloatArray
    parts_named: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivity:
    """A rank's bytes of one layer of a kind, as `Activity` names them; `kept` where it is not recomputed in full.

    `has_state_space` marks one whose attention is Mamba-2's scan. `weighed_outputs` stand beside a mixture's forward
    pass for a moment. Where a mixture's parts run one by one, `in_experts` is what of `kept` belongs to the experts,
    `sent` are the rank's own tokens as it sends them, and `received` those that its experts get. `parts` is what goes
    to the host where that is by parts.
    """

    kept: FloatArray
    selective: FloatArray
    checkpoint: FloatArray
    saved_routing: FloatArray
    saved_by_several: FloatArray
    repeated_saves: FloatArray
    has_state_space: bool
    weighed_outputs: FloatArray
    in_experts: FloatArray
    sent: FloatArray
    received: FloatArray
    backward: LayerBackward
    parts: SentParts


def activity(layouts: Candidates, rows: StageRows, job: Job) -> Activity:
    """Return the activations of every stage of `rows`."""
    return _activity(layouts, ByIdentity(rows), job)


@once
def _activity(layouts: Candidates, same: ByIdentity[StageRows], job: Job) -> Activity:
    rows = same.value
    kernels, size = job.profile.kernels, job.precision.compute_bytes
    share = rank_share(layouts, job)
    casts = casts_weights(layouts, job)
    casts_all = casts & np.bool_(job.method == "full")
    kinds = [
        _of_kind(layer_bytes(part, job, layouts.module_set), sent_parts(part.block, share, job), share, casts, job)
        for part in job.layers
    ]

    def of_all_layers(amounts: Iterable[FloatArray]) -> FloatArray:
        held = NO_BYTES
        for count, amount in zip(rows.layers_of_kind, amounts, strict=True):
            if amount is not NO_BYTES:
                held = plus(held, count * amount)
        return held

    def of_mean_layer(amounts: Iterable[FloatArray]) -> FloatArray:
        every = of_all_layers(amounts)
        return every if every is NO_BYTES else every / layers

    kept = of_all_layers(kind.backward.working_set for kind in kinds)
    is_selective = layouts.recompute == SELECTIVE
    if any_of(is_selective):
        kept = np.where(is_selective, of_all_layers(kind.selective for kind in kinds), kept)
    layers = np.maximum(rows.layers, 1)
    # The residual stream is as wide in all layers.
    recomputed, checkpoint = _recomputed_layers(layouts, rows, job), kinds[0].checkpoint
    first_adapter_savings = _first_adapter_savings(rows, job, recomputed, share)
    logits, kept_logits = _logits(job, share, casts_all)
    if compares(job):
        loss = preference_loss(layouts, job, casts_all)
        logits, kept_logits = loss.backward, loss.kept
    return Activity(
        stage=kept / layers * (rows.layers - recomputed) + checkpoint * recomputed - first_adapter_savings,
        checkpoint=checkpoint,
        recomputed_layers=recomputed,
        kept_layers=rows.layers - recomputed,
        saved_by_several=of_mean_layer(kind.saved_by_several for kind in kinds),
        repeated_saves=of_mean_layer(kind.repeated_saves for kind in kinds),
        waiting=NO_BYTES,
        first_adapter_savings=first_adapter_savings,
        saved_routing=of_all_layers(kind.saved_routing for kind in kinds),
        head=np.where(rows.has_head, _head(job, share, casts), 0.0),
        logits=np.where(rows.has_head, logits, 0.0),
        kept_logits=np.where(rows.has_head, kept_logits, 0.0),
        p2p_message=share.of_sequence(size * job.model.hidden_size),
        gathered=np.where(
            share.sequence_division > 1, share.tokens * job.model.hidden_size * kernels.gathered_workspace_bytes, 0.0
        ),
        layers=tuple(kinds),
        parts_sent=of_all_layers(kind.parts.sent for kind in kinds),
        parts_freed=of_all_layers(kind.parts.freed for kind in kinds),
        parts_named=_named_inputs(kinds[0].parts, layouts, rows),
    )


def _named_inputs(parts: SentParts, layouts: Candidates, rows: StageRows) -> FloatArray:
    """Return the inputs that a stage received for its chunks, which a pipeline's schedule holds to their gradients."""
    if parts is NOTHING_SENT:
        return NO_BYTES
    chunks = np.minimum(layouts.virtual_pipeline - 1.0 * rows.has_embedding, rows.layers)
    received: FloatArray = parts.named_input * chunks
    return np.where(layouts.activation_offload & (layouts.pipeline_parallel > 1), received, 0.0)


def _of_kind(layer: LayerBytes, parts: SentParts, share: RankShare, casts: BoolArray, job: Job) -> LayerActivity:
    size, tokens, layouts = job.precision.compute_bytes, share.tokens, share.layouts
    # One number where nothing is cast, so that the kept inputs do not vary along the axis of stages for it.
    stream_bytes = np.where(casts, FP32_BYTES, size) if any_of(casts) and job.method == "full" else size
    widest = share.busiest * layer.widest / share.tensor
    residual = layer.input_width / share.sequence_division
    selective = not_recomputed = twice = again = NO_BYTES
    if any_of(layouts.recompute == SELECTIVE):
        selective, not_recomputed = _selective(layer, share)
    if any_of(layouts.activation_offload):
        twice = tokens * np.where(casts, layer.cast_again.once_bytes, layer.again.once_bytes)
        again = tokens * np.where(casts, layer.cast_again.again_bytes, layer.again.again_bytes)
    is_mixture = bool(job.model.experts_per_token)
    whole = _where_cast(casts, layer.whole, layer.cast, share)
    at_second_norm, attention_gradients = share.of(layer.at_second_norm), share.of(layer.attention_gradients)
    if layer.split is not None:
        is_split = layouts.tensor_parallel > 1
        whole = np.where(is_split, share.of(layer.split.whole), whole)
        at_second_norm = np.where(is_split, share.of(layer.split.at_second_norm), at_second_norm)
        attention_gradients = np.where(is_split, share.of(layer.split.attention_gradients), attention_gradients)
    if layer.state_space is not None:
        attention_gradients = live_at_scan(layer.state_space, share, casts)
    beside_combine = _beside_combine(layer, share, job) if is_mixture else NO_BYTES
    transient = NO_BYTES
    if not job.profile.is_textbook:
        transient = np.maximum(
            tokens * (size * layer.meeting_gradients * widest + stream_bytes * residual),
            tokens * layer.scan_workspace / share.tensor,
        )
    stream = share.of_sequence(layer.input_width * stream_bytes)
    of_kind = LayerActivity(
        kept=np.where(layouts.recompute == SELECTIVE, selective, whole) if selective is not NO_BYTES else whole,
        selective=selective,
        checkpoint=stream,
        saved_routing=share.of_sequence(layer.saved_routing_bytes) if is_mixture else NO_BYTES,
        saved_by_several=twice,
        repeated_saves=again,
        has_state_space=layer.state_space is not None,
        weighed_outputs=_weighed_outputs(layer, share) if any(layer.weighed_outputs) else NO_BYTES,
        **(_parts_of_mixture(layer, share) if any_of(layouts.expert_overlap) and is_mixture else NO_PARTS),
        parts=parts,
        backward=LayerBackward(
            input=_beside_second_run(layer, stream, casts, job),
            mask=tokens * job.sequence_length * layer.mask_bytes if layer.mask_bytes else NO_BYTES,
            second_run=_second_run(layer, share, casts & np.bool_(job.method == "full"), whole, stream),
            working_set=whole,
            transient=transient,
            at_last_matmul=_at_last_matmul(layer, share, job, whole + transient),
            at_adapter_cast=np.where(casts, whole + tokens * layer.adapter_cast_bytes, 0.0)
            if layer.adapter_cast_bytes
            else NO_BYTES,
            at_input_norm=share.of_sequence(layer.input_width * layer.at_input_norm_bytes),
            at_second_norm=at_second_norm,
            at_last_norm=NO_BYTES if layer.at_last_norm is NOTHING_SAVED else share.of(layer.at_last_norm),
            attention_gradients=attention_gradients,
            brings_back=NOWHERE,
            returned_scores=tokens * job.sequence_length * layer.returned_score_bytes / share.tensor
            if layer.returned_score_bytes
            else NO_BYTES,
            at_first_matmuls=share.of(layer.at_first_matmuls),
            last_matmul_gradients=tokens * size * (widest + residual),
            not_recomputed=not_recomputed,
            beside_combine=beside_combine,
            at_recomputed_combine=_at_recomputed_combine(layer, share, job, whole + beside_combine, stream)
            if is_mixture
            else NO_BYTES,
            at_expert_matmuls=share.of(layer.at_expert_matmuls) if is_mixture else NO_BYTES,
            at_combine=_combine(layer, share, job) if is_mixture else NO_BYTES,
            at_expert_reduction=share.of(layer.at_expert_reduction) if is_mixture else NO_BYTES,
        ),
    )
    if layer.thrown_away is not None and any_of(layouts.recompute == SELECTIVE):
        of_kind = replace(of_kind, backward=_brought_back(of_kind.backward, layer.thrown_away, share))
    if layer.unfused is not None:
        return _with_scores(of_kind, layer.unfused, share, size)
    if layer.copied_output_bytes:
        return _held_twice(of_kind, layer, share)
    table_casts = rotary_cast_bytes(job)
    return _with_attention(of_kind, share.tokens / layouts.micro_batch_size * table_casts) if table_casts else of_kind


def _parts_of_mixture(layer: LayerBytes, share: RankShare) -> dict[str, FloatArray]:
    """Return the bytes of a mixture whose parts are gone through one by one, nothing of a dense layer."""

    def of_experts(saved: SavedBytes) -> FloatArray:
        dispatched, own = saved.dispatched_bytes, saved.expert_bytes
        return share.of(replace(NOTHING_SAVED, dispatched_bytes=dispatched, expert_bytes=own))

    within = of_experts(layer.whole)
    is_selective = share.layouts.recompute == SELECTIVE
    if any_of(is_selective):
        within = np.where(is_selective, of_experts(layer.selective), within)
    return {
        "in_experts": within,
        "sent": share.of_sequence(layer.grouped_sent_bytes),
        "received": _received(layer, share),
    }


def _with_scores(of_kind: LayerActivity, unfused: UnfusedScores, share: RankShare, size: int) -> LayerActivity:
    """Return a layer with what its unfused attention holds where its softmax is torch's, or is recomputed."""
    tokens, length, own = share.tokens, share.sequence_length, of_kind.backward
    is_plain = lacks_kernel(share.layouts, unfused.heads, length, size)
    besides = np.where(is_plain, tokens * length * unfused.besides_bytes / share.tensor + MASK_BYTES * length**2, 0.0)
    recomputes = (share.layouts.recompute == SELECTIVE) & np.bool_(unfused.runs_again)
    inputs, beside_plain = (
        np.where(recomputes, tokens * amount / share.tensor, 0.0)
        for amount in (unfused.recomputed_inputs_bytes, unfused.beside_plain_bytes)
    )
    plain = share.of(unfused.plain_gradients) + MASK_BYTES * length**2 + beside_plain
    kept_besides = np.where(recomputes, 0.0, besides)
    return replace(
        of_kind,
        kept=of_kind.kept + kept_besides,
        selective=of_kind.selective if of_kind.selective is NO_BYTES else of_kind.selective + kept_besides,
        backward=replace(
            _beside_attention(own, besides + inputs),
            attention_gradients=np.where(is_plain, plain, own.attention_gradients + inputs),
        ),
    )


def _beside_attention(own: LayerBackward, beside: FloatArray) -> LayerBackward:
    """Return what lives with more of it until the attention has been differentiated."""
    until_attention = (
        "working_set",
        "at_last_matmul",
        "at_second_norm",
        "at_last_norm",
        "at_first_matmuls",
        "attention_gradients",
    )
    in_experts = ("at_recomputed_combine", "at_expert_matmuls", "at_combine", "at_expert_reduction")
    held = {name: getattr(own, name) for name in (*until_attention, *in_experts)}
    changed = {name: amount + beside for name, amount in held.items() if amount is not NO_BYTES and any_of(amount)}
    return replace(own, **changed)


def _brought_back(own: LayerBackward, thrown: ThrownAway, share: RankShare) -> LayerBackward:
    """Return a layer whose attention's operands come back late, and stand twice then, as what its last norm made."""
    of_modules = share.layouts.recompute == SELECTIVE

    def where_selective(saved: SavedBytes) -> FloatArray:
        return np.where(of_modules, share.of(saved), 0.0)

    late, again, beside = map(
        where_selective, (thrown.until_attention, thrown.at_attention, thrown.within_feed_forward)
    )
    return replace(
        _beside_attention(own, beside - late),
        attention_gradients=own.attention_gradients + again,
        brings_back=again > 0.0,
    )


def _held_twice(of_kind: LayerActivity, layer: LayerBytes, share: RankShare) -> LayerActivity:
    """Return a layer with what its attention holds sequence first and batch first (`sequence_first.py`)."""
    layouts = share.layouts
    beside = np.where(layouts.micro_batch_size > 1, share.tokens * layer.copied_output_bytes / share.tensor, 0.0)
    are_unrotated = (layouts.recompute == SELECTIVE) & (np.asarray(layer.unrotated_bytes) > 0)
    if any_of(are_unrotated):
        beside = np.where(are_unrotated, share.tokens * layer.unrotated_bytes / share.tensor, beside)
    return _with_attention(of_kind, beside)


def _with_attention(of_kind: LayerActivity, beside: FloatArray) -> LayerActivity:
    """Return a layer with more that its attention keeps."""
    return replace(
        of_kind,
        kept=of_kind.kept + beside,
        selective=of_kind.selective if of_kind.selective is NO_BYTES else of_kind.selective + beside,
        backward=_beside_attention(of_kind.backward, beside),
    )


def _at_last_matmul(layer: LayerBytes, share: RankShare, job: Job, everything: FloatArray) -> FloatArray:
    """Return what is live at the last matrix product: `everything`, or what a mixture in full training has left."""
    if layer.experts_last_product is None or job.method != "full":
        return everything
    left = share.of(layer.experts_last_product)
    is_again = recomputes_module(share.layouts, job, EXPERT_ACTIVATION)
    if not any_of(is_again):
        return left
    # Computed again for the last matrix, the product of the halves stays until they have been differentiated.
    return np.where(is_again, left + share.of(_expert_product(layer)), left)


def _expert_product(layer: LayerBytes) -> SavedBytes:
    """Return what of an expert is thrown away: the product of its halves."""
    return replace(NOTHING_SAVED, expert_bytes=layer.whole.expert_bytes - layer.selective.expert_bytes)


def _beside_second_run(layer: LayerBytes, stream: FloatArray, casts: BoolArray, job: Job) -> FloatArray:
    """Return what stands beside a second run: a layer's input where it is not saved again.

    The textbook counts the input always. Of Megatron-Core it is the second run's output, which is handed to
    torch.autograd.backward with its gradient (tensor_parallel/random.py, `CheckpointFunction.backward`).
    """
    if job.profile.is_textbook or job.profile.kernels.transformer_engine:
        return stream
    keeps = np.where(casts, layer.cast_keeps_input, layer.keeps_input)
    return NO_BYTES if keeps.all() else np.where(keeps, 0.0, stream)


def _second_run(
    layer: LayerBytes, share: RankShare, casts: BoolArray, whole: FloatArray, gradient: FloatArray
) -> FloatArray:
    """Return what is live in a layer's second run under autocast, or as halves of one product are copied."""
    copied = NO_BYTES
    if layer.copied_halves_bytes:
        copied = whole + share.tokens * layer.copied_halves_bytes / share.tensor + gradient
    if not any_of(casts):
        return copied
    return np.maximum(copied, np.where(casts, whole + share.of_sequence(layer.beside_second_run), 0.0))


def _beside_combine(layer: LayerBytes, share: RankShare, job: Job) -> FloatArray:
    """Return what is live beside a layer as tokens return; Megatron sums those of several tensor-parallel ranks.

    Sums in fp32 are of a copy (core/transformer/moe/token_dispatcher.py, `combine_preprocess`).
    """
    beside_combine = share.of(layer.beside_combine)
    if not layer.grouped_sent_bytes:
        return np.where(share.layouts.expert_parallel > 1, beside_combine, 0.0)
    sent = share.of_sequence(layer.grouped_sent_bytes)
    over_ranks = np.where(share.layouts.expert_parallel > 1, 0.0, -sent)
    copied = _received(layer, share) if layer.parts_sum_widening > 1 else NO_BYTES
    in_parts = np.where(_cuts_experts(share, job), layer.parts_sum_widening * (sent + copied), 0.0)
    result: FloatArray = beside_combine + over_ranks + in_parts
    return result


def _cuts_experts(share: RankShare, job: Job) -> BoolArray:
    """Return where several tensor-parallel ranks have parts of an expert, and sum its outputs."""
    result: BoolArray = (expert_tensor_ranks(share.layouts, job) > 1) & (share.tensor > 1)
    return result


def _received(layer: LayerBytes, share: RankShare) -> FloatArray:
    """Return the tokens that a rank's experts get, as Megatron-Core sends them."""
    return share.of(replace(NOTHING_SAVED, dispatched_bytes=layer.grouped_sent_bytes))


def _weighed_outputs(layer: LayerBytes, share: RankShare) -> FloatArray:
    """Return what stands beside a mixture's forward pass as its outputs, weighed in fp32, are put in order."""
    saved, recomputed = layer.weighed_outputs
    token_bytes = np.where(share.layouts.recompute == FULL, recomputed, saved)
    result: FloatArray = share.tokens * share.busiest * token_bytes / share.dispatch_division
    return result


def _at_recomputed_combine(
    layer: LayerBytes, share: RankShare, job: Job, recomputed: FloatArray, stream: FloatArray
) -> FloatArray:
    """Return all that is live as tokens return while the layer is recomputed; nothing where it is not.

    In Megatron-Core's second run of a whole layer its output is not there yet, which stands beside all other moments,
    but that output's gradient is; a mixture that is recomputed by itself has the latter alone.
    """
    recompute = share.layouts.recompute
    if layer.grouped_sent_bytes:
        of_mixture = np.where(recomputes_module(share.layouts, job, MIXTURE), stream, 0.0)
        return np.where(recompute == FULL, recomputed, np.where(of_mixture > 0, recomputed + of_mixture, 0.0))
    runs_again = ((recompute == FULL) | (recompute == SELECTIVE)) & (share.layouts.expert_parallel > 1)
    return np.where(runs_again, recomputed, 0.0)


def _combine(layer: LayerBytes, share: RankShare, job: Job) -> FloatArray:
    """Return the live bytes as the outputs' sum is differentiated; a unit of its own gets its weights in 16 bits."""
    own, whole = share.of(layer.at_combine), share.of(layer.combine_whole)
    live = np.where(share.layouts.expert_parallel > 1, own, whole)
    is_again = recomputes_module(share.layouts, job, EXPERT_ACTIVATION)
    if any_of(is_again):
        # It is computed again behind this, for the experts' last matrix.
        live = live - np.where(is_again, share.of(_expert_product(layer)), 0.0)
    if not layer.grouped_sent_bytes or layer.parts_sum_widening <= 1:
        return live
    # The gradient in fp32 beside its copy in 16 bits, where two of those were counted.
    return live + np.where(_cuts_experts(share, job), (layer.parts_sum_widening - 1) * _received(layer, share), 0.0)


def _where_cast(casts: BoolArray, plain: SavedBytes, cast: SavedBytes, share: RankShare) -> FloatArray:
    """Return a rank's bytes of `cast` where autocast casts fp32 weights, of `plain` elsewhere."""
    return np.where(casts, share.of(cast), share.of(plain)) if any_of(casts) else share.of(plain)


def _selective(layer: LayerBytes, share: RankShare) -> tuple[FloatArray, FloatArray]:
    """Return what selective recomputation keeps of a layer, and what of it only while the layer is at work."""
    tokens, layouts = share.tokens, share.layouts
    scattered = np.where(share.sequence_division > 1, share.of_sequence(layer.scattered_bytes), 0.0)
    exchanged = NO_BYTES
    if layer.exchanged_bytes:
        sent = tokens * share.busiest * layer.exchanged_bytes / share.dispatch_division
        exchanged = np.where(layouts.expert_parallel > 1, sent, 0.0)
    whole_sum, own_sum = layer.not_recomputed_bytes
    sums_of_own = np.where(share.tensor > 1, share.of_sequence(own_sum), 0.0)
    own = tokens * (whole_sum + layer.selective_input_bytes / share.sequence_division) + sums_of_own
    return share.of(layer.selective) + scattered + exchanged, np.where(layouts.recompute == SELECTIVE, own, 0.0)


def _recomputed_layers(layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return how many of a stage's layers are fully recomputed.

    Where only some are, those for multi-token prediction are not (Megatron-Core, transformer/multi_token_prediction.py,
    `_checkpointed_forward`).
    """
    wanted = layouts.full_layers if job.recompute_every is None else rows.layers // job.recompute_every
    others = rows.layers - rows.has_multi_token * job.model.multi_token_layers
    limited = np.where(wanted == ALL_LAYERS, rows.layers, np.minimum(wanted, others))
    return np.where(layouts.recompute == FULL, limited, 0).astype(np.float64)


def _first_adapter_savings(rows: StageRows, job: Job, recomputed: FloatArray, share: RankShare) -> FloatArray:
    """Return what the first layer does not keep where the embedding before it is frozen.

    A recomputed layer's input is made to need a gradient (peft, `enable_input_require_grads`).
    """
    kernels = job.profile.kernels
    if job.embedding.trainable or job.profile.is_textbook:
        return NO_BYTES
    first = next(part for part in job.layers if 0 in part.block.layers)
    whole, needed = saved_with_and_without_input_gradient(
        first.block,
        kernels,
        attention=job.attention,
        element_bytes=job.precision.compute_bytes,
        learning=first.learning or frozenset(),
    )
    return np.where(rows.has_embedding & (recomputed == 0), share.of(whole) - share.of(needed), 0.0)


@once
def casts_weights(layouts: Candidates, job: Job) -> BoolArray:
    """Return where autocast makes 16-bit copies of fp32 weights as they are used."""
    is_wider = job.states.parameter != job.precision.compute_bytes
    return has_gathering(layouts.zero_stage, job, "autocast_copies") & np.bool_(is_wider)


def _head(job: Job, share: RankShare, casts: BoolArray) -> FloatArray:
    """Return what the head keeps; capped and scaled logits lie in the kernel's own chunk where the loss is fused."""
    kept = head_bytes(job)
    whole = _where_cast(casts, *kept, share)
    is_fused = share.layouts.fused_cross_entropy
    if not kept[0].tensor_bytes or not any_of(is_fused):
        return whole
    plain, cast = (replace(saved, tensor_bytes=0.0) for saved in kept)
    return np.where(is_fused, _where_cast(casts, plain, cast, share), whole)


def _logits(job: Job, share: RankShare, casts: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return logits, their upcast and their gradient at the worst event, and what of them the backward pass needs.

    That is the log-softmax in fp32, or less where less was held. A compiled loss needs the logits, and makes their
    gradient beside them.
    """
    model, loss, layouts, tokens = job.model, job.profile.loss, share.layouts, share.tokens
    division = share.tensor if loss.vocabulary_parallel else 1.0
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    whole: FloatArray | float = loss.logits_bytes
    if loss.vocabulary_parallel:
        whole = np.where(division > 1, loss.divided_logits_bytes, loss.logits_bytes)
    held = whole + np.where(accumulates, loss.kept_logits_bytes, 0)
    plain = tokens * model.vocabulary_size * held / division
    kept = plain * np.minimum(FP32_BYTES / whole, 1.0)
    if loss.compiled:
        is_whole = division == 1.0
        own = tokens * model.vocabulary_size * job.precision.compute_bytes
        plain, kept = np.where(is_whole, 2.0 * own, plain), np.where(is_whole, own, kept)
    is_fused = layouts.fused_cross_entropy
    if not any_of(is_fused):
        return plain, kept
    chunks, gradients = _fused_loss(job, share, casts)
    return np.where(is_fused, chunks + gradients, plain), np.where(is_fused, gradients, kept)


def _fused_loss(job: Job, share: RankShare, casts: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return one chunk of a loss that is fused with the head, and the gradients that it makes in the forward pass.

    Tokens are cut so that a chunk of logits is about as large as the hidden states. The gradients are those of the
    hidden states and of a head that learns, in fp32 where autocast casts both; it casts the head anew for every chunk,
    beside the cast that it keeps. Source: Liger-Kernel, ops/fused_linear_cross_entropy.py.
    """
    vocabulary, hidden, tokens = job.model.vocabulary_size, job.model.hidden_size, share.tokens
    chunks = np.ceil(vocabulary / hidden)
    chunk_tokens = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(np.ceil(tokens / chunks), 1.0))), tokens)
    size = job.precision.compute_bytes
    logits = chunk_tokens * vocabulary * job.profile.loss.fused_chunk_bytes
    learning = vocabulary if learns_head(job) else 0
    gradients = np.where(casts, FP32_BYTES, size) * hidden * (tokens + learning)
    return logits + np.where(casts, size * hidden * vocabulary, 0.0), gradients
