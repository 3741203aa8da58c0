"""Which ways of sharding are traced: ZeRO stages, chunks of a pipeline, states on the host."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.jobs.states import is_fully_sharded, keeps_master_weights

# Those that tell matrices from vectors, and so need parameters whole and in their shapes.
SHAPED_OPTIMIZERS = ("adafactor", "muon")
# torch, distributed/pipelining/schedules.py, `_add_unshard_reshard`: of more chunks some are gathered anew.
MOST_GATHERED_CHUNKS = 3

FULL_SHARDING_KEEPS_NO_MAIN_GRADIENTS = Rule(
    broken=lambda asked: is_fully_sharded(asked.job, asked.stack) and asked.stack.main_gradients_in_fp32,
    pointer="/layout/zero_stage",
    words=lambda asked: f"{asked.job.framework} with zero_stage {asked.job.zero_stage} is not traced yet.",
)


def _shards_the_optimizer_alone(asked: Asked) -> bool:
    shards_optimizer = asked.job.zero_stage == 1 and asked.job.data_parallel > 1
    return shards_optimizer and not keeps_master_weights(asked.job, asked.stack)


STAGE_ONE_KEEPS_MASTER_WEIGHTS = Rule(
    broken=_shards_the_optimizer_alone,
    pointer="/layout/zero_stage",
    words=lambda asked: f"{asked.job.framework} with zero_stage 1 in {asked.job.precision} is not traced yet.",
)


def _divides_shapes(asked: Asked) -> bool:
    job, stack = asked.job, asked.stack
    is_divided = is_fully_sharded(job, stack) or keeps_master_weights(job, stack) or job.tensor_parallel > 1
    return job.optimizer in SHAPED_OPTIMIZERS and is_divided and not (stack.has_own_engine or stack.runs_own_model(job))


SHAPES_STAY_WHOLE = Rule(
    broken=_divides_shapes,
    pointer="/training/optimizer",
    words=lambda asked: (
        f"{asked.job.optimizer} is traced over whole parameters: neither transformers' Adafactor nor torch's Muon is "
        "traced over shards or an optimizer's flat copies."
    ),
)
CHUNKS_STAY_GATHERED = Rule(
    broken=lambda asked: is_fully_sharded(asked.job, asked.stack) and asked.job.virtual_pipeline > MOST_GATHERED_CHUNKS,
    pointer="/layout/virtual_pipeline",
    words=f"FSDP2 is traced with {MOST_GATHERED_CHUNKS} chunks of a pipeline a rank at most.",
)


def _offloads_otherwise(asked: Asked) -> bool:
    job = asked.job
    is_plain = job.expert_parallel == job.pipeline_parallel == job.context_parallel == 1 and job.method != "qlora"
    is_moved_so = is_fully_sharded(job, asked.stack) and is_plain
    is_own = asked.stack.has_own_engine or asked.stack.runs_own_model(job)
    return job.states_on_host and not (is_moved_so or is_own)


STATES_ON_THE_HOST_ARE_SHARDS = Rule(
    broken=_offloads_otherwise,
    pointer="/layout/offload",
    words=(
        "States on the host are traced where a stack's own engine or optimizer moves them, and as FSDP2's "
        "CPUOffloadPolicy has them, without pipelines, experts or sequences over several ranks and without 4-bit "
        "weights."
    ),
)
RULES = (
    FULL_SHARDING_KEEPS_NO_MAIN_GRADIENTS,
    STAGE_ONE_KEEPS_MASTER_WEIGHTS,
    SHAPES_STAY_WHOLE,
    CHUNKS_STAY_GATHERED,
)
RULES_OF_OFFLOAD = (STATES_ON_THE_HOST_ARE_SHARDS,)
