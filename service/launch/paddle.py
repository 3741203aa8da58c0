"""PaddlePaddle's fleet strategy: the attributes of `fleet.DistributedStrategy`, set one by one from JSON.

Attributes: PaddlePaddle, `python/paddle/distributed/fleet/base/distributed_strategy.py`
(hybrid_configs, pipeline_configs, amp, recompute). Memory and time of the plan are
those of the stack it was made for; the layout is the same.
"""

from __future__ import annotations

from typing import Any

from plimsoll.service.launch.training import Target, TrainingLaunch, given_reasons

# The axes of the process grid, outermost first, as in the plan's mesh.
ORDER = ["pp", "dp", "sharding", "sep", "mp"]


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    question, layout = launch.question, launch.layout
    return given_reasons(
        (layout.context_parallel > 1, "Context parallelism is not written for fleet."),
        (layout.expert_parallel > 1, "Expert parallelism is set in Paddle's own MoE layers, not in the strategy."),
        (layout.zero_stage > 1, "Fleet's hybrid strategy divides optimizer states alone, as stage 1 does."),
        (layout.offload != "none", "Fleet's hybrid strategy offloads no states."),
        (layout.recompute in ("selective",) or layout.recompute_layers is not None, "Fleet recomputes whole layers."),
        (
            question.precision not in ("bf16-mixed", "fp16-mixed", "fp32"),
            f"Precision {question.precision} is not written for fleet.",
        ),
        (question.method != "full", "Adapters are not written for fleet."),
    )


def fleet_strategy(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the strategy; sharding, data, micro-batch and accumulation multiply out to the plan's batch."""
    question, layout = launch.question, launch.layout
    shards = layout.shard_group if layout.zero_stage > 0 else 1
    return {
        "hybrid_configs": {
            "dp_degree": layout.data_parallel // shards,
            "mp_degree": layout.tensor_parallel,
            "pp_degree": layout.pipeline_parallel,
            "sharding_degree": shards,
            "sep_degree": 1,
            "order": ORDER,
        },
        "pipeline_configs": {
            "micro_batch_size": layout.micro_batch_size,
            "accumulate_steps": layout.gradient_accumulation_steps,
        },
        "amp": question.precision != "fp32",
        "recompute": layout.recompute == "full",
    }


PADDLE = Target(name="paddle", why_not=_why_not, write=fleet_strategy)
