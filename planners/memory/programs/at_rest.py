"""What is there from the start of a step to its end, and the update of the weights, which every program ends with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.ground.terms import GPIPE
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import SELECTIVE, BoolArray, Candidates, FloatArray, any_of
from plimsoll.planners.layouts.stages import StageRows, layers_of_lowest, waiting_in_chunks
from plimsoll.planners.memory.compression import saved_routing_bytes
from plimsoll.planners.memory.p2p_buffers import p2p_buffer_bytes
from plimsoll.planners.memory.programs.logits import is_compiled, stage_logits
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.rotary_tables import (
    has_tables_of_layers,
    lasting_rotary_table_bytes,
    rotary_table_bytes,
    tables_of_layers,
)
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, some
from plimsoll.planners.memory.steps.step import UPDATE, Held, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AtRest:
    """Whole bytes on one rank of a stage.

    `kept_gradients` are those of the micro-batches before, `all_gradients` those that an update finds; `errors` are
    what gradient compression remembers, `empty_gradients` what autograd is handed for those that are added up
    elsewhere, `gathered_for_head` the place of the head's whole input; `for_passes` is what lasts from the first pass
    to the last: workspaces, tables. `temporaries` are the update's.
    """

    parameters: FloatArray
    optimizer: FloatArray
    kept_gradients: FloatArray
    all_gradients: FloatArray
    errors: FloatArray
    p2p_buffers: FloatArray
    empty_gradients: FloatArray
    gathered_for_head: FloatArray
    for_passes: FloatArray
    temporaries: FloatArray


def at_rest(asked: Question, *, keeps_gradients: BoolArray) -> AtRest:
    """Return what lies on a rank; gradients where they are kept from one micro-batch to the next."""
    layouts, job, held, active = asked.layouts, asked.job, asked.held, asked.active
    gradients = np.ceil(held.gradients)
    rotary = 0 if job.profile.is_textbook else rotary_table_bytes(job) / layouts.context_parallel
    if job.profile.kernels.transformer_engine:
        # Each chunk is a model with a table of its own (`RotaryEmbedding.forward`).
        rotary = rotary * layouts.virtual_pipeline.astype(np.float64)
    if has_tables_of_layers(job):
        rotary = tables_of_layers(job, asked.rows.layers) / layouts.context_parallel
    tables = lasting_rotary_table_bytes(job)
    return AtRest(
        parameters=np.ceil(held.parameters) + tables if tables else np.ceil(held.parameters),
        optimizer=np.ceil(held.optimizer),
        kept_gradients=some(np.where(keeps_gradients, gradients, 0.0)),
        all_gradients=gradients,
        errors=some(np.ceil(saved_routing_bytes(layouts, job, held.stage_elements))),
        p2p_buffers=some(np.ceil(p2p_buffer_bytes(layouts, asked.rows, job, active.p2p_message))),
        empty_gradients=some(np.ceil(held.dummy_gradients)),
        gathered_for_head=some(np.ceil(_gathered_for_head(asked))),
        for_passes=np.ceil(active.gathered + active.saved_routing + pipeline_output(asked) + rotary),
        temporaries=some(np.where(layouts.offload == 0, np.ceil(_temporaries(asked)), 0.0)),
    )


def _gathered_for_head(asked: Question) -> FloatArray:
    """Return where Megatron-Core gathers the head's split input (tensor_parallel/layers.py, `GlobalMemoryBuffer`)."""
    layouts, job = asked.layouts, asked.job
    if not job.profile.kernels.transformer_engine:
        return NO_BYTES
    whole = layouts.local_tokens(job.sequence_length) * job.model.hidden_size * job.precision.compute_bytes
    return np.where(asked.rows.has_head & layouts.sequence_parallel, whole, 0.0)


def pipeline_output(asked: Question) -> FloatArray:
    """Return the logits of one micro-batch that a pipeline's last stage holds on to, where the stack does.

    A compiled loss keeps the same ones for its own gradient.
    """
    job, is_piped = asked.job, asked.layouts.pipeline_parallel > 1
    if not job.profile.loss.pipelines_keep_output or not any_of(is_piped):
        return NO_BYTES
    return np.where(is_piped & ~is_compiled(asked), job.precision.compute_bytes * stage_logits(asked), 0.0)


def waiting_micro_batch(asked: Question) -> FloatArray:
    """Return what a stage keeps of a micro-batch that waits for its backward pass.

    GPipe begins no backward pass before the last forward one: the head's stage keeps what the loss is
    differentiated by, the log-softmax in fp32, of each.
    """
    active = asked.active
    kept = active.stage + _mask(asked)
    if asked.job.pipeline_schedule != GPIPE:
        return np.ceil(kept)
    return np.ceil(kept + active.head + active.kept_logits + pipeline_output(asked))


def others_at_ends(asked: Question, others: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how many micro-batches' worth waits as the embedding's gradient is made, and at the loss."""
    layouts, rows = asked.layouts, asked.rows
    if layouts.virtual_pipeline.max() == 1:
        return others, others
    _, lowest, _ = waiting_in_chunks(layouts, rows.pipelines, asked.job)
    at_embedding = (lowest - layers_of_lowest(layouts, rows.pipelines)) / np.maximum(rows.layers, 1)
    is_interleaved = layouts.virtual_pipeline > 1
    at_head = others_at_loss(layouts, rows, asked.job, others)
    return np.where(is_interleaved, at_embedding, others), at_head


def others_at_loss(layouts: Candidates, rows: StageRows, job: Job, others: FloatArray) -> FloatArray:
    """Return how many micro-batches' worth waits at the loss: on the head's stage as the highest chunk is at work."""
    if layouts.virtual_pipeline.max() == 1:
        return others
    _, _, highest = waiting_in_chunks(layouts, rows.pipelines, job)
    is_head = rows.has_head & (layouts.virtual_pipeline > 1)
    return np.where(is_head, np.maximum(highest / np.maximum(rows.layers, 1) - 1.0, 0.0), others)


def _mask(asked: Question) -> FloatArray:
    """Return eager attention's mask of a micro-batch, one for all layers, where some are to run again with it."""
    masks = [layer.backward.mask for layer in asked.active.layers if any_of(layer.backward.mask)]
    if not masks:
        return NO_BYTES
    runs_again = (asked.active.recomputed_layers > 0) | (asked.layouts.recompute == SELECTIVE)
    return np.where(runs_again, masks[0], 0.0)


@dataclass(slots=True, eq=False)
class Lasting:
    """What a program holds throughout: `passes` until the backward pass is over, the others for good.

    `gradients` are those of the micro-batches before.
    """

    p2p_buffers: Held
    gradients: Held
    passes: Held


def begin(step: Step, rest: AtRest) -> Lasting:
    """Take what is there from the start."""
    buffers = step.take("activations", "P2P buffers", rest.p2p_buffers)
    step.leave(
        step.take("parameters", "parameters", rest.parameters),
        step.take("optimizer", "optimizer states", rest.optimizer),
        step.take("communication", "errors of compression", rest.errors),
        step.take("activations", "empty gradients", rest.empty_gradients),
        step.take("communication", "head's whole input", rest.gathered_for_head),
        buffers,
    )
    gradients = step.take("gradients", "gradients of the micro-batches before", rest.kept_gradients)
    step.leave(gradients)
    passes = step.take("activations", "workspaces and tables", rest.for_passes)
    return Lasting(p2p_buffers=buffers, gradients=gradients, passes=passes)


def update(step: Step, rest: AtRest) -> None:
    """Update the weights."""
    step.phase = UPDATE
    step.drop(step.take("optimizer", "temporaries of the update", rest.temporaries))


def _temporaries(asked: Question) -> FloatArray:
    """Return what the update makes beside the states: copies of parameters or gradients, or what one matrix takes."""
    held, job = asked.held, asked.job
    kind = job.optimizer
    if kind.is_one_kernel:
        return NO_BYTES
    if not kind.matrix_temporary_bytes:
        copies = job.profile.optimizer_transient_copies * job.states.parameter
        return copies * held.local_parameters + held.widened_gradients
    largest = held.largest_matrix_elements
    if kind.moments == kind.hidden_matrix_moments:  # it updates embedding and head as well
        embedding = (held.root_elements - held.head_elements) * asked.rows.has_embedding
        largest = np.maximum(largest, np.maximum(embedding, held.head_matrix_elements))
    at_work = kind.matrix_temporary_bytes * largest + kind.gram_temporary_bytes * job.model.hidden_size**2
    result: FloatArray = np.maximum(at_work, held.update_gather_bytes)  # gathered once all matrices are updated
    return result
