"""Training layouts to make launch files of."""

from __future__ import annotations

from plimsoll.planners.plans import Layout


def layout(gpus: int) -> Layout:
    return Layout(
        framework="fsdp2", gpus=gpus, data_parallel=gpus, tensor_parallel=1, pipeline_parallel=1, virtual_pipeline=1,
        context_parallel=1, expert_parallel=1, sequence_parallel=False, zero_stage=3, shard_group=gpus, offload="none",
        offload_target="cpu", micro_batch_size=1, gradient_accumulation_steps=1, recompute="none",
        recompute_layers=None, activation_offload=False, fused_cross_entropy=False,
    )  # fmt: skip
