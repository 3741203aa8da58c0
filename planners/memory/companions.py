"""Models beside the policy: DPO's reference, a reward model, a value model that may learn with it.

TRL shards a companion as the policy is sharded under FSDP (`prepare_fsdp`), and
under DeepSpeed at ZeRO stage 3 alone (`prepare_deepspeed`); otherwise every GPU
holds it whole (`accelerator.prepare_model`). Its forward pass runs without
gradients after the policy's, while all that the policy keeps stands
(`trl/trainer/dpo_trainer.py`: log-probabilities of the policy, then those of the
reference under `no_grad`). Logits leave the model in 16 bits and are upcast to
fp32 (accelerate, `convert_outputs_to_fp32`); the policy's are kept so for the loss.

A value model that learns runs after the policy in one wrapper with it, and one
backward pass goes through both, its own first (`trl/trainer/ppo_trainer.py`,
`PolicyAndValueWrapper`): all that both keep stands at its beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.ground.terms import REFERENCE
from plimsoll.planners.jobs.job import CompanionJob, Job
from plimsoll.planners.layouts.candidates import BoolArray, Candidates, FloatArray
from plimsoll.planners.layouts.stages import StageRows, all_stages
from plimsoll.planners.memory.activity import Activity, LayerActivity, activity
from plimsoll.planners.memory.holdings import Holdings, has_gathering, holdings, shard_ranks


def with_companions(held: Holdings, layouts: Candidates, job: Job) -> Holdings:
    """Return what a rank holds with its companions' weights and states, which stand through the whole job."""
    for companion in job.companions:
        if companion.trainable:
            own = holdings(layouts, all_stages(layouts, companion.job.model, job.global_batch_size), companion.job)
            held = replace(
                held,
                parameters=held.parameters + own.parameters,
                gradients=held.gradients + own.gradients,
                optimizer=held.optimizer + own.optimizer,
                host=held.host + own.host,
                host_gradients=held.host_gradients + own.host_gradients,
            )
        else:
            held = replace(held, parameters=held.parameters + companion_bytes(companion, layouts, job))
    return held


def companion_bytes(companion: CompanionJob, layouts: Candidates, job: Job) -> FloatArray:
    """Return a rank's bytes of one companion's weights."""
    whole = float(companion.job.model.parameters * companion.weight_bytes)
    result: FloatArray = np.ceil(whole / np.where(_is_gathered(layouts, job), shard_ranks(layouts, job), 1))
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompanionForward:
    """What a companion's forward pass holds on one rank beside all that the policy keeps; bytes.

    `logits` are the policy's and the companion's own, `gathered` its whole weights.
    """

    role: str
    kept: FloatArray
    logits: FloatArray
    gathered: FloatArray


def companion_forwards(layouts: Candidates, job: Job) -> Iterator[CompanionForward]:
    """Yield what each companion's forward pass holds."""
    tokens = layouts.local_tokens(job.sequence_length)
    # A fused loss of the policy would keep no logits, but log-probabilities are taken of whole ones.
    policy_logits = tokens * job.model.vocabulary_size * FP32_BYTES
    for companion in job.companions:
        own = companion.job
        # The stacks that run companions have no pipelines, so that a companion has one stage as the policy has.
        own_rows = all_stages(layouts, own.model, job.global_batch_size)
        beside = activity(layouts, own_rows, own)
        kept = functools.reduce(np.maximum, [_at_layer(beside, layer, companion) for layer in beside.layers])
        has_logits = companion.role == REFERENCE
        logits = tokens * own.model.vocabulary_size * (companion.weight_bytes + FP32_BYTES) * has_logits
        yield CompanionForward(
            role=companion.role,
            kept=kept,
            logits=policy_logits + logits,
            gathered=_gathered(companion, layouts, own_rows, job),
        )


def _at_layer(beside: Activity, layer: LayerActivity, companion: CompanionJob) -> FloatArray:
    """Return what is live at one of the companion's layers: of one that learns, as that layer is differentiated."""
    own = layer.backward
    if not companion.trainable:
        return own.working_set
    return beside.stage - layer.kept + own.working_set + own.transient + beside.head


def _gathered(companion: CompanionJob, layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return the companion's gathered root and two layers, the second one fetched ahead."""
    is_gathered = _is_gathered(layouts, job)
    if not is_gathered.any():
        return np.zeros(1)
    whole = holdings(layouts, rows, companion.job)
    layers = functools.reduce(np.maximum, [layer.elements for layer in whole.layers]) * np.minimum(rows.layers, 2)
    return np.where(is_gathered, companion.weight_bytes * (whole.root_elements + layers), 0.0)


def _is_gathered(layouts: Candidates, job: Job) -> BoolArray:
    return has_gathering(layouts.zero_stage, job, "gathered_by_layer", "gathered_once", "gathered_to_limit")
