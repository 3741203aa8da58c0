"""What is held outside the passes of a step: as weights are loaded, and in an evaluation.

An evaluation's forward pass keeps nothing for a backward one. Hugging Face's Trainer, when metrics are computed of the
predictions, gathers every rank's logits after each batch, upcast to fp32 by accelerate, and keeps them on the device
until `eval_accumulation_steps` batches are done, or all (transformers, `trainer.py`, `evaluation_loop`; accelerate,
`convert_outputs_to_fp32`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.activity import casts_weights
from plimsoll.planners.memory.holdings import LayerHoldings, has_gathering
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.memory.steps.step import EVALUATION, LOADING, Step
from plimsoll.planners.questions import Evaluation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instant:
    """Whole bytes of one rank at one time outside a step's passes, by what they are for."""

    phase: str
    name: str
    parameters: FloatArray
    optimizer: FloatArray
    gradients: FloatArray
    activations: FloatArray
    logits: FloatArray
    communication: FloatArray

    @property
    def total(self) -> FloatArray:
        """Return all that is held."""
        return self.parameters + self.optimizer + self.gradients + self.activations + self.logits + self.communication


HELD = ("parameters", "optimizer", "gradients", "activations", "logits", "communication")


def hold(step: Step, instants: tuple[Instant, ...]) -> None:
    """Hold what is held at each of these instants, one after the other."""
    for instant in instants:
        step.phase = instant.phase
        step.drop(*[step.take(item, f"{instant.name}, {item}", getattr(instant, item)) for item in HELD])


def instants_of(asked: Question) -> tuple[Instant, ...]:
    """Return every instant outside the passes that the job has."""
    found = []
    if asked.job.profile.loads_whole_weights:
        found.append(_loading(asked))
    if asked.job.evaluation is not None:
        found += evaluation_instants(asked, asked.job.evaluation)
    return tuple(found)


def _loading(asked: Question) -> Instant:
    """Return the time before the first step, when whole weights stand beside the shards made of them."""
    held = asked.held
    is_gathered = has_gathering(asked.layouts.zero_stage, asked.job, "gathered_by_layer", "gathered_once")
    gathered = np.where(is_gathered, _root(asked) + _whole_layers(asked), 0.0)
    return _instant(LOADING, "weights", parameters=held.parameters + gathered, optimizer=NO_BYTES)


def evaluation_instants(asked: Question, wanted: Evaluation) -> Iterator[Instant]:
    """Yield what an evaluation holds in a layer of each kind, and at the head.

    Parameters, optimizer and the gathered or cast weights stand beside one layer's
    activations, then beside the loss of a batch; the logits kept so far beside both.
    """
    layouts, job, held, active = asked.layouts, asked.job, asked.held, asked.active
    share = wanted.batch_size / layouts.micro_batch_size
    kept = NO_BYTES
    if wanted.keeps_logits:
        batches = wanted.accumulation_steps or -(-wanted.samples // (wanted.batch_size * layouts.data_parallel))
        gathered = wanted.batch_size * layouts.data_parallel * job.sequence_length
        kept = np.where(asked.rows.has_head, batches * gathered * job.model.vocabulary_size * FP32_BYTES, 0.0)
    in_layers = [
        ("layer", share * own.backward.working_set + layer.dequantized_bytes, kept, _gathered_in_layer(asked, layer))
        for own, layer in zip(active.layers, held.layers, strict=True)
    ]
    at_loss = ("loss", share * active.head, kept + share * active.logits, _gathered_at_head(asked))
    for name, activations, logits, weights in (*in_layers, at_loss):
        yield _instant(
            EVALUATION,
            name,
            parameters=held.parameters,
            optimizer=held.optimizer,
            activations=activations,
            logits=logits,
            communication=_with_copies(asked, weights),
        )


def _instant(
    phase: str,
    name: str,
    *,
    parameters: FloatArray,
    optimizer: FloatArray,
    gradients: FloatArray = NO_BYTES,
    activations: FloatArray = NO_BYTES,
    logits: FloatArray = NO_BYTES,
    communication: FloatArray = NO_BYTES,
) -> Instant:
    return Instant(
        phase=phase,
        name=name,
        parameters=np.ceil(parameters),
        optimizer=np.ceil(optimizer),
        gradients=np.ceil(gradients),
        activations=np.ceil(activations),
        logits=np.ceil(logits),
        communication=np.ceil(communication),
    )


def _gathered_in_layer(asked: Question, layer: LayerHoldings) -> FloatArray:
    """Return two layers of a kind, and the root unless the vocabulary has units of its own, or all layers."""
    by_layer, once = _ways(asked)
    size = asked.job.precision.compute_bytes
    layers = np.minimum(asked.rows.layers, 2) * (size * layer.elements + layer.frozen_bytes)
    root = NO_BYTES if _has_own_units(asked) else _root(asked)
    return np.where(by_layer, root + layers, 0.0) + np.where(once, _open_root(asked) + _whole_layers(asked), 0.0)


def _gathered_at_head(asked: Question) -> FloatArray:
    """Return the head's unit, with its buffer inside the model, or the root and the last layer's buffer, or all."""
    by_layer, once = _ways(asked)
    size, held = asked.job.precision.compute_bytes, asked.held
    beside: FloatArray = size * held.head_elements + held.head_frozen
    if asked.job.profile.loss.inside_model:
        beside = beside + size * held.head_padded + held.head_frozen
    if not _has_own_units(asked):
        last = [size * layer.padded + layer.frozen_bytes for layer in held.layers]
        beside = _root(asked) + functools.reduce(np.maximum, last)
    return np.where(by_layer, beside, 0.0) + np.where(once, _root(asked) + _whole_layers(asked), 0.0)


def _with_copies(asked: Question, gathered: FloatArray) -> FloatArray:
    """Return the gathered weights, or the copies of all that autocast's cache holds until the forward pass is over."""
    copies = asked.job.precision.compute_bytes * asked.held.stage_elements
    result: FloatArray = np.where(casts_weights(asked.layouts, asked.job), copies, gathered)
    return result


def _ways(asked: Question) -> tuple[BoolArray, BoolArray]:
    """Return where layers are gathered one by one, and where all stay gathered."""
    by_layer = has_gathering(asked.layouts.zero_stage, asked.job, "gathered_by_layer")
    once = has_gathering(asked.layouts.zero_stage, asked.job, "gathered_once")
    stays = by_layer & (asked.layouts.pipeline_parallel > 1) & np.bool_(asked.job.profile.weights.pipelines_gather_once)
    return by_layer & ~stays, once | stays


def _has_own_units(asked: Question) -> bool:
    return asked.job.profile.weights.vocabulary_units and not asked.job.model.tied_head


def _root(asked: Question) -> FloatArray:
    """Return embedding, last norm and head in the compute precision, with what is frozen of them."""
    result: FloatArray = asked.job.precision.compute_bytes * asked.held.root_elements + asked.held.root_frozen
    return result


def _open_root(asked: Question) -> FloatArray:
    """Return what of those stays gathered while layers are at work."""
    if not _has_own_units(asked):
        return _root(asked)
    held = asked.held
    learning: FloatArray = asked.job.precision.compute_bytes * (held.root_elements - held.head_elements)
    result: FloatArray = learning + held.root_frozen - held.head_frozen
    return result


def _whole_layers(asked: Question) -> FloatArray:
    """Return every layer of the stage in the compute precision."""
    held, size = asked.held, asked.job.precision.compute_bytes
    result: FloatArray = size * (held.stage_elements - held.root_elements) + held.layers_frozen
    return result
