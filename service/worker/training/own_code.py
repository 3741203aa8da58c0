"""What stands in for a stack's own code, where it does not run transformers' and torch's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.training.engine import Engine, OwnRank
from plimsoll.service.worker.training.parallel.tensor_parallel import LayerStyles


def _leave_alone(_model: Any, _job: TraceJob) -> None:
    """Change nothing."""


def _transformers_experts(_model: Any, _job: TraceJob, _mesh: DeviceMesh) -> None:
    """Leave every expert where it is."""


def _torch_styles(_job: TraceJob) -> LayerStyles:
    return LayerStyles()


def _no_gradients(_chunks: Iterable[Any]) -> list[torch.Tensor]:
    return []


def _torch_optimizer(_job: TraceJob, _model: Any) -> None:
    """Return no engine."""


def _first_rank(_job: TraceJob) -> tuple[int, ...]:
    return (0,)


def _first_of_stage(_job: TraceJob, _stage: PipelineStage) -> int:
    return 0


def _no_rank(job: TraceJob, _stage: PipelineStage) -> AbstractContextManager[OwnRank]:
    raise ValueError(f"{job.framework} has no rank of its own.")


def _as_it_is(_job: TraceJob, _rank: int) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """What is put into a rank's part of a model, in the order of a rank's building; a stack has what differs.

    `place_experts` leaves a mixture this rank's experts and sends tokens over the mesh of experts. `cast_products`
    puts products in fp8 in place of the model's, `layer_styles` are how they are split over tensor-parallel ranks,
    `fuse_layers` kernels of the stack's own in place of its layers'
    operations, for which `dummy_gradients` are what autograd is handed where they add up gradients themselves.
    `engine` returns the optimizer that takes part in the passes, None where there is no such; it is made, and runs, in
    the context `running` of a rank. `ranks` says which ranks of a stage can need the most memory. `own_rank` is the
    context of a rank that is all the stack's own, for jobs of which `Stack.runs_own_model` says so; it is entered in
    fake mode, within `running`. `place_in_stage` is that of the stage's rank which has the most.
    """

    place_experts: Callable[[Any, TraceJob, DeviceMesh], None] = _transformers_experts
    cast_products: Callable[[Any, TraceJob], None] = _leave_alone
    layer_styles: Callable[[TraceJob], LayerStyles] = _torch_styles
    fuse_layers: Callable[[Any, TraceJob], None] = _leave_alone
    dummy_gradients: Callable[[Iterable[Any]], list[torch.Tensor]] = _no_gradients
    engine: Callable[[TraceJob, Any], Engine | None] = _torch_optimizer
    running: Callable[[TraceJob, int], AbstractContextManager[object]] = _as_it_is
    ranks: Callable[[TraceJob], Sequence[int]] = _first_rank
    own_rank: Callable[[TraceJob, PipelineStage], AbstractContextManager[OwnRank]] = _no_rank
    place_in_stage: Callable[[TraceJob, PipelineStage], int] = _first_of_stage


def own_code_of(stack: Stack) -> OwnCode:
    """Return what stands in for a stack's own code: nothing where it has none."""
    if not stack.own_code:
        return OwnCode()
    own: OwnCode = importlib.import_module(stack.own_code).OWN_CODE
    return own
