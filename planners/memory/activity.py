"""Activations of every stage: kept, thrown away and computed again, per micro-batch."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import Split
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, SELECTIVE, BoolArray, Candidates, FloatArray, once
from plimsoll.planners.layouts.experts import expert_tensor_ranks
from plimsoll.planners.layouts.stages import StageRows
from plimsoll.planners.memory.activations import KeptBytes
from plimsoll.planners.memory.holdings import has_gathering
from plimsoll.planners.memory.items import NOTHING
from plimsoll.planners.memory.layer_bytes import LayerBytes, head_bytes, layer_bytes
from plimsoll.planners.memory.layer_moments import unneeded_bytes
from plimsoll.planners.memory.rank_share import RankShare, rank_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """A rank's bytes of one micro-batch, for each stage.

    Kept until the backward pass:

    - `stage` by all its layers, `layer` by one that is not recomputed, `checkpoint` by one that fully is;
    - `recomputed_layers` and `kept_layers` count those that fully are and those that are not;
    - `kept_twice` are a layer's tensors that several operations keep, `kept_again` the same as often as they come
      again (`kept_again.py`); `waiting` is on its way to the host;
    - `unneeded` is what a first layer of adapters does not keep, `unused` what selective recomputation keeps of the
      layer at work beside what it computes again;
    - `head` by the head, `logits` as `_logits` says, and of them `kept_logits` once the loss is known.

    There while a layer is differentiated:

    - `working_set`, all that it keeps; `transient`, the gradients that meet in it; `last_matrix`, both at the last
      matrix, without what a mixture has let go of by then;
    - `last_product`, the gradients around its last matrix; `second_norm` and `first_norm`, what is left as the norm
      between its halves is differentiated and as its first one is; `attention_gradients`, what is there as its
      attention is; `first_products`, as the first matrices of its feed-forward have been;
    - `returned`, what stands beside a mixture's layer as its tokens come back from their experts, and `tokens_back` all
      that is there as they do in the layer's second run; `experts_product`, `combine` and `experts_reduced`, what is
      there as the experts' first matrices and the sum of their outputs are, and as the experts' gradients are reduced.

    `message` is what stages send each other, `gathered` the buffers that tensor parallelism gathers into and scatters
    from.
    """

    stage: FloatArray
    layer: FloatArray
    checkpoint: FloatArray
    recomputed_layers: FloatArray
    kept_layers: FloatArray
    kept_twice: FloatArray
    kept_again: FloatArray
    waiting: FloatArray
    working_set: FloatArray
    transient: FloatArray
    last_matrix: FloatArray
    first_norm: FloatArray
    second_norm: FloatArray
    attention_gradients: FloatArray
    first_products: FloatArray
    last_product: FloatArray
    message: FloatArray
    unused: FloatArray
    unneeded: FloatArray
    returned: FloatArray
    tokens_back: FloatArray
    experts_product: FloatArray
    combine: FloatArray
    experts_reduced: FloatArray
    remembered: FloatArray
    head: FloatArray
    logits: FloatArray
    kept_logits: FloatArray
    gathered: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfKind:
    """A rank's bytes of one layer of a kind: `whole` is all that it keeps, the others as `Activity` names them."""

    whole: FloatArray
    selective: FloatArray
    unused: FloatArray
    checkpoint: FloatArray
    transient: FloatArray
    last_matrix: FloatArray
    first_norm: FloatArray
    second_norm: FloatArray
    attention_gradients: FloatArray
    first_products: FloatArray
    last_product: FloatArray
    returned: FloatArray
    tokens_back: FloatArray
    experts_product: FloatArray
    combine: FloatArray
    experts_reduced: FloatArray
    remembered: FloatArray
    kept_twice: FloatArray
    kept_again: FloatArray


def activity(layouts: Candidates, rows: StageRows, job: Job) -> Activity:
    """Return the activations of every stage of `rows`."""
    kernels, size = job.profile.kernels, job.precision.compute_bytes
    share = rank_share(layouts, job)
    casts = casts_weights(layouts, job) & np.bool_(job.method == "full")
    kinds = [_of_kind(layer_bytes(part, job), share, casts, job) for part in job.layers]

    def most(name: str) -> FloatArray:
        return functools.reduce(np.maximum, (getattr(kind, name) for kind in kinds), NOTHING)

    def of_all_layers(name: str) -> FloatArray:
        counted = zip(rows.layers_of_kind, kinds, strict=True)
        return sum((count * getattr(kind, name) for count, kind in counted), NOTHING)

    kept = of_all_layers("whole")
    is_selective = layouts.recompute == SELECTIVE
    if is_selective.any():
        kept = np.where(is_selective, of_all_layers("selective"), kept)
    layers = np.maximum(rows.layers, 1)
    recomputed, checkpoint = _recomputed_layers(layouts, rows, job), most("checkpoint")
    unneeded = _unneeded(rows, job, recomputed, share)
    logits, kept_logits = _logits(job, share, casts)
    return Activity(
        stage=kept / layers * (rows.layers - recomputed) + checkpoint * recomputed - unneeded,
        layer=kept / layers,
        checkpoint=checkpoint,
        recomputed_layers=recomputed,
        kept_layers=rows.layers - recomputed,
        kept_twice=of_all_layers("kept_twice") / layers,
        kept_again=of_all_layers("kept_again") / layers,
        waiting=NOTHING,
        working_set=most("whole"),
        transient=most("transient") if kernels.backward_transients else NOTHING,
        last_matrix=most("last_matrix"),
        first_norm=most("first_norm"),
        second_norm=most("second_norm"),
        attention_gradients=most("attention_gradients"),
        first_products=most("first_products"),
        last_product=most("last_product"),
        message=share.of_sequence(size * job.model.hidden_size),
        unused=most("unused"),
        unneeded=unneeded,
        returned=most("returned"),
        tokens_back=most("tokens_back"),
        experts_product=most("experts_product"),
        combine=most("combine"),
        experts_reduced=most("experts_reduced"),
        remembered=of_all_layers("remembered"),
        head=np.where(rows.has_head, _where_cast(casts, *head_bytes(job), share), 0.0),
        logits=np.where(rows.has_head, logits, 0.0),
        kept_logits=np.where(rows.has_head, kept_logits, 0.0),
        gathered=np.where(
            share.sequence_division > 1, share.tokens * job.model.hidden_size * kernels.gathered_workspace_bytes, 0.0
        ),
    )


def _of_kind(layer: LayerBytes, share: RankShare, casts: BoolArray, job: Job) -> _OfKind:
    size, tokens, layouts = job.precision.compute_bytes, share.tokens, share.layouts
    # One number where nothing is cast, so that the kept inputs do not vary along the axis of stages for it.
    stream_bytes = np.where(casts, FP32_BYTES, size) if casts.any() else size
    widest = share.busiest * layer.widest / share.tensor
    residual = layer.input_width / share.sequence_division
    selective = unused = twice = again = NOTHING
    if (layouts.recompute == SELECTIVE).any():
        selective, unused = _selective(layer, share)
    if layouts.activation_offload.any():
        twice = tokens * np.where(casts, layer.cast_again.once_bytes, layer.again.once_bytes)
        again = tokens * np.where(casts, layer.cast_again.again_bytes, layer.again.again_bytes)
    is_mixture = bool(job.model.experts_per_token)
    whole = _where_cast(casts, layer.whole, layer.cast, share)
    returned = _returned(layer, share, job) if is_mixture else NOTHING
    transient = np.maximum(
        tokens * size * (layer.meeting_gradients * widest + residual), tokens * layer.scan_workspace / share.tensor
    )
    return _OfKind(
        whole=whole,
        selective=selective,
        unused=unused,
        checkpoint=share.of_sequence(layer.input_width * stream_bytes),
        transient=transient,
        last_matrix=_at_last_matrix(layer, share, job, whole + transient),
        first_norm=share.of_sequence(layer.input_width * layer.first_norm_bytes),
        second_norm=share.of(layer.second_norm),
        attention_gradients=share.of(layer.attention_gradients),
        first_products=share.of(layer.first_products),
        last_product=tokens * size * (widest + residual),
        experts_product=share.of(layer.experts_product) if is_mixture else NOTHING,
        combine=_combine(layer, share) if is_mixture else NOTHING,
        returned=returned,
        tokens_back=_tokens_back(layer, share, whole + returned) if is_mixture else NOTHING,
        experts_reduced=share.of(layer.experts_reduced) if is_mixture else NOTHING,
        remembered=share.of_sequence(layer.remembered_bytes) if is_mixture else NOTHING,
        kept_twice=twice,
        kept_again=again,
    )


def _at_last_matrix(layer: LayerBytes, share: RankShare, job: Job, everything: FloatArray) -> FloatArray:
    """Return what is there at a layer's last matrix: `everything`, or of a mixture that learns what is left by then."""
    if layer.experts_last_product is None or job.method != "full":
        return everything
    return share.of(layer.experts_last_product)


def _returned(layer: LayerBytes, share: RankShare, job: Job) -> FloatArray:
    """Return what stands beside a layer as its tokens come back; Megatron's over several tensor ranks are summed."""
    returned = share.of(layer.beside_returned)
    if not layer.grouped_sent_bytes:
        return np.where(share.layouts.expert_parallel > 1, returned, 0.0)
    sent = share.of_sequence(layer.grouped_sent_bytes)
    over_ranks = np.where(share.layouts.expert_parallel > 1, 0.0, -sent)
    in_parts = np.where((expert_tensor_ranks(share.layouts, job) > 1) & (share.tensor > 1), sent, 0.0)
    result: FloatArray = returned + over_ranks + in_parts
    return result


def _tokens_back(layer: LayerBytes, share: RankShare, second_run: FloatArray) -> FloatArray:
    """Return all that is there as a layer's tokens come back in its second run; nothing where it has none."""
    recompute = share.layouts.recompute
    runs_again = recompute == FULL
    if not layer.grouped_sent_bytes:
        runs_again = (runs_again | (recompute == SELECTIVE)) & (share.layouts.expert_parallel > 1)
    return np.where(runs_again, second_run, 0.0)


def _combine(layer: LayerBytes, share: RankShare) -> FloatArray:
    """Return what is there as the outputs' sum is differentiated; a unit of its own gets its weights in 16 bits."""
    own, whole = share.of(layer.combine), share.of(layer.combine_whole)
    return np.where(share.layouts.expert_parallel > 1, own, whole)


def _where_cast(casts: BoolArray, plain: KeptBytes, cast: KeptBytes, share: RankShare) -> FloatArray:
    """Return a rank's bytes of `cast` where autocast casts fp32 weights, of `plain` elsewhere."""
    return np.where(casts, share.of(cast), share.of(plain)) if casts.any() else share.of(plain)


def _selective(layer: LayerBytes, share: RankShare) -> tuple[FloatArray, FloatArray]:
    """Return what selective recomputation keeps of a layer, and what of it only while the layer is at work."""
    tokens, layouts = share.tokens, share.layouts
    scattered = np.where(share.sequence_division > 1, share.of_sequence(layer.scattered_bytes), 0.0)
    exchanged = NOTHING
    if layer.exchanged_bytes:
        sent = tokens * share.busiest * layer.exchanged_bytes / share.dispatch_division
        exchanged = np.where(layouts.expert_parallel > 1, sent, 0.0)
    whole_sum, own_sum = layer.unused_bytes
    sums_of_own = np.where(share.tensor > 1, share.of_sequence(own_sum), 0.0)
    own = tokens * (whole_sum + layer.selective_input_bytes / share.sequence_division) + sums_of_own
    return share.of(layer.selective) + scattered + exchanged, np.where(layouts.recompute == SELECTIVE, own, 0.0)


def _recomputed_layers(layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return how many of a stage's layers are fully recomputed."""
    wanted = layouts.full_layers if job.recompute_every is None else rows.layers // job.recompute_every
    limited = np.where(wanted == ALL_LAYERS, rows.layers, np.minimum(wanted, rows.layers))
    return np.where(layouts.recompute == FULL, limited, 0).astype(np.float64)


def _unneeded(rows: StageRows, job: Job, recomputed: FloatArray, share: RankShare) -> FloatArray:
    """Return what the first layer does not keep where the embedding before it is frozen.

    A recomputed layer's input is made to need a gradient (peft, `enable_input_require_grads`).
    """
    kernels = job.profile.kernels
    if job.embedding.trainable or not kernels.backward_transients:
        return NOTHING
    first = next(part for part in job.layers if 0 in part.block.layers)
    whole, needed = unneeded_bytes(
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


def _logits(job: Job, share: RankShare, casts: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return logits, their upcast and their gradient at the worst moment, and what of them the backward pass needs.

    That is the log-softmax in fp32, or less where less was held.
    """
    model, loss, layouts, tokens = job.model, job.profile.loss, share.layouts, share.tokens
    division = share.tensor if loss.vocabulary_parallel else 1.0
    accumulates = layouts.micro_batches(job.global_batch_size) > 1
    whole = np.where(
        (division > 1) if loss.vocabulary_parallel else False, loss.divided_logits_bytes, loss.logits_bytes
    )
    held = whole + np.where(accumulates, loss.kept_logits_bytes, 0)
    plain = tokens * model.vocabulary_size * held / division
    chunks, gradients = _fused_loss(job, share, casts)
    is_fused = layouts.fused_cross_entropy
    kept: FloatArray = np.where(is_fused, gradients, plain * np.minimum(FP32_BYTES / whole, 1.0))
    result: FloatArray = np.where(is_fused, chunks + gradients, plain)
    return result, kept


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
    is_whole = job.method == "full" or any(weight.split is Split.VOCABULARY for weight in job.head.trainable)
    learning = vocabulary if is_whole else 0
    gradients = np.where(casts, FP32_BYTES, size) * hidden * (tokens + learning)
    return logits + np.where(casts, size * hidden * vocabulary, 0.0), gradients
