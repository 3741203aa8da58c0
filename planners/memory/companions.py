"""Models beside the policy: DPO's reference, a reward model, a value model that may learn with it.

TRL shards a companion as the policy is sharded under FSDP, as one unit that is gathered whole (`prepare_fsdp`: FSDP2's
plugin would wrap layers, and is not asked), and under DeepSpeed at ZeRO stage 3 alone (`prepare_deepspeed`); otherwise
every GPU holds it whole (`accelerator.prepare_model`). Its forward pass runs without gradients after the policy's,
while all that the policy keeps stands (`trl/trainer/dpo_trainer.py`: log-probabilities of the policy, then those of the
reference under `no_grad`). Neither's logits are ever whole (`preference_loss.py`).

A value model that learns runs after the policy in one wrapper with it, and one
backward pass goes through both, its own first (`trl/trainer/ppo_trainer.py`,
`PolicyAndValueWrapper`): all that both keep stands at its beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from plimsoll.planners.ground.terms import REFERENCE
from plimsoll.planners.jobs.job import BlockWeights, CompanionJob, Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray, IntArray, any_of
from plimsoll.planners.layouts.stages import StageRows, all_stages
from plimsoll.planners.memory.activity import Activity, LayerActivity, activity
from plimsoll.planners.memory.holdings import Holdings, States, has_gathering, holdings, shard_ranks, states
from plimsoll.planners.memory.layer_bytes import layer_bytes
from plimsoll.planners.memory.preference_loss import reference_loss
from plimsoll.planners.memory.steps.on_rank import NO_BYTES

S = TypeVar("S", bound=States)

# The activation, the other half and their product, as a gated feed-forward multiplies them.
FEED_FORWARD_TENSORS = 3
# The embedding's output and the layer's input, which their callers hold, the residual, and the norm of it.
STREAMS = 4

# What is asked here of a companion's layer is the same whatever modules it recomputes.
FIRST_SET: IntArray = np.zeros(1, dtype=np.int64)


def with_companions(held: S, layouts: Candidates, job: Job) -> S:
    """Return what a rank holds with its companions' weights and states, which stand through the whole job."""
    for companion in job.companions:
        if companion.trainable:
            own = states(layouts, all_stages(layouts, companion.job), companion.job)
            held = replace(
                held,
                parameters=held.parameters + own.parameters,
                gradients=held.gradients + own.gradients,
                optimizer=held.optimizer + own.optimizer,
                host=held.host + own.host,
                host_gradients=held.host_gradients + own.host_gradients,
            )
        else:
            stays = companion_bytes(companion, layouts, job) + companion_gathered_once(companion, layouts, job)
            held = replace(held, parameters=held.parameters + stays)
    return held


def companion_bytes(companion: CompanionJob, layouts: Candidates, job: Job) -> FloatArray:
    """Return a rank's bytes of one companion's weights."""
    whole = float(companion.job.model.parameters * companion.weight_bytes)
    result: FloatArray = np.ceil(whole / np.where(_is_gathered(layouts, job), shard_ranks(layouts, job), 1))
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompanionForward:
    """What a companion's forward pass holds on one rank beside all that the policy keeps; bytes.

    `gathered` are its whole weights, `copies` what autocast makes of them, `kept` is live at a layer, `loss` behind the
    last one.
    """

    role: str
    gathered: FloatArray
    copies: FloatArray
    kept: FloatArray
    loss: FloatArray


def companion_forwards(layouts: Candidates, job: Job, held: Holdings) -> Iterator[CompanionForward]:
    """Yield what each companion's forward pass holds beside what a rank has `held`."""
    tokens = layouts.local_tokens(job.sequence_length)
    for companion in job.companions:
        own = companion.job
        # The stacks that run companions have no pipelines, so that a companion has one stage as the policy has.
        own_rows = all_stages(layouts, own)
        beside = activity(layouts, own_rows, own)
        live = [
            _at_layer(beside, layer, part, companion, tokens)
            for part, layer in zip(own.layers, beside.layers, strict=True)
        ]
        casts = _is_cast(companion, layouts, job)
        loss = reference_loss(layouts, own, companion.weight_bytes, casts)
        yield CompanionForward(
            role=companion.role,
            gathered=_gathered(companion, layouts, own_rows, job, held),
            copies=np.where(casts, own.precision.compute_bytes * own.model.parameters, 0.0),
            kept=functools.reduce(np.maximum, live),
            loss=loss if companion.role == REFERENCE else NO_BYTES,
        )


def _at_layer(
    beside: Activity, layer: LayerActivity, part: BlockWeights, companion: CompanionJob, tokens: FloatArray
) -> FloatArray:
    """Return what is live at one of the companion's layers: of one that learns, as that layer is differentiated.

    Of a frozen one its feed-forward's widest tensors beside the stream; of a mixture, or with unfused attention, no
    more than it would save.
    """
    if companion.trainable:
        back = layer.backward
        return beside.stage - layer.kept + back.working_set + back.transient + beside.head
    job = companion.job
    if job.model.experts_per_token or job.attention == "eager":
        return layer.backward.working_set
    own = layer_bytes(part, job, FIRST_SET)
    stream_bytes = max(companion.weight_bytes, job.precision.compute_bytes)
    # A matrix of gate and up in one writes both, and both stand until they are multiplied.
    is_one = any(weight.shape[0] >= 2 * own.widest for weight in part.block.weights)
    widths = (
        job.precision.compute_bytes * (FEED_FORWARD_TENSORS + is_one) * own.widest
        + STREAMS * stream_bytes * own.input_width
    )
    return np.minimum(layer.backward.working_set, tokens * widths)


def _gathered(companion: CompanionJob, layouts: Candidates, rows: StageRows, job: Job, held: Holdings) -> FloatArray:
    """Return the companion's gathered weights: under FSDP2 all of them, as they are copied out of their buffer.

    DeepSpeed gathers them layer by layer, as one that learns is: the root and two layers, the second one fetched ahead.
    """
    is_gathered = _is_gathered(layouts, job)
    if not any_of(is_gathered):
        return NO_BYTES
    whole = holdings(layouts, rows, companion.job)
    if companion.trainable or not job.profile.weights.gather_copies:
        layers = functools.reduce(np.maximum, [layer.elements for layer in whole.layers]) * np.minimum(rows.layers, 2)
        return np.where(is_gathered, companion.weight_bytes * (whole.root_elements + layers), 0.0)
    once = companion_gathered_once(companion, layouts, job)
    # A whole copy that stays is made in the first step, before there is a state of the optimizer.
    made = np.maximum(_unit_bytes(companion, whole, rows) - held.optimizer, 0.0)
    return np.where(once > 0, made, np.where(is_gathered, 2.0 * _unit_bytes(companion, whole, rows), 0.0))


def companion_gathered_once(companion: CompanionJob, layouts: Candidates, job: Job) -> FloatArray:
    """Return the whole weights that stay, where FSDP2 does not shard them again behind a forward pass."""
    stays = has_gathering(layouts.zero_stage, job, "gathered_once") & np.bool_(job.profile.weights.gather_copies)
    if not any_of(stays) or companion.trainable:
        return NO_BYTES
    rows = all_stages(layouts, companion.job)
    return np.where(stays, _unit_bytes(companion, holdings(layouts, rows, companion.job), rows), 0.0)


def _unit_bytes(companion: CompanionJob, whole: Holdings, rows: StageRows) -> FloatArray:
    """Return all weights with the padding of their shards, in the format in which they are gathered."""
    precision = companion.job.precision
    size = precision.compute_bytes if precision.is_mixed else companion.weight_bytes
    counted = zip(rows.layers_of_kind, whole.layers, strict=True)
    result: FloatArray = size * (whole.root_padded + sum(count * layer.padded for count, layer in counted))
    return result


def _is_cast(companion: CompanionJob, layouts: Candidates, job: Job) -> BoolArray:
    """Return where autocast makes 16-bit copies of the companion's weights as they are used."""
    is_wider = job.precision.is_mixed and companion.weight_bytes > job.precision.compute_bytes
    return has_gathering(layouts.zero_stage, job, "autocast_copies") & np.bool_(is_wider)


def _is_gathered(layouts: Candidates, job: Job) -> BoolArray:
    return has_gathering(layouts.zero_stage, job, "gathered_by_layer", "gathered_once", "gathered_to_limit")
