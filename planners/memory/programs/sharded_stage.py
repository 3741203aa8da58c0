"""The quantities of a fully sharded step."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.formats.precision import FP8_BYTES
from plimsoll.planners.layouts.candidates import SELECTIVE, BoolArray, Candidates, FloatArray, any_of
from plimsoll.planners.memory.activations import norm_backward_bytes
from plimsoll.planners.memory.holdings import are_gradients_sent, has_gathering
from plimsoll.planners.memory.layer_bytes import sums_at_end
from plimsoll.planners.memory.p2p_buffers import keeps_first_input, received_gradient_bytes
from plimsoll.planners.memory.preference_loss import compares
from plimsoll.planners.memory.programs.at_rest import at_rest, others_at_ends, waiting_micro_batch
from plimsoll.planners.memory.programs.beside_policy import beside_policy
from plimsoll.planners.memory.programs.chunks import goes_round_once
from plimsoll.planners.memory.programs.logits import (
    differentiated_logits,
    forward_logits,
    later_logits_gradient,
    logits_gradient,
    stage_logits,
    unsaved_head_input,
)
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.programs.sharded import Chunks, LaterPass, ShardedStage
from plimsoll.planners.memory.programs.sharded_units import Gathering
from plimsoll.planners.memory.programs.stage_layers import FP8, gathered_into, is_divided, stage_layers
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment, Unit, mask_of, some


def sharded_stage(asked: Question) -> ShardedStage:
    """Return the quantities of the program."""
    layouts, rows, job, held, active = asked.layouts, asked.rows, asked.job, asked.held, asked.active
    traffic, size = job.profile.weights, job.precision.compute_bytes
    is_piped = layouts.pipeline_parallel > 1
    stays = is_piped & np.bool_(traffic.pipelines_gather_once)
    micro_batches = layouts.micro_batches(job.global_batch_size)
    learns_beside = any(companion.trainable for companion in job.companions)
    adds_up = np.bool_(learns_beside) | ((micro_batches > 1) & ~stays)
    gathering = Gathering(
        by_layer=mask_of(has_gathering(layouts.zero_stage, job, "gathered_by_layer") & ~stays),
        for_the_step=mask_of(stays),
        copies_out=traffic.gather_copies,
        adds_up=mask_of(adds_up),
        waits_for_replicas=mask_of(layouts.shard_group < layouts.data_parallel),
        sends=mask_of(are_gradients_sent(layouts, job)),
        casts_shards=traffic.gather_copies and job.reduce_bytes != job.states.gradient,
    )
    has_own_units = traffic.vocabulary_units and not job.model.tied_head
    first, head = _vocabulary(asked, has_own_units=has_own_units)
    waiting = waiting_micro_batch(asked)
    # A head's stage is fullest at the loss.
    others = np.ceil(others_at_ends(asked, np.maximum(rows.in_flight - 1.0, 0.0))[1] * waiting)
    is_fused = layouts.fused_cross_entropy & rows.has_head
    message = np.ceil(active.p2p_message)
    head_gradient = np.ceil(size * held.head_matrix_elements) if head is None else head.gradients
    is_tied = np.bool_(job.model.tied_head) & rows.has_embedding & rows.has_head
    of_logits = logits_gradient(asked, head_gradient)
    embedding_gradient = first.gradients - (np.where(is_tied, 0.0, head_gradient) if head is None else 0.0)
    is_split = np.bool_(traffic.whole_embedding_gradient) & (layouts.tensor_parallel > 1) & rows.has_embedding
    is_cut, is_summed_whole = is_split & ~stays, is_split & stays
    table = np.ceil(size * (held.root_elements - held.head_elements))
    kernels = job.profile.kernels
    received = np.ceil(received_gradient_bytes(layouts, rows, job, active.p2p_message))
    stays_for_loss = job.profile.loss.inside_model or traffic.keeps_root
    is_mixture_unit = np.bool_(traffic.vocabulary_units) & (layouts.expert_parallel > 1)
    return ShardedStage(
        rest=at_rest(asked, keeps_gradients=adds_up),
        layers=stage_layers(asked, gradient_bytes=np.full(1, float(size)), expert_units=is_mixture_unit),
        gathering=gathering,
        first=first,
        head=head,
        loss_inside_root=not (traffic.vocabulary_units or traffic.keeps_root) and job.profile.loss.inside_model,
        loss_behind_root=traffic.gather_copies and not (traffic.vocabulary_units or stays_for_loss),
        gathers_before_loss=compares(job),
        closes_before_loss=traffic.vocabulary_units and not job.profile.loss.inside_model,
        others=some(others),
        later=_later(asked, stays, others, waiting),
        message=message,
        # On their way to the host they are counted in `stashed`.
        forward_end=message * (sums_at_end(job, autocast=False) - 1) * ~layouts.activation_offload,
        embedded=some(np.ceil(embedding_output(asked))),
        received_in_buffers=some(received) if kernels.pipelines_keep_messages else NO_BYTES,
        received_apart=NO_BYTES if kernels.pipelines_keep_messages else some(received),
        unsaved=some(np.ceil(active.first_adapter_savings)),
        stashed=some(np.ceil(active.waiting)),
        held_inputs=some(np.ceil(_held_inputs(asked))),
        head_kept=np.ceil(active.head),
        unsaved_head_input=unsaved_head_input(asked),
        # OPT 350M projects the stream to half as many features for its head.
        loss_lets_go=some(np.where(is_fused, np.minimum(message, np.ceil(active.head)), 0.0)),
        forward_logits=forward_logits(asked),
        logits=differentiated_logits(asked),
        last_norm=np.ceil(_last_norm(asked)),
        kept_logits=np.ceil(active.kept_logits),
        logits_gradient=of_logits,
        head_gradient=head_gradient,
        later_logits_gradient=later_logits_gradient(asked, of_logits),
        later_head_gradient=head_gradient if job.profile.loss.sequence_chunks else NO_BYTES,
        whole_embedding=np.where(is_split, table * layouts.tensor_parallel, embedding_gradient),
        uncut_embedding=_uncut_embedding(layouts, embedding_gradient, table, is_cut, is_summed_whole),
        is_tied=mask_of(is_tied),
        cut_embedding=some(np.where(is_cut, table, 0.0)),
        whole_sum=some(np.where(is_summed_whole, first.summed, 0.0)),
        cut_sum=some(np.where(is_summed_whole, first.reduced, 0.0)),
        sum_of_both=some(np.where(is_tied & is_split, table, 0.0)),
        chunks=_chunks(asked, stays, waiting),
        head_casts=_head_casts(asked),
        companions=beside_policy(asked),
    )


def _uncut_embedding(
    layouts: Candidates,
    own: FloatArray,
    table: FloatArray,
    is_cut: BoolArray,
    is_summed_whole: BoolArray,
) -> FloatArray:
    """Return what stays of the embedding's gradient, whose rank's `own` part has that of a `table`."""
    whole = own + table * (layouts.tensor_parallel - 1)
    return np.where(is_cut, own - table, np.where(is_summed_whole, whole, own))


def _later(asked: Question, stays: BoolArray, others: FloatArray, waiting: FloatArray) -> tuple[LaterPass, ...]:
    """Return the passes of later micro-batches that can be the worst.

    One finds as many waiting as the first where the pipeline goes on, else one fewer, and all sums; of an interleaved
    stage that goes round its chunks once, those of the highest chunk, while most micro-batches wait.
    """
    layouts, rows = asked.layouts, asked.rows
    micro_batches = layouts.micro_batches(asked.job.global_batch_size)
    has_later = stays & (micro_batches > 1)
    fewer = np.where(micro_batches > rows.in_flight, others, np.maximum(others - waiting, 0.0))
    passes = LaterPass(mask_of(has_later), np.where(goes_round_once(layouts, asked.job), others, fewer))
    return () if passes.is_there is False else (passes,)


def _chunks(asked: Question, stays: BoolArray, waiting: FloatArray) -> Chunks | None:
    """Return the chunks of interleaved stages, None where no layout has any.

    The last round has as many micro-batches as there are stages.
    """
    layouts = asked.layouts
    are_there = stays & (layouts.virtual_pipeline > 1)
    if not any_of(are_there):
        return None
    chunks, stages = layouts.virtual_pipeline, layouts.pipeline_parallel
    return Chunks(
        are_there=mask_of(are_there),
        have_head=mask_of(asked.rows.has_head),
        goes_round_once=mask_of(are_there & goes_round_once(layouts, asked.job)),
        others=np.ceil((chunks - 1) * stages / chunks * waiting),
        others_of_lowest=np.ceil(np.maximum(stages / chunks - 1.0, 0.0) * waiting),
    )


def _vocabulary(asked: Question, *, has_own_units: bool) -> tuple[Unit, Unit | None]:
    """Return the unit of the embedding, and that of last norm and head where they are not one with it."""
    held, job = asked.held, asked.job
    size, reduce_bytes, copies = job.precision.compute_bytes, job.reduce_bytes, job.profile.weights.gather_copies
    shard = np.ceil(held.root_gradients + held.root_gradients_sent)
    is_shared = is_divided(asked)
    table = np.ceil(held.root_elements - held.head_elements)
    is_table_last = job.profile.weights.tied_table_last and job.model.tied_head
    last_of_head = np.where(is_shared, table if is_table_last else np.ceil(held.last_of_head), 0.0)
    widening = reduce_bytes / job.states.gradient
    whole = Unit(
        weights=np.ceil(size * (held.root_padded if copies else held.root_elements) + held.root_frozen),
        buffer=gathered_into(asked, size * held.root_padded + held.root_frozen),
        gradients=np.ceil(size * held.root_elements),
        reduced=np.ceil(reduce_bytes * held.root_padded),
        summed=np.ceil(reduce_bytes * held.root_elements),
        last_matrix_gradient=np.ceil(size * held.last_of_head),
        output=np.ceil(shard * widening),
        shard=shard,
        last_gradient=size * last_of_head,
        last_summed=reduce_bytes * last_of_head,
    )
    if not has_own_units:
        return whole, None
    head = Unit(
        weights=np.ceil(size * (held.head_padded if copies else held.head_elements) + held.head_frozen),
        buffer=gathered_into(asked, size * held.head_padded + held.head_frozen),
        gradients=np.ceil(size * held.head_elements),
        reduced=np.ceil(reduce_bytes * held.head_padded),
        summed=np.ceil(reduce_bytes * held.head_elements),
        last_matrix_gradient=np.ceil(size * held.last_of_head),
        output=np.ceil((held.head_gradients + held.head_gradients_sent) * widening),
        shard=np.ceil(held.head_gradients + held.head_gradients_sent),
        last_gradient=size * last_of_head,
        last_summed=reduce_bytes * last_of_head,
    )
    # DTensor leaves its ranks' gradients apart until they are reduced.
    whole_over_ranks = asked.layouts.tensor_parallel if job.profile.weights.whole_embedding_gradient else 1
    embedding = Unit(
        weights=whole.weights - head.weights,
        buffer=whole.buffer - head.buffer,
        gradients=whole.gradients - head.gradients,
        reduced=whole.reduced - head.reduced,
        summed=np.ceil(reduce_bytes * table * whole_over_ranks),
        last_matrix_gradient=np.ceil(size * table * whole_over_ranks),
        output=whole.output - head.output,
        shard=whole.shard - head.shard,
        last_gradient=np.where(is_shared, size * table, 0.0),
        last_summed=np.where(is_shared, reduce_bytes * table, 0.0),
    )
    return embedding, head


def embedding_output(asked: Question) -> FloatArray:
    """Return the embedding's output, which transformers' model holds until its last layer is through.

    Nothing where a layer keeps it: its input, if it is recomputed, and a LayerNorm's that learns. Source: transformers
    5.23, models/llama/modeling_llama.py, `LlamaModel.forward` (`inputs_embeds`).
    """
    job, active, layouts = asked.job, asked.active, asked.layouts
    if not job.profile.kernels.transformers_modules or (job.method == "full" and keeps_first_input(job)):
        return NO_BYTES
    is_saved = (active.recomputed_layers > 0) | (layouts.recompute == SELECTIVE)
    return np.where(asked.rows.has_embedding & ~is_saved, active.p2p_message, 0.0)


def _last_norm(asked: Question) -> FloatArray:
    """Return what is live as the norm before the head is differentiated: what it keeps, and its own products."""
    job, layouts = asked.job, asked.layouts
    per_feature = norm_backward_bytes(job.head.block, job.profile.kernels.of_head, job.precision.compute_bytes)
    divided = np.where(layouts.sequence_parallel, layouts.tensor_parallel, 1)
    tokens = layouts.local_tokens(job.sequence_length) / divided
    return np.where(asked.rows.has_head, tokens * job.model.hidden_size * per_feature, 0.0)


def _held_inputs(asked: Question) -> FloatArray:
    """Return what hooks of a finished layer still hold: its recomputed input and that input's gradient."""
    job = asked.job
    if job.method == "full" or not job.profile.weights.frozen_layers_hold_inputs:
        return NO_BYTES
    is_gathered = has_gathering(asked.layouts.zero_stage, job, "gathered_by_layer")
    return np.where(is_gathered, 2.0 * asked.active.checkpoint, 0.0)


def _head_casts(asked: Question) -> tuple[Moment, ...]:
    """Return the moments at which the head's products cast what they multiply to fp8, by torchao's separate operations.

    In the forward pass and for the hidden states' gradient that is the head itself, for the head's own gradient the
    logits' (torchao, float8/float8_linear.py, `matmul_with_hp_or_float8_args`). What they hold of logits is beside the
    logits' gradient.
    """
    job, held = asked.job, asked.held
    if job.precision.compute_format != FP8:
        return ()
    cast = job.profile.kernels.fp8_cast_bytes
    logits = stage_logits(asked)
    weight = held.head_matrix_elements
    done = asked.active.p2p_message + FP8_BYTES * weight
    return (
        Moment("head cast", np.ceil(cast * weight), NO_BYTES),
        Moment("head cast again", np.ceil(cast * weight), np.ceil(FP8_BYTES * logits)),
        Moment("logits' gradient cast", np.ceil(done), np.ceil((FP8_BYTES + cast) * logits)),
    )
