"""Megatron-LM's arguments, which describe the model as well as the layout.

Source: megatron/training/arguments.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from plimsoll.planners.formats.precision import FP8_BLOCK_MIXED, FP8_MIXED, MXFP8_MIXED, NVFP4_MIXED
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION, MODULES
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.service.stacks.megatron.activations import told_activations, why_activations_are_not_planned
from plimsoll.service.stacks.megatron.context import told_context, why_context_is_not_planned
from plimsoll.service.stacks.megatron.experts import why_experts_are_not_read, why_their_division_is_not_planned
from plimsoll.service.stacks.megatron.flags import FLAGS, LOSSES
from plimsoll.service.stacks.megatron.launch import BLOCKWISE, DEALT_MUON, MUON, OPTIMIZERS
from plimsoll.service.stacks.megatron.pipelines import told_layout, virtual_stages
from plimsoll.service.stacks.megatron.rules import broken_rules, divides_otherwise
from plimsoll.service.stacks.megatron.states import copies_of_states, told_states, why_copies_are_not_planned
from plimsoll.service.stacks.megatron.told_model import told_config
from plimsoll.service.stacks.stack import CommandReader, Job, Words
from plimsoll.service.workloads.commands.flags import option, options_unseen, read_flags
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read

FRAMEWORK = "megatron"
# The table's two flags that say whose arguments these are.
MARK = re.compile(r"^--(tensor-model-parallel-size|num-layers)(=|$)")
NEEDED = ("layers", "hidden", "heads", "sequence_length", "micro_batch_size", "vocabulary")
OPTIMIZERS_BY_NAME = {
    **{str(options["optimizer"]): optimizer for optimizer, options in OPTIMIZERS.items()},
    DEALT_MUON: MUON,
}
# Flags that say another model, or divide it otherwise, than the table's.
DECISIVE = frozenset({
    "--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2", "--data-parallel-sharding-strategy", "--deepspeed",
    "--deepspeed-config", "--zero-stage", "--cpu-optimizer", "--use-checkpoint-args", "--yaml-cfg", "--spec",
    "--multi-latent-attention", "--hybrid-override-pattern", "--hybrid-layer-pattern", "--is-hybrid-model",
    "--encoder-num-layers", "--heterogeneous-layers-config-path",
})  # fmt: skip
# Flags that leave a rank less than is counted.
MEMORY_SAVING = frozenset({
    "--cpu-offloading", "--main-params-dtype", "--distribute-saved-activations", "--checkpoint-activations",
    "--fp4-param-gather",
})  # fmt: skip
# Megatron-LM's scripts of models whose layers are not those of its GPT.
OTHER_SCRIPT = re.compile(r"(?:^|/)pretrain_(?:t5|vlm|mamba|ict|retro|vision_\w+|bert)\.py$")
BY_RECIPE = {"mxfp8": MXFP8_MIXED, "blockwise": FP8_BLOCK_MIXED}  # --fp8-recipe; others scale whole tensors
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
NATIVE = "native"
Values = Mapping[str, Any]


def _is_megatrons(words: Words) -> bool:
    return any(MARK.match(word.replace("_", "-")) for word in words)


def _megatron_launch(job: Job) -> Read:
    """Return the training job of a Megatron command on the GPUs of its ranks, or of the pods where it names none."""
    words, gpus = job.words, job.gpus
    read = read_flags(words[1:], FLAGS)
    values = read.values
    if read.problems:
        return NotRead(reason="; ".join(read.problems))
    unseen = options_unseen(read)
    if unseen is not None:
        return unseen
    others = {name.replace("_", "-") for name in read.others}
    another = next((word for word in read.positionals if OTHER_SCRIPT.search(word)), None)
    decisive = sorted(DECISIVE & others) or ([another] if another else [])
    if decisive:
        return NotRead(reason=f"{decisive[0][-80:]} decides the model or how it is divided, and is not read")
    missing = [name for name in NEEDED if name not in values]
    if missing:
        flags = ", ".join(f"--{flag.names[0]}" for flag in FLAGS if flag.field in missing)
        return NotRead(reason=f"the Megatron command does not say {flags}")
    optimizer = str(values.get("optimizer", "adam"))
    if optimizer not in OPTIMIZERS_BY_NAME:
        return NotRead(reason=f"--optimizer {optimizer[:40]} is no optimizer this service knows")
    if values.get("fused_loss", NATIVE) not in LOSSES:
        return NotRead(
            reason=f"--cross-entropy-fusion-impl {str(values['fused_loss'])[:40]} is none of {', '.join(LOSSES)}"
        )
    if OPTIMIZERS_BY_NAME[optimizer] == MUON and _gathers_blocks(values):
        return NotRead(reason=f"--muon-tp-mode {str(values['muon_blocks'])[:40]} is not planned, {BLOCKWISE} is")
    unknown = sorted({*str(values.get("recomputed_modules", "")).split()} - {*MODULES})
    if unknown:
        return NotRead(reason=f"--recompute-modules {unknown[0][:40]} is no part of a layer that this service knows")
    program = f"Megatron training of {values['layers']} layers of {values['hidden']}"
    broken = broken_rules(values, others, None if job.ranks is None else gpus)
    if broken:
        return CannotRun(program=program, reason="; ".join(broken))
    unread = why_experts_are_not_read(values, others) or why_activations_are_not_planned(values, others)
    unread = unread or why_context_is_not_planned(values, int(values.get("context_parallel", 1)))
    if unread is not None:
        return NotRead(reason=unread)
    degrees = {name: int(values.get(name, 1)) for name in DEGREES}
    model_ranks = degrees["tensor_parallel"] * degrees["pipeline_parallel"] * degrees["context_parallel"]
    if min(degrees.values()) < 1 or gpus % model_ranks:
        return NotRead(reason=f"its degrees ({model_ranks} ranks a replica) do not divide the {gpus} GPUs asked for")
    try:
        pipeline = _pipeline(values, others, degrees["pipeline_parallel"])
    except InvalidQuestion as error:
        return NotRead(reason=f"{option(FLAGS, 'listed_stages')} is not planned: {error.detail}")
    data_parallel, states = gpus // model_ranks, told_states(values)
    replicas = data_parallel * degrees["context_parallel"]
    otherwise = why_their_division_is_not_planned(values, load_profile(FRAMEWORK), replicas)
    otherwise = otherwise or why_copies_are_not_planned(values, data_parallel, degrees["context_parallel"])
    if otherwise is not None:
        return NotRead(reason=otherwise)
    low_precision_weights = values.get("low_precision_weights")
    batch = values.get("global_batch_size", int(values["micro_batch_size"]) * data_parallel)
    return Launch(
        program=program,
        kind="train",
        request={
            "model": {"config": told_config(values)},
            "training": {
                "precision": _precision(values),
                "optimizer": OPTIMIZERS_BY_NAME[optimizer],
                "sequence_length": values["sequence_length"],
                "micro_batch_size": values["micro_batch_size"],
                "global_batch_size": batch,
                "recompute": _recompute(values, pipeline["virtual_pipeline"]),
                "multi_token_prediction": values.get("multi_token_prediction", 0),
                **({"low_precision_weights": True} if low_precision_weights else {}),
                **_kernels(values),
                **states.training,
                **told_activations(values),
            },
            "layout": {
                **degrees,
                "data_parallel": data_parallel,
                **pipeline,
                "sequence_parallel": bool(values.get("sequence_parallel")) and degrees["tensor_parallel"] > 1,
                "zero_stage": 1 if values.get("distributed_optimizer") or optimizer == DEALT_MUON else 0,
                **_shard_group(values, data_parallel),
                "overlap": _overlap(values, degrees),
                **told_context(values, degrees["context_parallel"]),
                **states.layout,
            },
            "framework": FRAMEWORK,
        },
        memory_saving=tuple(sorted({*(MEMORY_SAVING & others), *states.memory_saving})),
    )


def _gathers_blocks(values: Values) -> bool:
    """Return whether tensor-parallel ranks are told to orthogonalize whole matrices together."""
    return int(values.get("tensor_parallel", 1)) > 1 and values.get("muon_blocks", BLOCKWISE) != BLOCKWISE


def _shard_group(values: Values, data_parallel: int) -> dict[str, int]:
    """Return the replicas that share one copy of the distributed optimizer, where there are several copies."""
    copies = copies_of_states(values)
    return {} if copies == 1 else {"shard_group": data_parallel // copies}


def _pipeline(values: Values, others: Collection[str], pipeline_parallel: int) -> dict[str, Any]:
    """Return how a pipeline's blocks are divided, for the layout; nothing of it where other options say more of it."""
    part: dict[str, Any] = {"virtual_pipeline": virtual_stages(values, pipeline_parallel)}
    if pipeline_parallel > 1 and not divides_otherwise(others):
        part["pipeline_layout"] = told_layout(values)
    return part


def _precision(values: Values) -> str:
    if values.get("fp4"):
        return NVFP4_MIXED
    if values.get("fp8"):
        return BY_RECIPE.get(str(values.get("fp8_recipe")), FP8_MIXED)
    return "bf16-mixed" if values.get("bf16") else "fp16-mixed" if values.get("fp16") else "fp32"


def _recompute(values: Values, virtual_pipeline: int) -> str | dict[str, int] | dict[str, list[str]]:
    granularity = values.get("recompute") or ("selective" if values.get("recompute_selective") else "none")
    modules = list(dict.fromkeys(str(values.get("recomputed_modules", CORE_ATTENTION)).split()))
    if granularity == "selective" and modules != [CORE_ATTENTION]:
        return {"modules": modules}
    if granularity != "full":
        return str(granularity)
    # "uniform" divides all layers into units of that many; "block" recomputes that many of each virtual stage.
    if values.get("recompute_method") == "block" and "recompute_layers" in values:
        layers = int(values["recompute_layers"]) * virtual_pipeline
        return {"full_layers": layers} if layers else "none"
    return "full"


def _kernels(values: Values) -> dict[str, str]:
    """Return how a fused loss is run; nothing where it is not fused."""
    return {"kernels": LOSSES[str(values.get("fused_loss", NATIVE))]} if values.get("fuses_loss") else {}


def _overlap(values: Values, degrees: Mapping[str, int]) -> dict[str, bool]:
    """Return which traffic is to hide; without its option some of tensor-parallel ranks' hides all the same."""
    kinds = ("gradients", "parameters", "expert_parallel")
    hidden = {kind: bool(values.get(f"overlap_{kind}")) for kind in kinds}
    if degrees["tensor_parallel"] > 1 and values.get("overlap_tensor_parallel"):
        hidden["tensor_parallel"] = True
    return hidden


READER = CommandReader(reads=_is_megatrons, read=_megatron_launch)
