"""What is held outside the passes of a step: as weights are loaded, and in an evaluation.

An evaluation's forward pass keeps nothing for a backward one. Hugging Face's Trainer, when metrics are computed of the
predictions, gathers every rank's logits after each batch, and joins them to those on the device until
`eval_accumulation_steps` batches are done, or all: for a moment they are there twice (transformers 5.23, `trainer.py`,
`evaluation_loop`; `trainer_pt_utils.py`, `EvalLoopContainer.add`). Accelerate upcasts them to fp32 where autocast is
around the model (`convert_outputs_to_fp32`); FSDP2 puts them out in the format of its products.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.activity import casts_weights
from plimsoll.planners.memory.holdings import LayerHoldings, has_gathering, in_zero_stages
from plimsoll.planners.memory.programs.logits import forward_logits
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES
from plimsoll.planners.memory.steps.step import EVALUATION, LOADING, Step
from plimsoll.planners.questions import Evaluation

# The second batch finds the first alone, which is what the loop holds too; later ones a joined copy beside it.
JOINED_BATCHES = 2


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
    """Yield what an evaluation holds in a layer of each kind, at the head, and as it joins the predictions it keeps.

    Parameters, optimizer, buckets and the gathered or cast weights stand beside one layer's activations, then beside
    the loss of a batch; the logits kept so far beside both.
    """
    held, active = asked.held, asked.active
    share = wanted.batch_size / asked.layouts.micro_batch_size
    beside, joined = _kept_logits(asked, wanted)
    of_layers = zip(active.layers, held.layers, strict=True)
    in_layers = [
        (
            "layer",
            share * own.backward.working_set + layer.dequantized_bytes,
            beside,
            _with_copies(asked, _gathered_in_layer(asked, layer)),
        )
        for own, layer in of_layers
    ]
    last_hidden = share * np.minimum(active.head, active.checkpoint)
    at_loss = (
        "loss",
        last_hidden,
        beside + share * forward_logits(asked),
        _with_copies(asked, _gathered_at_head(asked)),
    )
    opened = ("head", last_hidden, beside, _with_copies(asked, _gathered_at_head(asked) + _last_buffer(asked)))
    at_end = ("predictions", NO_BYTES, joined, _left_gathered(asked))
    for name, activations, logits, weights in (*in_layers, opened, at_loss, at_end):
        yield _instant(
            EVALUATION,
            name,
            parameters=held.parameters,
            optimizer=held.optimizer,
            activations=activations,
            logits=logits,
            communication=weights + _buckets(asked),
        )


def _kept_logits(asked: Question, wanted: Evaluation) -> tuple[FloatArray, FloatArray]:
    """Return the logits kept beside the last batch's passes, and all that is live as those of that batch join them.

    Beside the joined ones, of which it makes a new tensor, the loop holds the batch's own. The first batch's are not
    joined to any, and stand beside those of the rank that were gathered.
    """
    layouts, job = asked.layouts, asked.job
    if not wanted.keeps_logits:
        return NO_BYTES, NO_BYTES
    ranks = layouts.data_parallel
    batches = -(-wanted.samples // (wanted.batch_size * ranks))
    count = np.minimum(batches, wanted.accumulation_steps or batches)
    own = wanted.batch_size * job.sequence_length * job.model.vocabulary_size * _prediction_bytes(asked)
    every = own * ranks
    beside = (count - 1) * every + np.where(count > JOINED_BATCHES, every, 0.0)
    joined = np.where(count > 1, 2.0 * count * every, every + np.where(ranks > 1, own, 0.0))
    has_head = asked.rows.has_head
    return np.where(has_head, beside, 0.0), np.where(has_head, joined, 0.0)


def _prediction_bytes(asked: Question) -> FloatArray:
    """Return the width of the logits that leave the model: fp32 where autocast is around it, else that of products."""
    is_upcast = has_gathering(asked.layouts.zero_stage, asked.job, "autocast_copies") & asked.job.precision.is_mixed
    return np.where(is_upcast, FP32_BYTES, asked.job.precision.compute_bytes)


def _buckets(asked: Question) -> FloatArray:
    """Return DistributedDataParallel's buckets, which hold a second copy of all gradients for good."""
    layouts, weights = asked.layouts, asked.job.profile.weights
    are_there = in_zero_stages(layouts.zero_stage, weights.gradient_bucket_stages) & (layouts.data_parallel > 1)
    return np.where(are_there, np.ceil(asked.job.states.gradient * asked.held.stage_elements), 0.0)


def _left_gathered(asked: Question) -> FloatArray:
    """Return the weights that a forward pass leaves gathered: the head's unit, or all."""
    by_layer, once = _ways(asked)
    return np.where(by_layer, _head_unit(asked), 0.0) + np.where(once, _root(asked) + _whole_layers(asked), 0.0)


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
    return np.where(by_layer, _head_unit(asked) + layers, 0.0) + np.where(
        once, _open_root(asked) + _whole_layers(asked), 0.0
    )


def _last_buffer(asked: Question) -> FloatArray:
    """Return the buffer of the last layer, which is let go of as a head of its own unit is copied out of its own."""
    by_layer, _ = _ways(asked)
    if not (_has_own_units(asked) and asked.job.profile.loss.inside_model):
        return NO_BYTES
    size = asked.job.precision.compute_bytes
    buffers = [size * layer.padded + layer.frozen_bytes for layer in asked.held.layers]
    return np.where(by_layer, functools.reduce(np.maximum, buffers), 0.0)


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


def _head_unit(asked: Question) -> FloatArray:
    """Return the unit of the head, which a batch leaves gathered to the next: no backward pass shards it again."""
    if not _has_own_units(asked):
        return _root(asked)
    result: FloatArray = asked.job.precision.compute_bytes * asked.held.head_elements + asked.held.head_frozen
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
