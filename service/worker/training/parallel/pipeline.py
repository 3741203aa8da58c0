"""One stage of a pipeline: its part of the model, and the schedule of its micro-batches.

Source of 1F1B, plain and interleaved: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; of GPipe Huang et al.
2019, arXiv:1811.06965, section 2.3, as torch's `ScheduleGPipe` runs it (distributed/pipelining/schedules.py); of
what is kept between forward and backward torch.distributed.pipelining (`stage.py`) and Megatron-Core
(`pipeline_parallel/schedules.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule

from plimsoll.planners.ground.terms import GPIPE
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.recording.tracker import BACKWARD, FORWARD
from plimsoll.service.worker.training.decoder_parts import leave_layers, take_embedding, take_head
from plimsoll.service.worker.training.parallel.messages import MessageBuffers

# After the pipeline is full every further pair of passes finds the memory as the one before; interleaved, every round.
STEADY_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A micro-batch between its forward and its backward pass on this stage."""

    received: torch.Tensor | None
    output: torch.Tensor | None
    result: Any
    shape: torch.Size
    dtype: torch.dtype


def cut_to_stage(model: Any, stage: PipelineStage) -> None:
    """Leave the model its stage's layers, with the embedding on the first and the head on the last.

    Another stage's model takes what it receives as `inputs_embeds`, and returns its last layer's output as logits.
    """
    if stage.stages == 1:
        return
    leave_layers(model, stage.first_layer, stage.last_layer)
    if not stage.is_first:
        take_embedding(model)
    if not stage.is_last:
        take_head(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward or backward pass (`phase`) of one micro-batch through a stage's `chunk`."""

    phase: str
    chunk: int


def all_forward_all_backward(micro_batches: int) -> Iterator[Pass]:
    """Yield GPipe's order of a stage's passes: every micro-batch forward, then every one backward, the first first."""
    yield from itertools.repeat(Pass(phase=FORWARD, chunk=0), micro_batches)
    yield from itertools.repeat(Pass(phase=BACKWARD, chunk=0), micro_batches)


def one_forward_one_backward(stage: PipelineStage, micro_batches: int, *, chunks: int = 1) -> Iterator[Pass]:
    """Yield the order of a stage's passes: fill the pipeline, take turns, and empty it.

    Of several chunks each runs as many micro-batches as there are stages before the next one does, backwards from
    the last chunk on (torch, distributed/pipelining/schedules.py, `ScheduleInterleaved1F1B`; Megatron-Core,
    pipeline_parallel/schedules.py, `get_pp_rank_microbatches`).
    """
    passes = micro_batches * chunks
    behind = stage.stages - 1 - stage.number
    ahead = min(behind if chunks == 1 else 2 * behind + (chunks - 1) * stage.stages, passes)
    order = [index // stage.stages % chunks for index in range(passes)]
    forward = (Pass(phase=FORWARD, chunk=chunk) for chunk in order)
    backward = (Pass(phase=BACKWARD, chunk=chunks - 1 - chunk) for chunk in order)
    yield from itertools.islice(forward, ahead)
    for following in forward:
        yield following
        yield next(backward)
    yield from backward


def traced_micro_batches(stage: PipelineStage, micro_batches: int, *, chunks: int = 1) -> int:
    """Return how many micro-batches show all that a step's memory does on this stage.

    Interleaved they come in whole rounds of as many as there are stages: those that fill the pipeline, and one more.
    """
    if chunks == 1:
        return min(micro_batches, stage.stages - stage.number - 1 + STEADY_ROUNDS)
    filling = 2 * (stage.stages - 1 - stage.number) + (chunks - 1) * stage.stages
    rounds = -(-filling // (stage.stages * chunks)) + 1
    return min(micro_batches, rounds * stage.stages)


def schedule_note(job: TraceJob) -> str:
    """Return which schedule a trace runs, and which stages."""
    which = (
        "one of each kind of stage is traced (of equal ones the first, which keeps the most micro-batches), and the "
        "plan's fullest"
    )
    if job.pipeline_schedule == GPIPE:
        return f"Pipeline stages run GPipe, every micro-batch forward and then every one backward: {which}."
    interleaved = f", interleaved in {job.virtual_pipeline} chunks a rank" if job.virtual_pipeline > 1 else ""
    if job.pairs_passes:
        interleaved += ", each backward pass beside the next forward pass of another micro-batch"
    enough = "a round more" if job.virtual_pipeline > 1 else f"{STEADY_ROUNDS} micro-batches more"
    return f"Pipeline stages run 1F1B{interleaved}: {which}, until the pipeline is full and {enough}."


class StageSchedule:
    """Runs a stage's micro-batches; what comes from other ranks is an empty buffer."""

    def __init__(
        self,
        job: TraceJob,
        stack: Stack,
        stage: PipelineStage,
        models: Sequence[Any],
        forward: Callable[[PipelineStage, Any], tuple[Any, Any]],
        buffers: MessageBuffers,
    ) -> None:
        """`forward` returns a chunk's output and what is differentiated: the output, or the last chunk's loss."""
        self._chunks, self._stack, self._models, self._forward = job.chunks_of(stage), stack, models, forward
        split = job.tensor_parallel if job.sequence_parallel else 1
        self._shape = (job.micro_batch_size, job.local_sequence_length // split, int(job.config["hidden_size"]))
        self._dtype = torch.float32 if job.precision in ("fp32", "tf32") else _sixteen_bits(job)
        self._is_gpipe = job.pipeline_schedule == GPIPE
        self._in_flight: tuple[list[InFlight], ...] = tuple([] for _ in self._chunks)
        self._buffers = buffers
        if stack.keeps_message_buffers:
            buffers.allocate(self._chunks, job.accumulation_steps, self._shape, self._dtype)
        self._forward_runs, self._backward_runs = [0] * len(self._chunks), [0] * len(self._chunks)

    def run(self, micro_batches: int, begin_phase: Callable[[str], None]) -> None:
        """Run a step's passes; a pipeline under FSDP2 reduces a chunk's gradients after its own last one."""
        stage, chunks = self._chunks[0], len(self._chunks)
        traced = micro_batches if self._is_gpipe else traced_micro_batches(stage, micro_batches, chunks=chunks)
        order = one_forward_one_backward(stage, traced, chunks=chunks)
        if self._is_gpipe:
            order = all_forward_all_backward(traced)
        left = [traced] * chunks
        for model in self._models:
            _hold_back_gradients(model)
        for step in order:
            begin_phase(step.phase)
            if step.phase == FORWARD:
                self._run_forward(step.chunk)
                continue
            self._run_backward(step.chunk)
            left[step.chunk] -= 1
            if not left[step.chunk]:
                _reduce_gradients(self._models[step.chunk])

    def _run_forward(self, chunk: int) -> None:
        stage = self._chunks[chunk]
        received = None
        if not stage.is_first:
            received = self._received(chunk)
        self._forward_runs[chunk] += 1
        output, result = self._forward(stage, received)
        shape, dtype = result.shape, result.dtype
        # Megatron empties an output's storage once it is sent; torch keeps it, logits too, through the backward pass.
        if self._stack.frees_sent_outputs:
            result, output = result if stage.is_last else get_gradient_edge(result), None
        in_flight = InFlight(received=received, output=output, result=result, shape=shape, dtype=dtype)
        self._in_flight[chunk].append(in_flight)

    def _run_backward(self, chunk: int) -> None:
        oldest = self._in_flight[chunk].pop(0)
        if self._chunks[chunk].is_last:
            oldest.result.backward()
        else:
            torch.autograd.backward(oldest.result, self._received_gradient(chunk, oldest))
        if oldest.received is not None:
            oldest.received.grad = None  # it has been sent

    def _received(self, chunk: int) -> torch.Tensor:
        if self._stack.keeps_message_buffers:
            return self._buffers.micro_batch(chunk, self._forward_runs[chunk])
        return torch.empty(self._shape, dtype=self._dtype, requires_grad=True)

    def _received_gradient(self, chunk: int, oldest: InFlight) -> torch.Tensor:
        if self._stack.keeps_message_buffers:
            self._backward_runs[chunk] += 1
            return self._buffers.gradient(chunk, self._backward_runs[chunk] - 1)
        return torch.empty(oldest.shape, dtype=oldest.dtype)


def _sixteen_bits(job: TraceJob) -> torch.dtype:
    return torch.float16 if job.precision == "fp16-mixed" else torch.bfloat16


def _hold_back_gradients(model: Any) -> None:
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(False)
        model.set_reshard_after_backward(False)
        model.set_requires_gradient_sync(False)


def _reduce_gradients(model: Any) -> None:
    """Reduce every unit's gradients; as torch's `PipelineStage` does after its last backward pass."""
    if not isinstance(model, FSDPModule):
        return
    from torch.distributed.fsdp._fully_shard._fully_shard import fully_shard

    model.set_is_last_backward(True)
    model.set_reshard_after_backward(True)
    model.set_requires_gradient_sync(True)
    root_state = fully_shard.state(model)  # type: ignore[attr-defined]
    for state in root_state._state_ctx.all_states:
        for group in state._fsdp_param_groups:
            group.post_backward()
    root_state._root_post_backward_final_callback()
