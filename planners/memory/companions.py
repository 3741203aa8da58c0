"""Frozen models beside the one that learns: DPO's reference, a reward model, a value model.

TRL shards a companion as the policy is sharded under FSDP (`prepare_fsdp`), and
under DeepSpeed at ZeRO stage 3 alone (`prepare_deepspeed`); otherwise every GPU
holds it whole (`accelerator.prepare_model`). Its forward pass runs without
gradients after the policy's, while all that the policy keeps stands
(`trl/trainer/dpo_trainer.py`: log-probabilities of the policy, then those of the
reference under `no_grad`). Logits leave the model in 16 bits and are upcast to
fp32 (accelerate, `convert_outputs_to_fp32`); the policy's are kept so for the loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planners.layout.candidates import Candidates, FloatArray
from planners.memory.activity import Activity, activity
from planners.memory.holdings import Holdings, holdings, shard_ranks
from planners.memory.job import CompanionJob, Job
from planners.memory.stages import StageRows

COMPANION_FORWARD = "companion forward"
FP32_BYTES = 4


def with_companions(held: Holdings, layouts: Candidates, rows: StageRows, job: Job) -> Holdings:
    """Return what a rank holds with its companions' weights, which stand through the whole job."""
    if not job.companions:
        return held
    weights = sum(companion_bytes(companion, layouts, job) for companion in job.companions)
    return replace(held, parameters=held.parameters + np.asarray(weights)[rows.owner])


def companion_bytes(companion: CompanionJob, layouts: Candidates, job: Job) -> FloatArray:
    """Return a rank's bytes of one companion's weights."""
    whole = float(companion.job.model.parameters * companion.weight_bytes)
    result: FloatArray = np.ceil(whole / np.where(_is_gathered(layouts, job), shard_ranks(layouts, job), 1))
    return result


def companion_items(layouts: Candidates, rows: StageRows, job: Job, held: Holdings, active: Activity) -> FloatArray:
    """Return bytes [item, row] of the worst companion's forward pass; `held` has the companions' weights."""
    tokens = layouts.local_tokens(job.sequence_length)[rows.owner]
    # A fused loss of the policy would keep no logits, but log-probabilities are taken of whole ones.
    policy_logits = tokens * job.model.vocabulary_size * FP32_BYTES
    keeps = job.profile.weights.gradients_always_resident | (layouts.micro_batches(job.global_batch_size) > 1)
    worst: FloatArray | None = None
    for companion in job.companions:
        working = activity(layouts, rows, companion.job).working_set
        has_logits = companion.role == "reference"
        logits = tokens * companion.job.model.vocabulary_size * (companion.weight_bytes + FP32_BYTES) * has_logits
        items = np.ceil(
            np.stack(
                [
                    held.parameters,
                    np.where(keeps[rows.owner], held.gradients, 0.0),
                    held.optimizer,
                    active.stage + active.head + working,
                    policy_logits + logits,
                    _gathered(companion, layouts, rows, job),
                ]
            )
        )
        worst = items if worst is None else np.where(items.sum(axis=0) > worst.sum(axis=0), items, worst)
    if worst is None:
        raise ValueError("The job has no companions.")
    return worst


def _gathered(companion: CompanionJob, layouts: Candidates, rows: StageRows, job: Job) -> FloatArray:
    """Return the companion's gathered root and two layers, the second one fetched ahead."""
    whole = holdings(layouts, rows, companion.job)
    layers = whole.layer_elements * np.minimum(rows.layers, 2)
    gathered: FloatArray = companion.weight_bytes * (whole.root_elements + layers)
    return np.where(_is_gathered(layouts, job)[rows.owner], gathered, 0.0)


def _is_gathered(layouts: Candidates, job: Job) -> np.typing.NDArray[np.bool_]:
    policy = np.array([job.profile.weights.policy.get(str(stage), "resident") for stage in range(4)])
    return np.char.startswith(policy, "gathered")[layouts.zero_stage]
