"""One stage of a pipeline: its part of the model, and the 1F1B schedule of its micro-batches.

Source of the schedule: Narayanan et al. 2021, arXiv:2104.04473, section 2.2;
of what is kept between forward and backward torch.distributed.pipelining
(`stage.py`) and Megatron-Core (`pipeline_parallel/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule

from service.worker.dry_run.job import PipelineStage, TraceJob
from service.worker.dry_run.stacks import Stack
from service.worker.dry_run.tracker import BACKWARD, FORWARD

# After the pipeline is full every further pair of passes finds the memory as the one before.
STEADY_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A micro-batch between its forward and its backward pass on this stage."""

    received: torch.Tensor | None
    result: Any
    shape: torch.Size
    dtype: torch.dtype


def cut_to_stage(model: Any, stage: PipelineStage) -> None:
    """Leave the model its stage's layers, with the embedding on the first and the head on the last."""
    inner = model.model
    inner.layers = nn.ModuleList(list(inner.layers)[stage.first_layer : stage.last_layer + 1])
    if not stage.is_first:
        inner.embed_tokens = None
    if not stage.is_last:
        # The model then returns its last layer's output in place of logits.
        inner.norm, model.lm_head = nn.Identity(), nn.Identity()


def one_forward_one_backward(stage: PipelineStage, micro_batches: int) -> Iterator[str]:
    """Yield the order of a stage's passes: fill the pipeline, take turns, and empty it."""
    ahead = min(stage.stages - 1 - stage.number, micro_batches)
    yield from [FORWARD] * ahead
    for _ in range(micro_batches - ahead):
        yield FORWARD
        yield BACKWARD
    yield from [BACKWARD] * ahead


def traced_micro_batches(stage: PipelineStage, micro_batches: int) -> int:
    """Return how many micro-batches show all that a step's memory does on this stage."""
    return min(micro_batches, stage.stages - stage.number - 1 + STEADY_ROUNDS)


class StageSchedule:
    """Runs a stage's micro-batches; what comes from other ranks is an empty buffer."""

    def __init__(
        self, job: TraceJob, stack: Stack, stage: PipelineStage, model: Any, forward: Callable[[Any], Any]
    ) -> None:
        self._stage, self._stack, self._model, self._forward = stage, stack, model, forward
        split = job.tensor_parallel if job.sequence_parallel else 1
        self._shape = (job.micro_batch_size, job.local_sequence_length // split, int(job.config["hidden_size"]))
        self._dtype = torch.float32 if job.precision in ("fp32", "tf32") else _sixteen_bits(job)
        self._in_flight: list[InFlight] = []

    def run(self, micro_batches: int, begin_phase: Callable[[str], None]) -> None:
        """Run a step's passes, and reduce the gradients after the last, as a pipeline under FSDP2 does."""
        _hold_back_gradients(self._model)
        for phase in one_forward_one_backward(self._stage, traced_micro_batches(self._stage, micro_batches)):
            begin_phase(phase)
            if phase == FORWARD:
                self._run_forward()
            else:
                self._run_backward()
        _reduce_gradients(self._model)

    def _run_forward(self) -> None:
        received = None
        if not self._stage.is_first:
            received = torch.empty(self._shape, dtype=self._dtype, requires_grad=True)
        output = self._forward(received)
        # Megatron empties an output's storage once it is sent; torch keeps it until the backward pass.
        keeps = self._stage.is_last or not self._stack.frees_sent_outputs
        result = output if keeps else get_gradient_edge(output)
        self._in_flight.append(InFlight(received=received, result=result, shape=output.shape, dtype=output.dtype))

    def _run_backward(self) -> None:
        oldest = self._in_flight.pop(0)
        if self._stage.is_last:
            oldest.result.backward()
            return
        gradient = torch.empty(oldest.shape, dtype=oldest.dtype)
        torch.autograd.backward(oldest.result, gradient)


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
