"""torchtitan's TOML: DDP, FSDP2 and HSDP with tensor, pipeline, context and expert parallelism.

Keys: torchtitan 0.2.2, `config/job_config.py`; 0.3 reads Python modules instead.
What they do: `distributed/parallel_dims.py`, `distributed/pipeline_parallel.py`,
`distributed/activation_checkpoint.py` and `train.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll.planners.ground.hardware import has_bf16
from plimsoll.service.launch.script import OWN_SCRIPT, Script
from plimsoll.service.launch.toml_text import toml_text
from plimsoll.service.launch.training import (
    LEARNING_RATE,
    Target,
    TrainingLaunch,
    chosen_dtypes,
    given_reasons,
)
from plimsoll.service.stacks.fsdp2.models import Flavor, torchtitan_flavor
from plimsoll.service.stacks.fsdp2.pipelines import division_options, schedule_name

# What parameters lie in, and what they are gathered and multiplied in.
DTYPES: Mapping[str, tuple[str, str]] = {
    "bf16-mixed": ("float32", "bfloat16"),
    "fp8-mixed": ("float32", "bfloat16"),
    "bf16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
}
# The output projection stays in 16 bits, as torchtitan's docs/float8.md has it.
FLOAT8_LEFT_ALONE = ["output"]


def why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    """Return what of a plan torchtitan's options cannot say."""
    question, layout = launch.question, launch.layout
    flavor = torchtitan_flavor(launch.model_config)
    return given_reasons(
        *chosen_dtypes(question, "torchtitan"),
        (flavor is None, "torchtitan has no flavor of this model's family and sizes."),
        (
            flavor is not None and not flavor.has_pipeline and layout.pipeline_parallel > 1,
            "The file is for torchtitan 0.2, which cuts this model into no pipeline stages; its main branch does.",
        ),
        (
            launch.is_of_older_version,
            f"The file is for torchtitan 0.2, and the plan for that of {layout.framework_version}.",
        ),
        (question.method != "full", "torchtitan trains all weights."),
        (question.precision not in DTYPES, f"torchtitan has no option for precision {question.precision}."),
        (question.optimizer != "adamw", f"torchtitan has no optimizer {question.optimizer}."),
        (
            question.attention != "flash" and has_bf16(question.hardware.gpu),
            "torchtitan computes attention by fused kernels only.",
        ),
        (layout.activation_offload, "torchtitan has no option for offloaded activations."),
    )


def torchtitan_toml(launch: TrainingLaunch, *, is_elastic: bool) -> str:
    """Return the job's config; the accumulation follows from the two batch sizes and the degrees."""
    question, layout = launch.question, launch.layout
    flavor = torchtitan_flavor(launch.model_config)
    if flavor is None:
        raise ValueError(f"{launch.question.model.name} is no model of torchtitan's.")
    parameters, gathered = DTYPES[question.precision]
    training: dict[str, Any] = {
        "local_batch_size": layout.micro_batch_size * _micro_batches_of_a_pass(launch),
        "global_batch_size": question.global_batch_size,
        "seq_len": question.sequence_length,
        "dtype": parameters,
        "mixed_precision_param": gathered,
        "mixed_precision_reduce": "float32",
    }
    if layout.offload == "optimizer+parameters":
        training["enable_cpu_offload"] = True
    if launch.plan.run.steps is not None:
        training["steps"] = launch.plan.run.steps
    tables: dict[str, dict[str, Any]] = {
        "model": _model(launch, flavor),
        "optimizer": {"name": "AdamW", "lr": LEARNING_RATE, "implementation": "fused"},
        "training": training,
        "parallelism": _parallelism(launch, is_elastic=is_elastic),
        "activation_checkpoint": _activation_checkpoint(launch),
        "compile": {"enable": question.kernels == "compiled"},
    }
    if question.precision == "fp8-mixed":
        tables["quantize.linear.float8"] = {"filter_fqns": FLOAT8_LEFT_ALONE}
    return toml_text(tables)


def _model(launch: TrainingLaunch, flavor: Flavor) -> dict[str, Any]:
    model: dict[str, Any] = {"name": flavor.model, "flavor": flavor.name, "hf_assets_path": _assets_folder(launch)}
    if launch.question.precision == "fp8-mixed":
        model["converters"] = ["quantize.linear.float8"]
    return model


def _assets_folder(launch: TrainingLaunch) -> str:
    """Return where torchtitan's scripts/download_hf_assets.py puts a model's files."""
    return f"./assets/hf/{launch.model_path.rpartition('/')[2]}"


def _micro_batches_of_a_pass(launch: TrainingLaunch) -> int:
    """Return how many micro-batches go through at once: a pipeline takes all of a step."""
    layout = launch.layout
    return layout.gradient_accumulation_steps if layout.pipeline_parallel > 1 else 1


def _parallelism(launch: TrainingLaunch, *, is_elastic: bool) -> dict[str, Any]:
    layout = launch.layout
    shards = layout.shard_group if layout.zero_stage > 0 else 1
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.data_parallel // shards,
        "data_parallel_shard_degree": -1 if is_elastic else shards,
        "tensor_parallel_degree": layout.tensor_parallel,
        "context_parallel_degree": layout.context_parallel,
        "pipeline_parallel_degree": layout.pipeline_parallel,
        "expert_parallel_degree": layout.expert_parallel,
        "expert_tensor_parallel_degree": launch.expert_tensor_parallel if layout.expert_parallel > 1 else 1,
    }
    if layout.overlap is not None and layout.overlap.tensor_parallel:
        table["enable_async_tensor_parallel"] = True
    if layout.zero_stage > 0:
        # By default weights are let go of after each layer, but not between the micro-batches of a pipeline.
        table["fsdp_reshard_after_forward"] = "default" if layout.zero_stage == 3 else "never"
    if layout.pipeline_parallel > 1:
        table |= {
            "pipeline_parallel_schedule": schedule_name(layout),
            "pipeline_parallel_microbatch_size": layout.micro_batch_size,
            **division_options(layout, [stage.chunks for stage in launch.plan.sharding.stages]),
        }
    return table


def _activation_checkpoint(launch: TrainingLaunch) -> dict[str, Any]:
    """Return the mode; `op` keeps attention and every second matrix product, a number stands for every k-th layer."""
    asked, mode = launch.question.recompute, launch.layout.recompute
    if asked is not None and asked.every is not None:
        return {"mode": "selective", "selective_ac_option": str(asked.every)}
    if mode == "selective":
        return {"mode": "selective", "selective_ac_option": "op"}
    return {"mode": mode}


def torchtitan_script(launch: TrainingLaunch) -> Sequence[str]:
    """Return torchtitan's own script where its options say all of a plan."""
    return OWN_SCRIPT if why_not(launch) else ("-m", "torchtitan.train", "--job.config_file", "torchtitan.toml")


def _derives_replicas(launch: TrainingLaunch) -> bool:
    """Return whether `data_parallel_shard_degree` -1 will do: a pipeline is told how many sequences go through."""
    return launch.layout.pipeline_parallel == 1


def torchtitan_target(script: Script) -> Target:
    """Return the job's config, for a script that may start on other numbers of nodes or not."""
    return Target(
        name="torchtitan",
        why_not=why_not,
        write=lambda launch: torchtitan_toml(launch, is_elastic=script.is_elastic(launch)),
        saved_as="torchtitan.toml",
    )


SCRIPT = Script(words=torchtitan_script, derives_replicas=_derives_replicas)
