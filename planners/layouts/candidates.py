"""Many layouts at once: a struct of arrays that broadcast against each other.

Memory and time formulas are written once over these arrays, whether there is one
layout or a million: a list of layouts has one entry a layout in every array, and
in a grid (`planners/layouts/grid.py`) every array varies along its own axes only,
so that a formula is worked out once for each value of what it depends on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from plimsoll.planners.ground.terms import CPU, OFFLOADS, RECOMPUTE_MODES
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.plans import HiddenTraffic, Layout

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

P = ParamSpec("P")
T = TypeVar("T")

# Places in `RECOMPUTE_MODES`.
NONE, SELECTIVE, FULL = range(len(RECOMPUTE_MODES))
ALL_LAYERS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Layouts as arrays that broadcast to one shape: (layouts,) for a list, (.., meshes) for a grid.

    `recompute` and `offload` index `RECOMPUTE_MODES` and `OFFLOADS`, `pipeline_layout` the ways in which the job's
    pipelines may be divided (`Job.pipeline_layouts`), `module_set` the modules that selective recompute may name
    (`Job.module_sets`);
    `full_layers` counts the layers of each stage that `full` covers, `ALL_LAYERS`
    for all of them. A `secondary_shard_group` of one is none, and `context_all_to_all` of one a ring alone.
    `kept` holds what was worked out of these layouts already (`once`).
    """

    data_parallel: IntArray
    tensor_parallel: IntArray
    pipeline_parallel: IntArray
    virtual_pipeline: IntArray
    pipeline_layout: IntArray
    context_parallel: IntArray
    context_all_to_all: IntArray
    expert_parallel: IntArray
    expert_overlap: BoolArray
    sequence_parallel: BoolArray
    zero_stage: IntArray
    shard_group: IntArray
    secondary_shard_group: IntArray
    offload: IntArray
    micro_batch_size: IntArray
    recompute: IntArray
    module_set: IntArray
    full_layers: IntArray
    fused_cross_entropy: BoolArray
    activation_offload: BoolArray
    kept: dict[Hashable, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __len__(self) -> int:
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that all arrays broadcast to."""
        return _shape(self)

    @property
    def gpus(self) -> IntArray:
        """Return data x tensor x pipeline x context."""
        return _gpus(self)

    def micro_batches(self, global_batch_size: int) -> IntArray:
        """Return the micro-batches of a step, which are the accumulation steps."""
        return _micro_batches(self, global_batch_size)

    def local_tokens(self, sequence_length: int) -> FloatArray:
        """Return the tokens of one micro-batch on one rank."""
        return _local_tokens(self, sequence_length)

    def take(self, index: Any) -> Candidates:
        """Return the layouts of a list at `index`, an index array or a mask."""
        return candidates_of([values[index] for values in EVERY_COLUMN(self)])

    def layout(
        self,
        index: int,
        *,
        framework: str,
        framework_version: str | None = None,
        global_batch_size: int,
        offload_target: str,
        pipeline_schedule: str,
        pipeline_layout: str | None = None,
        overlap: HiddenTraffic | None = None,
        recompute_modules: tuple[str, ...] = (),
        recompute_every: int | None = None,
        offload_modules: tuple[str, ...] = (),
        offload_layers: int | None = None,
    ) -> Layout:
        """Return one layout as clients receive it; `pipeline_layout` is how its stages are told.

        `recompute_modules` are those that selective recompute would name, if any, and `recompute_every` is the
        job's where full recompute covers one layer in so many; `offload_modules` are those that a job would send,
        and `offload_layers` how many of its first layers do.
        """
        full_layers = int(self.full_layers[index])
        return Layout(
            framework=framework,
            framework_version=framework_version,
            gpus=int(self.gpus[index]),
            data_parallel=int(self.data_parallel[index]),
            tensor_parallel=int(self.tensor_parallel[index]),
            pipeline_parallel=int(self.pipeline_parallel[index]),
            virtual_pipeline=int(self.virtual_pipeline[index]),
            context_parallel=int(self.context_parallel[index]),
            context_all_to_all=int(self.context_all_to_all[index]),
            expert_parallel=int(self.expert_parallel[index]),
            sequence_parallel=bool(self.sequence_parallel[index]),
            zero_stage=int(self.zero_stage[index]),
            shard_group=int(self.shard_group[index]),
            secondary_shard_group=int(self.secondary_shard_group[index]),
            offload=OFFLOADS[int(self.offload[index])],
            offload_target=offload_target,
            micro_batch_size=int(self.micro_batch_size[index]),
            gradient_accumulation_steps=int(self.micro_batches(global_batch_size)[index]),
            recompute=RECOMPUTE_MODES[int(self.recompute[index])],
            recompute_layers=full_layers if full_layers != ALL_LAYERS else None,
            activation_offload=bool(self.activation_offload[index]),
            fused_cross_entropy=bool(self.fused_cross_entropy[index]),
            pipeline_schedule=pipeline_schedule,
            pipeline_layout=pipeline_layout,
            overlap=overlap,
            recompute_modules=recompute_modules if self.recompute[index] == SELECTIVE else (),
            recompute_every=recompute_every if self.recompute[index] == FULL else None,
            offload_modules=offload_modules if self.activation_offload[index] else (),
            offload_layers=offload_layers if self.activation_offload[index] else None,
        )


COLUMNS = tuple(entry.name for entry in fields(Candidates) if entry.init)
EVERY_COLUMN = attrgetter(*COLUMNS)


def candidates_of(columns: Iterable[npt.NDArray[Any]]) -> Candidates:
    """Return the layouts of columns in the order of `COLUMNS`."""
    return Candidates(**dict(zip(COLUMNS, columns, strict=True)))


def any_of(values: npt.NDArray[Any]) -> bool:
    """Return whether any value is not zero: numpy counts few values three times faster than its `any` looks at them."""
    return bool(np.count_nonzero(values))


_UNKNOWN: Any = object()


def once(
    quantity: Callable[Concatenate[Candidates, P], T],
) -> Callable[Concatenate[Candidates, P], T]:
    """Let a quantity of layouts be worked out once for each of its other arguments, and kept with the layouts.

    Memory and time ask for the same arrays again and again. Whoever gets one leaves it as it is.
    """

    @functools.wraps(quantity)
    def asked_again(layouts: Candidates, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (quantity, *args, *kwargs.values()) if kwargs else (quantity, *args)
        kept: T = layouts.kept.get(key, _UNKNOWN)
        if kept is _UNKNOWN:
            kept = layouts.kept[key] = quantity(layouts, *args, **kwargs)
        return kept

    return asked_again


@once
def _shape(layouts: Candidates) -> tuple[int, ...]:
    return np.broadcast(*EVERY_COLUMN(layouts)).shape


@once
def _gpus(layouts: Candidates) -> IntArray:
    model_ranks = layouts.tensor_parallel * layouts.pipeline_parallel * layouts.context_parallel
    return layouts.data_parallel * model_ranks


@once
def _micro_batches(layouts: Candidates, global_batch_size: int) -> IntArray:
    return global_batch_size // (layouts.data_parallel * layouts.micro_batch_size)


@once
def _local_tokens(layouts: Candidates, sequence_length: int) -> FloatArray:
    return layouts.micro_batch_size * sequence_length / layouts.context_parallel


def concatenate(parts: list[Candidates]) -> Candidates:
    """Return the layouts of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return candidates_of(map(np.concatenate, zip(*map(EVERY_COLUMN, parts), strict=True)))


def candidates_from_rows(rows: list[dict[str, int | bool]]) -> Candidates:
    """Return candidates from one mapping a layout; absent fields mean no parallelism at all."""
    plain: dict[str, int | bool] = {
        "data_parallel": 1,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "virtual_pipeline": 1,
        "pipeline_layout": 0,
        "context_parallel": 1,
        "context_all_to_all": 1,
        "expert_parallel": 1,
        "expert_overlap": False,
        "sequence_parallel": False,
        "zero_stage": 0,
        "secondary_shard_group": 1,
        "offload": 0,
        "micro_batch_size": 1,
        "recompute": NONE,
        "module_set": 0,
        "full_layers": ALL_LAYERS,
        "fused_cross_entropy": False,
        "activation_offload": False,
    }
    merged = [{**plain, "shard_group": row.get("data_parallel", 1), **row} for row in rows]
    return Candidates(
        **{
            entry.name: np.array(
                [row[entry.name] for row in merged], dtype=bool if "BoolArray" in str(entry.type) else np.int64
            )
            for entry in fields(Candidates)
            if entry.init
        }
    )


def layout_of(layouts: Candidates, index: int, job: Job) -> Layout:
    """Return the layout at `index` of a list of a job's layouts, as clients receive it."""
    degree, chunks = int(layouts.pipeline_parallel[index]), int(layouts.virtual_pipeline[index])
    way = job.pipeline_layouts[int(layouts.pipeline_layout[index])]
    return layouts.layout(
        index,
        framework=job.profile.name,
        framework_version=None if job.profile.release is None else job.profile.release.version,
        global_batch_size=job.global_batch_size,
        # What nothing is put on needs no name.
        offload_target=job.offload_target if layouts.offload[index] else CPU,
        pipeline_schedule=job.pipeline_schedule,
        pipeline_layout=way.told(job.model, degree, chunks) if degree > 1 else None,
        overlap=_hidden_traffic(layouts, index, job),
        recompute_modules=job.module_sets[int(layouts.module_set[index])],
        recompute_every=job.recompute_every,
        offload_modules=job.offload_modules(int(layouts.module_set[index])),
        offload_layers=job.offload_layers,
    )


def hides_tensor_traffic(layouts: Candidates, job: Job) -> BoolArray:
    """Return where tensor-parallel traffic comes in pieces that matrix products can wait for one by one."""
    return layouts.sequence_parallel & np.bool_(job.overlap.hides_tensor_parallel and job.attention == "flash")


def _hidden_traffic(layouts: Candidates, index: int, job: Job) -> HiddenTraffic:
    """Return which of one layout's traffic its stack is told to hide, or always hides."""
    has_replicas = bool(layouts.data_parallel[index] * layouts.context_parallel[index] > 1)
    return HiddenTraffic(
        gradients=has_replicas and job.overlap.gradients,
        parameters=has_replicas and bool(layouts.zero_stage[index] > 0) and job.overlap.parameters,
        tensor_parallel=bool(layouts.tensor_parallel[index] > 1 and job.overlap.tensor_parallel),
        expert_parallel=bool(layouts.expert_overlap[index]),
    )


@once
def recomputes_module(layouts: Candidates, job: Job, name: str) -> BoolArray:
    """Return where selective recompute names a module."""
    is_named = of_module_set(layouts, [name in modules for modules in job.module_sets])
    result: BoolArray = (layouts.recompute == SELECTIVE) & is_named
    return result


def of_module_set(layouts: Candidates, is_so: Sequence[bool]) -> BoolArray:
    """Return where something is so that is said of each of the job's sets of recomputed modules."""
    return np.array(is_so)[layouts.module_set]
