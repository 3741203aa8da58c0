"""Training steps of a rank that is all its stack's own code, on fake tensors, every allocation recorded."""

from __future__ import annotations

import functools
import gc

from torch._subclasses.fake_tensor import FakeTensorMode

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.recording.tracker import OPTIMIZER, StorageTracker
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.engine import OwnRank
from plimsoll.service.worker.training.gradient_labels import labelling_gradients
from plimsoll.service.worker.training.layer_marks import marking_layers
from plimsoll.service.worker.training.own_code import own_code_of
from plimsoll.service.worker.training.rank import process_group_of
from plimsoll.service.worker.training.steady import STATES, TRACE_STAGES, run_until_steady


def trace_own_steps(job: TraceJob, stack: Stack, report: Report, stage: PipelineStage) -> Ledger:
    """Return what a few steps of a stage's fullest rank did to memory."""
    ledger, own = Ledger(), own_code_of(stack)
    number = stage.number * (job.world_size // job.pipeline_parallel) + own.place_in_stage(job, stage)
    with (
        traceable_torch() as clock,
        own.running(job, number),
        process_group_of(job.world_size, rank=number),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        report(0, TRACE_STAGES, "stage", "building")
        with own.own_rank(job, stage) as rank:
            tracker = StorageTracker(ledger, clock, logit_shapes=rank.logit_shapes, summed_shapes=rank.summed_shapes)
            ledger.mark(0, STATES)
            for part in rank.standing():
                tracker.label_storage(part.storage, part.kind, part.name, device=part.device, on_host=part.on_host)
            layers = marking_layers(rank.layers_of_chunks, job.chunks_of(stage), ledger.mark_layer)
            gradients = labelling_gradients(rank.learning, tracker)
            with tracker.watching(), gradients, rank.attached(tracker.making), layers:
                run_until_steady(functools.partial(_run_step, rank, tracker), tracker, report)
            recorded = ledger.so_far()
    return recorded


def _run_step(rank: OwnRank, tracker: StorageTracker, step: int) -> None:
    rank.run_passes(functools.partial(tracker.begin_phase, step))
    tracker.begin_phase(step, OPTIMIZER)
    rank.update()
    tracker.label_all(rank.named_states(), Kind.OPTIMIZER_STATE)
    # What only the garbage collector frees must not make one step look unlike the next.
    gc.collect()
