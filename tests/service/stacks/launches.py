"""Plans to write launch files of: a layout by its degrees, without a search for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.pipeline_layouts import pipeline_layouts
from plimsoll.planners.layouts.stages import Pipeline
from plimsoll.planners.plans import Layout, ShardedStage, Sharding, TrainingPlan
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.planning import plan_training
from plimsoll.service.artifacts.training import training_artifacts
from plimsoll.service.launch.training import TrainingLaunch
from tests.planners.factories import LLAMA_3_8B, hardware, question

# Llama 3.1 8B as its config.json has it.
LLAMA_31_8B: Mapping[str, Any] = {
    **LLAMA_3_8B,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
QWEN_3_30B_A3B: Mapping[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
}  # fmt: skip


def layout(framework: str, **changes: Any) -> Layout:
    """Return a layout of 1 GPU unless told otherwise; gpus, and the accumulation of 64 sequences, follow."""
    degrees = {"data_parallel": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1, **changes}
    gpus = (
        degrees["data_parallel"]
        * degrees["tensor_parallel"]
        * degrees["pipeline_parallel"]
        * degrees["context_parallel"]
    )
    micro_batch = changes.get("micro_batch_size", 1)
    facts: dict[str, Any] = {
        "framework": framework,
        "gpus": gpus,
        "virtual_pipeline": 1,
        "expert_parallel": 1,
        "sequence_parallel": False,
        "zero_stage": 0,
        "shard_group": degrees["data_parallel"],
        "offload": "none",
        "offload_target": "cpu",
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": 64 // (degrees["data_parallel"] * micro_batch),
        "recompute": "none",
        "recompute_layers": None,
        "activation_offload": False,
        "fused_cross_entropy": False,
    }
    return Layout(**{**facts, **degrees})


def sharding(planned: Layout, config: Mapping[str, Any]) -> Sharding:
    """Return which layers the stages of a layout have, in all their chunks."""
    model = describe_config(config, name="a model")
    way = pipeline_layouts(planned.pipeline_layout, load_profile(planned.framework).can.pipeline_layouts, model)[0]
    pipeline = Pipeline(ByIdentity(model), planned.pipeline_parallel, planned.virtual_pipeline, way)
    stages = tuple(
        ShardedStage(
            stage=stage,
            layers=pipeline.span(stage),
            chunks=tuple((layers.start, layers.stop - 1) for layers in pipeline.held(stage)),
            embedding=stage == 0,
            head=pipeline.has_head(stage),
        )
        for stage in range(planned.pipeline_parallel)
    )
    return dataclasses.replace(_any_plan().sharding, stages=stages)


@functools.cache
def _any_plan() -> TrainingPlan:
    return plan_training(question(framework="reference")).plan


def launch(
    framework: str,
    *,
    config: Mapping[str, Any] = LLAMA_31_8B,
    model_name: str | None = None,
    elastic_gpus: tuple[int, ...] = (),
    steps: int | None = None,
    gpus_per_node: int = 8,
    asked: Mapping[str, Any] | None = None,
    **degrees: Any,
) -> TrainingLaunch:
    """Return a launch of 64 sequences of 8,192 tokens of Llama 3.1 8B; `asked` are other fields of the question."""
    planned = layout(framework, **degrees)
    run = dataclasses.replace(_any_plan().run, elastic_gpus=elastic_gpus, steps=steps)
    return TrainingLaunch(
        question=question(
            model=describe_config(config, name="a model"),
            framework=framework,
            hardware=hardware(planned.gpus, gpus_per_node=gpus_per_node),
            **(asked or {}),
        ),
        plan=dataclasses.replace(_any_plan(), layout=planned, run=run, sharding=sharding(planned, config)),
        model_config=config,
        model_name=model_name,
    )


def written(name: str, given: TrainingLaunch) -> str:
    """Return a launch file that is text."""
    content = training_artifacts(given).files[name]
    assert isinstance(content, str)
    return content


def why_missing(name: str, given: TrainingLaunch) -> str:
    """Return why a launch file is missing."""
    found = training_artifacts(given)
    assert name not in found.files
    return " ".join(found.missing[name])


def golden(name: str) -> str:
    """Return a golden file, read beside the source of the program it is for when it was written."""
    return (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8").rstrip("\n")
