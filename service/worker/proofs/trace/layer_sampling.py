"""Which stages are traced by a sample of their layers: shallow models, and the deep one's ledger out of theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plimsoll.service.worker.jobs.config_keys import ATTENTION_INDICES, number_of_layers, of_layers, tells_each_layer
from plimsoll.service.worker.jobs.job import PipelineStage, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import is_fully_sharded
from plimsoll.service.worker.recording.curve import phase_at
from plimsoll.service.worker.recording.layer_stretches import numbered_anew
from plimsoll.service.worker.recording.ledger import Ledger
from plimsoll.service.worker.recording.repeated_layers import added_stretches, grown_ledger
from plimsoll.service.worker.tasks import Report
from plimsoll.service.worker.training.steady import TRACE_STAGES
from plimsoll.service.worker.training.step import trace_steps

# Two layers of a kind show the first and the last; a model of one more shows what a layer adds, and one of two more
# that the next adds the same.
SAMPLED_REPEATS = 2
SAMPLES = 3
# Our own choice: below it the samples cost as much as the whole model.
LEAST_SAMPLED_LAYERS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """How a stage of `layers` layers is sampled: from `shallowest` on, every `unit` layers deeper."""

    layers: int
    shallowest: int
    unit: int

    @property
    def depths(self) -> tuple[int, ...]:
        """Return the numbers of layers that are traced."""
        return tuple(self.shallowest + index * self.unit for index in range(SAMPLES))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTrace:
    """What one pipeline stage's first rank did; FSDP2's first rank holds the largest shard.

    `sampled_layers` are the depths that the ledger was grown from, none where every layer was traced;
    `samples_differed` says that those were tried and did not agree.
    """

    stage: PipelineStage
    ledger: Ledger
    sampled_layers: tuple[int, ...] = ()
    samples_differed: bool = False


def trace_stage(job: TraceJob, stack: Stack, report: Report, stage: PipelineStage) -> StageTrace:
    """Return what a stage's rank did: by a sample where it is deep and its layers repeat, else of every layer.

    Where the deepest sample is not, event by event, what the others foretell, every layer is traced after all.
    """
    sample = layer_sample(job, stack, stage)
    if sample is None:
        return StageTrace(stage=stage, ledger=trace_steps(job, stack, report, stage))
    few, more, most = (
        trace_steps(_shallow(job, stage, depth), stack, _sample_report(report, index, depth), _cut(stage, depth))
        for index, depth in enumerate(sample.depths)
    )
    stretches = added_stretches(few, more, most)
    if stretches is None:
        return StageTrace(stage=stage, ledger=trace_steps(job, stack, report, stage), samples_differed=True)
    repeats = (sample.layers - sample.depths[1]) // sample.unit
    grown = grown_ledger(more, stretches, repeats=repeats, layers=sample.unit)
    ledger = numbered_anew(grown, stage.first_layer, stage.last_layer)
    return StageTrace(stage=stage, ledger=ledger, sampled_layers=sample.depths)


def sampling_notes(traces: list[StageTrace]) -> list[str]:
    """Return which stages were traced by a sample of their layers, and which moment of it rules at the true depth."""
    notes = []
    for trace in traces:
        name = f"Stage {trace.stage.number}" if trace.stage.stages > 1 else "The model"
        if trace.samples_differed:
            notes.append(f"{name} was traced layer by layer: models of fewer layers did not foretell one another.")
        if not trace.sampled_layers:
            continue
        step, phase = phase_at(trace.ledger, trace.ledger.peak().event)
        depths = ", ".join(str(depth) for depth in trace.sampled_layers)
        layers = trace.stage.last_layer - trace.stage.first_layer + 1
        notes.append(
            f"{name} of {layers} layers is extrapolated from models of {depths}: the events that a layer adds are "
            "repeated, and the deepest sample is, event by event, what the others foretell. The peak is searched in "
            f"the whole sequence and lies in step {step + 1}, {phase}. Which of several like pieces a release frees "
            "is by order, which reserved_bytes alone can feel."
        )
    return notes


def layer_sample(job: TraceJob, stack: Stack, stage: PipelineStage) -> Sample | None:
    """Return how a stage's layers are sampled, None where all are traced: few, not alike, or only some recomputed."""
    layers = stage.last_layer - stage.first_layer + 1
    is_partly_recomputed = job.recompute == "full" and job.recompute_layers is not None
    masks = job.attention == "eager" and job.config.get("sliding_window")  # a mask for each kind of layer there is
    # An engine's flat buffers are of the whole depth, as what FSDP2 gathers of a reference, and what an engine gathers
    # ahead follows a count of elements.
    is_reference_gathered = job.reference is not None and is_fully_sharded(job, stack)
    if (
        stack.has_own_engine
        or stack.runs_own_model(job)
        or is_reference_gathered
        or layers < LEAST_SAMPLED_LAYERS
        or job.virtual_pipeline > 1
        or is_partly_recomputed
        or masks
    ):
        return None
    kinds = layer_kinds(job.config)[stage.first_layer : stage.last_layer + 1]
    unit = math.lcm(_period(kinds), job.recompute_every or 1)
    leading = next(index for index in range(layers) if _repeats(kinds[index:], unit))
    if leading and stage.first_layer:
        return None
    shallowest = leading + SAMPLED_REPEATS * unit
    shallowest += (layers - shallowest) % unit
    sample = Sample(layers=layers, shallowest=shallowest, unit=unit)
    return sample if sum(sample.depths) < layers else None


def layer_kinds(config: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return what each layer of a model is, by transformers' fields: equal ones allocate alike."""
    layers = number_of_layers(config)
    listed = [values for name, values in config.items() if tells_each_layer(name, values, layers)]
    attending = set(config.get(ATTENTION_INDICES) or ())
    dense = set(config.get("mlp_only_layers") or ())
    step = int(config.get("decoder_sparse_step") or 1)
    first_dense = int(config.get("first_k_dense_replace") or 0)
    return [
        (
            index in dense,
            index in attending,
            (index + 1) % step == 0,
            index < first_dense,
            *(str(values[index]) for values in listed),
        )
        for index in range(layers)
    ]


def _period(kinds: list[tuple[Any, ...]]) -> int:
    """Return after how many layers the last ones' kinds come again."""
    half = len(kinds) // 2
    return next((unit for unit in range(1, half) if _repeats(kinds[half:], unit)), len(kinds))


def _repeats(kinds: list[tuple[Any, ...]], unit: int) -> bool:
    return kinds[unit:] == kinds[:-unit] if unit < len(kinds) else True


def _shallow(job: TraceJob, stage: PipelineStage, depth: int) -> TraceJob:
    """Return the job with a model of only so many of the stage's layers."""
    return replace(job, config=of_layers(job.config, range(stage.first_layer, stage.first_layer + depth)))


def _cut(stage: PipelineStage, depth: int) -> PipelineStage:
    return replace(stage, first_layer=0, last_layer=depth - 1)


def _sample_report(report: Report, index: int, depth: int) -> Report:
    def shifted(done: int, total: int, unit: str, message: str) -> None:
        report((index * TRACE_STAGES + done) // SAMPLES, total, unit, f"{depth} layers: {message}")

    return shifted
