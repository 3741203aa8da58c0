"""Training steps of one rank on fake tensors, every allocation recorded."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.parallel import loss_parallel

from plimsoll.service.worker.jobs.config_keys import hidden_size
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.recording.host_memory import on_host
from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import StreamClock, traceable_torch
from plimsoll.service.worker.recording.tracker import BACKWARD, EVALUATION, FORWARD, OPTIMIZER, StorageTracker
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.decoder_parts import decoder_layers
from plimsoll.service.worker.training.engine import Engine, Objective
from plimsoll.service.worker.training.gradient_labels import labelling_gradients
from plimsoll.service.worker.training.kernels.fused_loss import chunk_tokens
from plimsoll.service.worker.training.kernels.gated_delta import gated_delta_kernels
from plimsoll.service.worker.training.kernels.in_place_loss import vocabulary_parallel_loss
from plimsoll.service.worker.training.kernels.state_space import state_space_kernels
from plimsoll.service.worker.training.layer_marks import marking_layers
from plimsoll.service.worker.training.optimizers import MasterWeightOptimizer
from plimsoll.service.worker.training.own_code import own_code_of
from plimsoll.service.worker.training.own_steps import trace_own_steps
from plimsoll.service.worker.training.parallel.pipeline import StageSchedule
from plimsoll.service.worker.training.precision import computing
from plimsoll.service.worker.training.rank import Rank, build_rank, device_mesh, learning_parameters, process_group_of
from plimsoll.service.worker.training.steady import STATES, TRACE_STAGES, run_until_steady

# Micro-batches after the second find the memory as the second did.
MOST_TRACED_MICRO_BATCHES = 2


class Watcher(Protocol):
    """What a step tells while it runs."""

    def begin_phase(self, step: int, phase: str) -> None:
        """Take note that a phase of a step begins."""

    def label_all(self, named: Iterable[tuple[str, torch.Tensor]], kind: Kind) -> None:
        """Take note of what tensors are for."""


def trace_steps(job: TraceJob, stack: Stack, report: Report, stage: PipelineStage | None = None) -> Ledger:
    """Run a few steps of a stage's fullest rank (of the first stage by default) and return what they did to memory."""
    stage = stage or job.deciding_stages[0]
    gc.freeze()  # what is imported stays: the collector need not visit it for every new tensor
    if stack.runs_own_model(job):
        return trace_own_steps(job, stack, report, stage)
    return trace_steps_on_transformers(job, stack, report, stage)


def trace_steps_on_transformers(job: TraceJob, stack: Stack, report: Report, stage: PipelineStage) -> Ledger:
    """Return what steps of transformers' model, sharded and trained as the stack would, did to the fullest rank."""
    ledgers = [_traced_rank(job, stack, report, stage, rank) for rank in own_code_of(stack).ranks(job)]
    return max(ledgers, key=lambda ledger: ledger.peak().allocated_bytes)


def _traced_rank(job: TraceJob, stack: Stack, report: Report, stage: PipelineStage, number: int) -> Ledger:
    ledger = Ledger()
    running = own_code_of(stack).running(job, number)
    kernels, scans = gated_delta_kernels(job.tracing), state_space_kernels(job.tracing)
    with traceable_torch() as clock, process_group_of(job.world_size, rank=number), running, kernels, scans:
        mesh = device_mesh(job)
        with FakeTensorMode(allow_non_fake_inputs=True):
            report(0, TRACE_STAGES, "stage", "building and sharding")
            rank = build_rank(job, stack, mesh, stage)
            objective = rank.engine.objective if rank.engine else None
            tracker = storage_tracker(job, ledger, clock, objective)
            batch = objective.batch() if objective else training_batch(job)
            record_steps(job, stack, stage, rank, tracker, batch, report)
            recorded = ledger.so_far()
    return recorded


def record_steps(
    job: TraceJob,
    stack: Stack,
    stage: PipelineStage,
    rank: Rank,
    tracker: StorageTracker,
    batch: dict[str, torch.Tensor],
    report: Report,
    *,
    stops_when_steady: bool = True,
) -> None:
    """Run steps, recording what they do to memory, until one leaves it as it found it.

    Ranks that wait for each other run all of them: one may find its memory steady a step before another does.
    """
    _label_what_stands(rank, tracker, batch)
    attached = contextlib.nullcontext() if rank.engine is None else rank.engine.attach(tracker.making)

    def run(step: int) -> None:
        run_step(step, job, stack, stage, rank, tracker, batch)
        if rank.engine is not None and rank.engine.evaluation is not None:
            tracker.begin_phase(step, EVALUATION)
            rank.engine.evaluation.run()
            gc.collect()

    of_chunks = [list(decoder_layers(chunk)) for chunk in rank.chunks]
    layers = marking_layers(of_chunks, job.chunks_of(stage), tracker.ledger.mark_layer)
    with tracker.watching(), labelling_gradients(learning_parameters(rank.model), tracker), layers, attached:
        run_until_steady(run, tracker, report, stops_when_steady=stops_when_steady)


def storage_tracker(
    job: TraceJob, ledger: Ledger, clock: StreamClock, objective: Objective | None = None
) -> StorageTracker:
    """Return a tracker that knows the job's logits by their shapes; call it in the mode that it is to watch."""
    vocabulary, tokens = job.vocabulary_size, job.micro_batch_tokens
    shapes = {(tokens, vocabulary), (tokens, -(-vocabulary // job.tensor_parallel))}
    if job.fused_cross_entropy:
        shapes.add((chunk_tokens(tokens, hidden_size(job.config), vocabulary), vocabulary))
    if objective is not None:
        shapes |= objective.logit_shapes
    return StorageTracker(ledger, clock, logit_shapes=frozenset(shapes))


def training_batch(job: TraceJob) -> dict[str, torch.Tensor]:
    """Return a micro-batch's inputs on the default device, all tokens zero."""
    shape = (job.micro_batch_size, job.local_sequence_length)
    return {
        "input_ids": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.zeros(shape, dtype=torch.int64),
        "position_ids": torch.arange(job.local_sequence_length)[None],
    }


def _label_what_stands(rank: Rank, tracker: StorageTracker, batch: dict[str, torch.Tensor]) -> None:
    """Record what is there before the first step begins."""
    tracker.ledger.mark(0, STATES)
    with on_host(rank.states_on_host):
        tracker.label_all(rank.model.named_parameters(), Kind.PARAMETER)
    if rank.engine is not None:
        for part in rank.engine.standing():
            tracker.label_storage(part.storage, part.kind, part.name, device=part.device, on_host=part.on_host)
    tracker.label_all(rank.model.named_buffers(), Kind.BUFFER)
    tracker.label_all(batch.items(), Kind.INPUT)
    tracker.label_all((("gradient bucket", bucket) for bucket in rank.buckets), Kind.COMMUNICATION)
    tracker.label_all((("dummy gradient", dummy) for dummy in rank.dummy_gradients), Kind.DUMMY_GRADIENT)
    tracker.label_all(rank.optimizer.named_states(), Kind.OPTIMIZER_STATE)
    if isinstance(rank.optimizer, MasterWeightOptimizer):
        gradients = (("fp32 gradient", gradient) for gradient in rank.optimizer.main_gradients)
        tracker.label_all(gradients, Kind.GRADIENT)


def run_step(
    step: int,
    job: TraceJob,
    stack: Stack,
    stage: PipelineStage,
    rank: Rank,
    watcher: Watcher,
    batch: dict[str, torch.Tensor],
) -> None:
    """Run one optimizer step: forward and backward of each micro-batch, then the update."""
    with contextlib.nullcontext() if rank.gathers_logits else loss_parallel():
        if stage.stages > 1:
            forward = functools.partial(_stage_output, job, stack, rank, batch)
            schedule = StageSchedule(job, stack, stage, rank.chunks, forward, rank.messages)
            schedule.run(job.accumulation_steps, functools.partial(watcher.begin_phase, step))
        else:
            _run_micro_batches(step, job, stack, rank, watcher, batch)
    watcher.begin_phase(step, OPTIMIZER)
    with on_host(rank.states_on_host):
        rank.optimizer.step()
    watcher.label_all(rank.optimizer.named_states(), Kind.OPTIMIZER_STATE)
    rank.optimizer.zero_grad()
    # What only the garbage collector frees must not make one step look unlike the next.
    gc.collect()


def _run_micro_batches(
    step: int, job: TraceJob, stack: Stack, rank: Rank, watcher: Watcher, batch: dict[str, torch.Tensor]
) -> None:
    micro_batches = min(job.accumulation_steps, MOST_TRACED_MICRO_BATCHES)
    for number in range(micro_batches):
        if rank.engine is None:
            _run_micro_batch(step, job, stack, rank, watcher, batch)
        else:
            _run_micro_batch_of_engine(
                rank.engine, step, job, stack, rank, watcher, batch, is_last=number == micro_batches - 1
            )


def _run_micro_batch(
    step: int, job: TraceJob, stack: Stack, rank: Rank, watcher: Watcher, batch: dict[str, torch.Tensor]
) -> None:
    watcher.begin_phase(step, FORWARD)
    with computing(job, stack, batch["input_ids"].device.type), rank.keeping:
        loss = _output_and_loss(job, stack, rank.model, rank, batch)[1]
    watcher.begin_phase(step, BACKWARD)
    loss.backward()


def _run_micro_batch_of_engine(
    engine: Engine,
    step: int,
    job: TraceJob,
    stack: Stack,
    rank: Rank,
    watcher: Watcher,
    batch: dict[str, torch.Tensor],
    *,
    is_last: bool,
) -> None:
    """Run one as the engine does, in whose care the format of the products is too."""
    with engine.micro_batch(is_last=is_last):
        watcher.begin_phase(step, FORWARD)
        with rank.keeping:
            if engine.objective is None:
                loss = _output_and_loss(job, stack, engine.model, rank, batch)[1]
            else:
                loss = engine.objective.loss(engine.model, batch)
        watcher.begin_phase(step, BACKWARD)
        engine.backward(loss, is_last=is_last)


def _stage_output(
    job: TraceJob,
    stack: Stack,
    rank: Rank,
    batch: dict[str, torch.Tensor],
    stage: PipelineStage,
    received: torch.Tensor | None,
) -> Any:
    """Return the output of a stage, or of a chunk, and what is differentiated: the output, or the last one's loss."""
    inputs = batch if received is None else {"inputs_embeds": received} | _without(batch, "input_ids")
    model = rank.chunks[stage.chunk]
    with computing(job, stack, batch["input_ids"].device.type):
        if stage.is_last:
            return _output_and_loss(job, stack, model, rank, inputs)
        output = model(**_without(inputs, "labels")).logits
        return output, output


def _without(batch: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in batch.items() if key != name}


def _output_and_loss(
    job: TraceJob, stack: Stack, model: Any, rank: Rank, batch: dict[str, torch.Tensor]
) -> tuple[torch.Tensor | None, Any]:
    """Return the logits, where they leave the model, and the loss."""
    inputs = _without(batch, "labels")
    if job.fused_cross_entropy or (stack.loss_in_model and rank.gathers_logits):
        return None, model(**inputs, labels=batch["labels"]).loss
    logits = model(**inputs).logits
    if stack.has_fused_kernels or stack.has_liger_kernels:
        return logits, vocabulary_parallel_loss(logits, batch["labels"])
    return logits, nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())
