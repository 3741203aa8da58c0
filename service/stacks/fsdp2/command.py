"""torchtitan's command with its job's config, read as a request to `/plan/train`.

Source: torchtitan 0.2.2, train.py, config/job_config.py, distributed/parallel_dims.py and
models/llama3/infra/parallelize.py; what nobody says is the option's default there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.stacks.fsdp2.files import values_of_torchtitan
from plimsoll.service.stacks.fsdp2.flags import FLAGS, MODULES
from plimsoll.service.stacks.fsdp2.launch import DTYPES
from plimsoll.service.stacks.fsdp2.models import HUB_NAMES
from plimsoll.service.stacks.fsdp2.pipelines import NotPlanned, told_pipeline
from plimsoll.service.stacks.stack import CommandReader, Job, Words
from plimsoll.service.workloads.commands.flags import AUTO, options_unseen, read_flags
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.commands.option_files import OptionsFileNotRead

MARK = re.compile(r"^(?:torchtitan\.train|(?:.*/)?torchtitan/train\.py|--job\.config[-_]file(?:=.*)?)$")
DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
DEFAULT_MODEL, DEFAULT_FLAVOR = "llama3", "debugmodel"
LOCAL_BATCH_SIZE, SEQUENCE_LENGTH, SELECTIVE = 8, 2048, "2"
CASTS_TO_FP8 = "quantize.linear.float8"
PER_OPERATION = "op"
STANDARD_EXCHANGE = "standard"
# What replaces parts of torchtitan, or of its step, by others.
DECISIVE = ("custom_config", "custom_import", "custom_arguments", "steps_early", "tolerates_faults")
Values = Mapping[str, Any]


def _is_torchtitans(words: Words) -> bool:
    return any(MARK.match(word) for word in words)


def _torchtitan_launch(job: Job) -> Read:
    read = read_flags(job.words[1:], FLAGS)
    if read.problems:
        return NotRead(reason="; ".join(read.problems))
    unseen = options_unseen(read)
    if unseen is not None:
        return unseen
    if f"--{MODULES}" in {name.replace("_", "-") for name in read.others}:
        return NotRead(reason=f"--{MODULES} is read from the job's config alone")
    try:
        of_file = values_of_torchtitan(str(read.values["file"]), job.container) if "file" in read.values else {}
    except OptionsFileNotRead as error:
        return NotRead(reason=f"the job's config is not read: {error}")
    values = {**of_file, **read.values}
    decisive = next((flag.name for flag in FLAGS if flag.field in DECISIVE and values.get(flag.field)), None)
    if decisive is not None:
        return NotRead(reason=f"{decisive} changes what is trained or how, and is not read")
    return _launch(values, job)


def _launch(values: Values, job: Job) -> Read:
    named = (str(values.get("model", DEFAULT_MODEL)), str(values.get("flavor", DEFAULT_FLAVOR)))
    model = HUB_NAMES.get(named)
    if model is None:
        return NotRead(reason=f"{named[0][:40]} of flavor {named[1][:40]} is no model that is planned")
    program = f"torchtitan training of {model}"
    degrees = {name: int(values.get(name, 1)) for name in DEGREES}
    try:
        replicas, shards = _replicas(values, degrees, job.gpus)
        is_sharded = shards * degrees["context_parallel"] > 1
        request = {
            "model": model,
            "training": {**_training(values, degrees, replicas * shards), **_computing(values, is_sharded=is_sharded)},
            "layout": {
                **degrees,
                **_sharding(values, degrees, replicas, shards),
                **_pipeline(values, degrees["pipeline_parallel"], model),
            },
            "framework": "fsdp2" if is_sharded else "ddp",
        }
    except NotPlanned as error:
        # Without a launcher's number of processes there may be other ranks than the GPUs that were seen.
        cannot_run = error.cannot_run and job.ranks is not None
        return CannotRun(program=program, reason=str(error)) if cannot_run else NotRead(reason=str(error))
    return Launch(program=program, kind="train", request=request, memory_saving=_memory_saving(values, degrees))


def _replicas(values: Values, degrees: Mapping[str, int], gpus: int) -> tuple[int, int]:
    """Return how many replicas there are, and over how many ranks each is sharded."""
    ranks = degrees["tensor_parallel"] * degrees["pipeline_parallel"] * degrees["context_parallel"]
    replicas, told = int(values.get("replicas", 1)), values.get("shards", AUTO)
    if min(ranks, replicas, degrees["expert_parallel"]) < 1:
        raise NotPlanned("a degree is 0", cannot_run=True)
    if told == AUTO and gpus % (ranks * replicas):
        raise NotPlanned(f"{ranks * replicas} ranks of a replica do not divide {gpus} GPUs", cannot_run=True)
    shards = gpus // (ranks * replicas) if told == AUTO else int(told)
    if ranks * replicas * shards != gpus:
        whole = ranks * replicas * shards
        raise NotPlanned(f"its degrees are {whole} ranks, and it starts on {gpus} GPUs", cannot_run=True)
    if shards * degrees["context_parallel"] == 1:
        _check_unsharded(degrees)
    return replicas, shards


def _check_unsharded(degrees: Mapping[str, int]) -> None:
    """Raise where nothing is sharded and weights are divided: torchtitan computes in fp32 then, or refuses."""
    divided = next((name for name in DEGREES if degrees[name] > 1), None)
    if divided is not None:
        raise NotPlanned(f"{divided} without data_parallel_shard_degree is not planned")


def _sharding(values: Values, degrees: Mapping[str, int], replicas: int, shards: int) -> dict[str, Any]:
    """Return what of the layout says how weights lie on ranks."""
    tensor, experts = degrees["tensor_parallel"], degrees["expert_parallel"]
    if experts > 1 and tensor > 1 and int(values.get("expert_tensor_parallel", 1)) != 1:
        raise NotPlanned("experts divided over tensor-parallel ranks too are not planned")
    if experts > 1 and values.get("exchange", STANDARD_EXCHANGE) != STANDARD_EXCHANGE:
        raise NotPlanned(f"expert_parallel_comm_backend {str(values['exchange'])[:40]} is not planned, standard is")
    if values.get("overlap_tensor_parallel") and not _is_compiled(values):
        raise NotPlanned("enable_async_tensor_parallel needs compile.enable with the model", cannot_run=True)
    part: dict[str, Any] = {
        "data_parallel": replicas * shards,
        "sequence_parallel": tensor > 1,
        "zero_stage": _zero_stage(values, shards * degrees["context_parallel"]),
        "offload": "optimizer+parameters" if values.get("offloads") else "none",
    }
    if shards > 1:
        part["shard_group"] = shards
    if tensor > 1 and values.get("overlap_tensor_parallel"):
        part["overlap"] = {"tensor_parallel": True}
    return part


def _zero_stage(values: Values, shards: int) -> int:
    if shards == 1:
        return 0
    return 2 if values.get("reshards") == "never" else 3


def _pipeline(values: Values, pipeline_parallel: int, model: str) -> dict[str, Any]:
    if pipeline_parallel == 1:
        return {"virtual_pipeline": 1}
    return told_pipeline(values, pipeline_parallel, int(catalogue().model(model).config["num_hidden_layers"]))


def _training(values: Values, degrees: Mapping[str, int], data_parallel: int) -> dict[str, Any]:
    local = int(values.get("local_batch_size", LOCAL_BATCH_SIZE))
    micro_batch = int(values.get("micro_batch_size", 1)) if degrees["pipeline_parallel"] > 1 else local
    told = values.get("global_batch_size", AUTO)
    batch = local * data_parallel if told == AUTO else int(told)
    if min(local, micro_batch, batch) < 1 or local % micro_batch or batch % (local * data_parallel):
        raise NotPlanned(
            f"global batch {batch}, local batch {local}, micro-batch {micro_batch} and {data_parallel} data-parallel "
            "ranks do not go into each other",
            cannot_run=True,
        )
    if degrees["pipeline_parallel"] > 1 and batch > local * data_parallel:
        raise NotPlanned("several passes through the pipeline in a step are not planned")
    return {
        "precision": _precision(values),
        "optimizer": _optimizer(values),
        "sequence_length": values.get("sequence_length", SEQUENCE_LENGTH),
        "micro_batch_size": micro_batch,
        "global_batch_size": batch,
    }


def _computing(values: Values, *, is_sharded: bool) -> dict[str, Any]:
    """Return what is computed again, and by which kernels, of which replicas that share nothing have one kind."""
    recompute = _recompute(values)
    if is_sharded:
        return {"recompute": recompute, "kernels": "compiled" if _is_compiled(values) else "eager"}
    if recompute not in ("none", "full"):
        raise NotPlanned("selective recompute of replicas that share nothing is not planned")
    return {"recompute": recompute}


def _precision(values: Values) -> str:
    converters = [name for name in str(values.get("converters", "")).split(",") if name]
    told = (str(values.get("dtype", "float32")), str(values.get("gathered_dtype", "bfloat16")))
    casts = converters == [CASTS_TO_FP8]
    if (converters and not casts) or told not in DTYPES.values():
        raise NotPlanned(f"{', '.join(converters or told)[:80]} is no precision that is planned")
    if casts and told == DTYPES["fp8-mixed"]:
        return "fp8-mixed"
    return next(precision for precision, dtypes in DTYPES.items() if dtypes == told)


def _optimizer(values: Values) -> str:
    told = str(values.get("optimizer", "AdamW"))
    if told != "AdamW":
        raise NotPlanned(f"optimizer {told[:40]} is not planned, AdamW is")
    return "adamw"


def _recompute(values: Values) -> str | dict[str, int]:
    mode, option = str(values.get("recompute", "selective")), str(values.get("recompute_selective", SELECTIVE))
    if mode in ("none", "full") or (mode, option) == ("selective", PER_OPERATION):
        return mode
    if mode == "selective" and re.fullmatch(r"[1-9]\d{0,3}", option):
        return {"every": int(option)}
    raise NotPlanned(f"activation_checkpoint.mode {mode[:40]} with {option[:40]} is not planned")


def _is_compiled(values: Values) -> bool:
    return bool(values.get("compiles")) and "model" in str(values.get("compiled", "model,loss")).split(",")


def _memory_saving(values: Values, degrees: Mapping[str, int]) -> tuple[str, ...]:
    """Return what leaves a rank less than is counted: a pipeline's weights let go of between micro-batches."""
    is_gathered_anew = values.get("reshards") == "always" and degrees["pipeline_parallel"] > 1
    return ("fsdp_reshard_after_forward",) if is_gathered_anew else ()


READER = CommandReader(reads=_is_torchtitans, read=_torchtitan_launch)
