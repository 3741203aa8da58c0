"""Commands of serving engines by their tables of flags, read as a request to `/plan/infer`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from plimsoll.planners.serving.releases.profile import is_older, known_versions, versions_with_changes
from plimsoll.service.engines.command import EngineCommand, Words
from plimsoll.service.engines.nodes import nodes_of, other_options
from plimsoll.service.engines.quantization import asked_quantization
from plimsoll.service.engines.rules import broken_rules, unchecked_rules, waived_rules
from plimsoll.service.workloads.commands.flags import AUTO, Arguments, read_flags
from plimsoll.service.workloads.commands.images import is_one_of
from plimsoll.service.workloads.commands.launches import CannotRun, Launch, NotRead, Read
from plimsoll.service.workloads.commands.option_files import OptionsFileNotRead, option_words
from plimsoll.service.workloads.objects.pods import Container

VERSION_TAG = re.compile(r"^v?([0-9]+\.[0-9]+(?:\.[0-9]+)?)(?:[.-]|post|rc|$)")
PYTHON = re.compile(r"^python[0-9.]*$")
DTYPES = {
    "auto": None, "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
    "float": "fp32",
}  # fmt: skip
# Quantization while loading; the others describe how the checkpoint is stored already. Names: vllm 0.33.0,
# model_executor/layers/quantization/__init__.py (before 0.28 bitsandbytes too); sglang 0.5.23,
# srt/arg_groups/choices.py.
ON_LOADING = {
    "fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "fp8_per_channel": "fp8", "bitsandbytes": "nf4",
    "int8_per_channel_weight_only": "int8",
}  # fmt: skip
# They are judged in our format for them, whatever the model's name says of itself: a copy may lie under any name.
AS_STORED = {
    "awq": "int4", "awq_marlin": "int4", "auto_awq": "int4", "gptq": "int4", "gptq_marlin": "int4", "auto_gptq": "int4",
    "auto-round": "int4", "modelopt_fp8": "fp8", "modelopt_mxfp8": "fp8", "fbgemm_fp8": "fp8", "w8a8_fp8": "fp8",
    "w8a8_int8": "int8", "modelopt_fp4": "nvfp4", "petit_nvfp4": "nvfp4", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4",
}  # fmt: skip
# Schemes of more than one format, which the checkpoint's own config tells.
AS_ITS_CONFIG_SAYS = (
    "compressed-tensors", "modelopt", "modelopt_mixed", "quark", "torchao", "moe_wna16", "w4afp8",
)  # fmt: skip
# Formats that no model of the catalogue has under its own name: one that is served in them is a copy.
COPIES = ("int4", "int8")
# The smallest of the formats that such a config may say.
SMALLEST_FORMAT = "int4"
SERVING_FIELDS = (
    "max_model_len", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "chunked_prefill",
)  # fmt: skip
CommandReader: TypeAlias = Callable[[Words, Container, int], Read | None]


def engine_reader(*commands: EngineCommand) -> CommandReader:
    """Return what reads the commands of one engine, None for those of others."""

    def read(words: Words, container: Container, _gpus: int) -> Read | None:
        found = ((command, rest) for command in commands if (rest := _arguments(command, words)) is not None)
        command, rest = next(found, (None, ()))
        return None if command is None else _engine_launch(command, rest, container)

    return read


def _engine_launch(command: EngineCommand, words: Words, container: Container) -> Read:
    try:
        read = _read_arguments(command, words, container)
    except OptionsFileNotRead as missing:
        return NotRead(reason=f"the {command.program} command: {missing}")
    if read.problems:
        return NotRead(reason=f"the {command.program} command: {'; '.join(read.problems)}")
    if read.unresolved:
        variables = ", ".join(word[:60] for word in read.unresolved)
        return NotRead(reason=f"the {command.program} command takes words from {variables}, not written in the object")
    broken = broken_rules(command, read, _engine_version(command, container.image).get("engine_version"))
    if broken:
        return CannotRun(program=f"the {command.program} command", reason="; ".join(broken))
    return _launch(command, read, container)


def _read_arguments(command: EngineCommand, words: tuple[str, ...], container: Container) -> Arguments:
    """Return the options of a command, and of the file that it names; raises OptionsFileNotRead."""
    read = read_flags(words, command.flags)
    path = read.values.get("options_file")
    if path is None or read.problems:
        return read
    of_file = option_words(str(path), container)
    return read_flags((*words, *of_file) if command.file_wins else (*of_file, *words), command.flags)


def _launch(command: EngineCommand, read: Arguments, container: Container) -> Launch | NotRead:
    positionals = read.positionals if command.takes_positional else ()
    model = read.values.get("model") or next(iter(positionals), None)
    if not isinstance(model, str):
        return NotRead(reason=f"the {command.program} command names no model")
    if read.values.get("backend") not in (None, *command.backends):
        return NotRead(
            reason=f"the {command.program} command runs a backend ({read.values['backend']}) with rules of its own"
        )
    formats = _formats(command, read)
    if isinstance(formats, NotRead):
        return formats
    others = other_options(read)
    others |= {name.partition(".")[0] for name in others}
    for name in sorted(command.overriding & others):
        return NotRead(reason=f"{name} decides what the {command.program} command loads, and is not read")
    if read.values.get("offloaded_gib"):
        return NotRead(reason=f"--cpu-offload-gb decides what the {command.program} command loads, and is not read")
    serving = {name: read.values[name] for name in SERVING_FIELDS if read.values.get(name, AUTO) != AUTO}
    uncounted = sorted(command.uncounted & others)
    version = _engine_version(command, container.image)
    too_old = _too_old(command.engine, version)
    if too_old:
        version = {}
    request = {
        "model": model,
        "serving": {**serving, **formats, "engine": command.engine, **version},
        "layout": command.layout(read),
    }
    leaner, leaner_words = _leaner(request, read)
    nodes = nodes_of(command, read)
    return Launch(
        program=f"{command.program} serving {model}",
        kind="infer",
        request=request,
        leaner=leaner,
        leaner_words=leaner_words,
        notes=(
            *(f"{name} changes memory and is not taken into account" for name in uncounted),
            *_of_stored_format(read, formats),
        ),
        shortens=read.values.get("max_model_len") == AUTO,
        spans_pods=nodes.spans_pods,
        is_elsewhere=nodes.is_elsewhere,
        nodes=nodes.count,
        gpus_per_node=nodes.gpus_each,
        memory_saving=tuple(sorted(command.memory_saving & others)),
        quantization=asked_quantization(model, read),
        unsaid=too_old,
        unchecked=unchecked_rules(container, is_own_image=is_one_of(container.image, command.images))
        | waived_rules(command, read),
    )


def _leaner(request: dict[str, Any], read: Arguments) -> tuple[tuple[dict[str, Any], ...], str]:
    """Return what the command may mean as well, and in what words: an older version, a smaller format."""
    older = () if "engine_version" in request["serving"] else tuple(_of_older_versions(request))
    words = f"An older {request['serving']['engine']} may fit, and the image's tag says no version."
    quantization = read.values.get("quantization")
    if quantization not in AS_ITS_CONFIG_SAYS:
        return older, words
    smaller = tuple({**each, "serving": {**each["serving"], "weights": SMALLEST_FORMAT}} for each in (request, *older))
    return smaller, f"A checkpoint that --quantization {quantization} describes may be smaller: its config says."


def _of_stored_format(read: Arguments, formats: dict[str, Any]) -> tuple[str, ...]:
    """Return what is not known of a checkpoint whose format only the command names."""
    quantization = read.values.get("quantization")
    if quantization not in AS_STORED or formats["weights"] not in COPIES:
        return ()
    told = f"judged as a copy in {formats['weights']} by --quantization {quantization}"
    return (f"{told}; what its config leaves in 16 bits is not in the object",)


def _of_older_versions(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the request for each version whose rules differ; without one it means the newest."""
    for version in reversed(versions_with_changes(request["serving"]["engine"])[:-1]):
        yield {**request, "serving": {**request["serving"], "engine_version": version}}


def _arguments(command: EngineCommand, words: Words) -> Words | None:
    """Return the arguments of a command, None where the words start another program."""
    program = words[0].rpartition("/")[2]
    if PYTHON.match(program) and "-m" in words:
        place = words.index("-m")
        return words[place + 2 :] if "".join(words[place + 1 : place + 2]) in command.modules else None
    for start in command.starts:
        if (program, *words[1 : len(start)]) == start:
            rest = words[len(start) :]
            return None if rest and rest[0] in command.not_serving else rest
    return None


def _formats(command: EngineCommand, read: Arguments) -> dict[str, Any] | NotRead:
    """Return the formats of weights and cache; absent ones follow the checkpoint."""
    formats: dict[str, Any] = {}
    dtype, quantization = str(read.values.get("dtype", "auto")), read.values.get("quantization")
    cache = str(read.values.get("kv_cache", "auto"))
    if dtype not in DTYPES:
        return NotRead(reason=f"--dtype {dtype[:40]} is no type this service knows")
    if cache not in command.cache_dtypes:
        return NotRead(reason=f"--kv-cache-dtype {cache[:40]} is no format this service knows")
    if quantization is not None and quantization not in (*ON_LOADING, *AS_STORED, *AS_ITS_CONFIG_SAYS):
        return NotRead(reason=f"--quantization {str(quantization)[:40]} is no scheme this service knows")
    if quantization in (*ON_LOADING, *AS_STORED):
        formats["weights"] = {**ON_LOADING, **AS_STORED}[str(quantization)]
    elif quantization is None and DTYPES[dtype]:
        formats["weights"] = DTYPES[dtype]
    if command.cache_dtypes[cache]:
        formats["kv_cache"] = command.cache_dtypes[cache]
    return formats


def _too_old(engine: str, version: Mapping[str, str]) -> str:
    """Return what is known of an engine whose version is older than that, an empty text for any other."""
    stated, (oldest, *_, newest) = version.get("engine_version"), known_versions(engine)
    if stated is None or not is_older(stated, oldest):
        return ""
    return f"{engine} {stated} is older than the versions that are known here, {oldest} to {newest}"


def _engine_version(command: EngineCommand, image: str) -> dict[str, str]:
    """Return the version that an engine's own image carries in its tag, as "0.19.1"; nothing where it carries none."""
    if not is_one_of(image, command.images):
        return {}
    match = VERSION_TAG.match(image.partition("@")[0].rpartition("/")[2].partition(":")[2])
    return {"engine_version": match[1]} if match else {}
