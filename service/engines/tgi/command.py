"""Text Generation Inference's launcher, read as a request to `/plan/infer`.

Every option is a variable of the environment too, by its name in capitals. The planner has no rules of TGI's own: it
judges what must fit whatever they are, the weights and the cache of one request, by those of transformers.

Source: launcher/src/main.rs of huggingface/text-generation-inference (clap `Args`, `main`, `find_num_shards`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.engines.tgi.flags import FLAGS
from plimsoll.service.engines.tgi.rules import broken_rules, longest_prompt, version_of
from plimsoll.service.workloads.commands.flags import Arguments, read_flags
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.objects.pods import Container

PROGRAM = "text-generation-launcher"
DEFAULT_MODEL = "bigscience/bloom-560m"
# Where no length is given, TGI takes what its memory allows since 3.0, and before then 4,096 tokens or what the model
# has positions for; a prompt of that length is what it warms up with.
DEFAULT_TOTAL_TOKENS = 4096
# What a prefill batch has room for besides the longest prompt.
PREFILL_EDGE_TOKENS = 50
DTYPES = {"float16": "fp16", "bfloat16": "bf16"}
# Quantization while loading; eetq is of 8 bits a weight, as bitsandbytes' is.
ON_LOADING = {
    "bitsandbytes": "int8",
    "eetq": "int8",
    "bitsandbytes-nf4": "nf4",
    "bitsandbytes-fp4": "nf4",
    "fp8": "fp8",
}
# How the checkpoint is stored, in our formats; of the last two its own config tells.
AS_STORED = {"awq": "int4", "gptq": "int4", "marlin": "int4"}
AS_ITS_CONFIG_SAYS = ("compressed-tensors", "exl2")
# The planner's rules for transformers keep the cache in 16 bits.
UNCOUNTED = {
    "kv_cache": "--kv-cache-dtype halves the cache",
    "lora_adapters": "--lora-adapters changes memory",
    "speculate": "--speculate changes memory",
}


def tgi_launch(words: tuple[str, ...], container: Container, gpus: int) -> Read | None:
    """Return what `text-generation-launcher` serves in a container with `gpus` GPUs, or what cannot be read of it.

    CannotRun where the launcher refuses its arguments, None for another program.
    """
    if words[0].rpartition("/")[2] != PROGRAM:
        return None
    if container.unread:
        return NotRead(reason="the text-generation-launcher command is told by variables that are not in the object")
    read = read_flags((*_environment_words(container.env), *words[1:]), FLAGS)
    if read.problems:
        return NotRead(reason=f"the text-generation-launcher command: {'; '.join(read.problems)}")
    broken = broken_rules(read.values, version_of(container.image), gpus)
    if broken:
        return CannotRun(program="the text-generation-launcher command", reason="; ".join(broken))
    formats = _formats(read)
    if isinstance(formats, NotRead):
        return formats
    model = str(read.values.get("model", DEFAULT_MODEL))
    return Launch(
        program=f"text-generation-inference serving {model}",
        kind="infer",
        request={
            "model": model,
            "serving": {**_lengths(read), **formats, "engine": "transformers"},
            "layout": {"tensor_parallel": _shards(read, gpus), "pipeline_parallel": 1},
        },
        shortens="max_model_len" not in read.values,
        notes=tuple(
            f"{note} and is not taken into account" for field, note in UNCOUNTED.items() if field in read.values
        ),
    )


def _environment_words(env: Mapping[str, str]) -> list[str]:
    """Return the options that the environment sets, as words that those of the command line come after."""
    names = {name.replace("-", "_").upper(): name for flag in FLAGS for name in flag.names}
    return [f"--{names[variable]}={text}" for variable, text in env.items() if variable in names]


def _shards(read: Arguments, gpus: int) -> int:
    """Return the ranks: all GPUs that the container sees unless it is told a number, or not to share the model out."""
    told = read.values.get("tensor_parallel")
    if told is not None:
        return int(told)
    return 1 if str(read.values.get("sharded", "true")).lower() == "false" else gpus


def _lengths(read: Arguments) -> dict[str, Any]:
    told = read.values.get("max_model_len")
    longest = int(DEFAULT_TOTAL_TOKENS if told is None else told)
    prompt = longest_prompt(read.values)
    prompt = longest - 1 if prompt is None else prompt
    lengths: dict[str, Any] = {
        **({} if told is None else {"max_model_len": longest}),
        "max_num_batched_tokens": int(read.values.get("max_num_batched_tokens", prompt + PREFILL_EDGE_TOKENS)),
    }
    fraction = read.values.get("gpu_memory_utilization")
    return lengths if fraction is None else {**lengths, "gpu_memory_utilization": fraction}


def _formats(read: Arguments) -> dict[str, str] | NotRead:
    dtype, quantize = read.values.get("dtype"), read.values.get("quantize")
    if quantize is not None:
        known = {**ON_LOADING, **AS_STORED}
        if quantize in known:
            return {"weights": known[str(quantize)]}
        what = "is told by the checkpoint's config" if quantize in AS_ITS_CONFIG_SAYS else "is no scheme"
        suffix = ", which is not in the object" if quantize in AS_ITS_CONFIG_SAYS else " this service knows"
        return NotRead(reason=f"--quantize {str(quantize)[:40]} {what}{suffix}")
    if dtype is None:
        return {}
    if dtype not in DTYPES:
        return NotRead(reason=f"--dtype {str(dtype)[:40]} is no type this service knows")
    return {"weights": DTYPES[str(dtype)]}
