"""What a serving engine checks of its own arguments before it starts, whatever the model and the card.

Sources: vllm, config/cache.py, config/parallel.py and config/scheduler.py (0.8.5 to 0.33.0); sglang,
srt/server_args.py, in 0.5.23 srt/arg_groups/parallel_hook.py and validation_hook.py; tensorrt_llm, mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

from plimsoll.planners.ground.figures import figure
from plimsoll.service.admission.impossible import LONG_POSITIONS, SCALE_BLOCKS, divisors_text
from plimsoll.service.engines.engine_command import SGLANG, VLLM, EngineCommand
from plimsoll.service.engines.nodes import broken_node_rules
from plimsoll.service.workloads.commands.flags import AUTO, Arguments
from plimsoll.service.workloads.objects.pods import Container

# What a degree of 0 leaves nothing to divide by; engines that check no range end in that division.
DEGREES = {"tensor_parallel": "tensor parallelism", "pipeline_parallel": "pipeline parallelism"}
LEAST_ONE = ("max_num_seqs", "max_num_batched_tokens")
# argparse takes the beginning of an option for the option. Of all options of vllm 0.8.5, 0.11.2, 0.19.1, 0.25.1 and
# 0.33.0 none is as like another one that stands in our table: the nearest are 0.88 (`--cache-dtype`). Two letters that
# changed places in `--max-model-len` leave 0.92, `--max-model-length` 0.896.
AS_LIKE_AS_A_SLIP = 0.89
SHORTEST_OPTION = 10
DTYPES = (AUTO, "half", "float16", "bfloat16", "float", "float32")
# The least of them is taken since 0.11.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
DENSE_DEGREE = "--moe-dense-tp-size"
TOOL_CHOICE, TOOL_PARSER = "--enable-auto-tool-choice", "--tool-call-parser"
FIRST_READ, LAST_READ = (0, 8), (0, 33)
PAGE_CHANGING = re.compile(r"^--(?:(?:prefill-|decode-)?attention-backend|speculative|disaggregation)")
# Variables that let requests be longer than the model has positions for.
LONGER_ALLOWED = ("ALLOW_LONG_MAX_MODEL_LEN", "ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")


def broken_rules(command: EngineCommand, read: Arguments, version: str | None) -> tuple[str, ...]:
    """Return why the engine refuses these arguments, each with what it takes; `version` is its image's."""
    slips = tuple(_misspelt(read.others, command, version)) if command is VLLM else ()
    return (*_out_of_range(read), *_at_odds(command, read), *broken_node_rules(command, read), *slips)


def unchecked_rules(container: Container, *, is_own_image: bool) -> frozenset[str]:
    """Return the rules that the engine may have been told not to check: by a variable, or by what an image sets."""
    texts = (*container.command, *container.args, *container.files.values(), str(container.definition.get("env")))
    told = any(name in text for text in (*texts, *container.env) for name in LONGER_ALLOWED)
    unseen = bool(container.unread) or bool(container.definition.get("envFrom"))
    return frozenset() if is_own_image and not told and not unseen else frozenset({LONG_POSITIONS})


def lifted_rules(command: EngineCommand, read: Arguments) -> frozenset[str]:
    """Return the rules that an option lifts: SGLang divides dense layers by a degree of their own where it is told."""
    is_dense_apart = any(name.replace("_", "-") == DENSE_DEGREE for name in read.others)
    return frozenset({SCALE_BLOCKS}) if command is SGLANG and is_dense_apart else frozenset()


def _out_of_range(read: Arguments) -> Iterator[str]:
    for field, name in DEGREES.items():
        if read.values.get(field, 1) == 0:
            yield f"{name} of 0 leaves no rank; 1 is the least"
    fraction = read.values.get("gpu_memory_utilization")
    if fraction is not None and not 0 < float(fraction) <= 1:
        yield f"its share of the GPU's memory is {figure(float(fraction))}, and must be above 0 and at most 1"
    for field in LEAST_ONE:
        # SGLang takes -1 for its prefill chunk, and no sign is read as a number.
        if read.values.get(field, 1) == 0:
            yield f"{field} is 0; 1 is the least"


def _at_odds(command: EngineCommand, read: Arguments) -> Iterator[str]:
    """Yield arguments that contradict each other."""
    values = read.values
    if command is SGLANG:
        yield from _at_odds_in_sglang(read)
    if command is VLLM:
        yield from _at_odds_beside_the_engine(read)
    if command is not VLLM or "max_num_batched_tokens" not in values:
        return
    batched, sequences = int(values["max_num_batched_tokens"]), int(values.get("max_num_seqs", 0))
    if batched < sequences:
        yield f"--max-num-batched-tokens {batched} is less than --max-num-seqs {sequences}"
    stated = values.get("max_model_len", AUTO)
    length = 0 if stated == AUTO else int(stated)
    if values.get("chunked_prefill") is False and batched < length:
        yield (
            f"without chunked prefill --max-num-batched-tokens {batched} is less than --max-model-len {length}: "
            f"ask for {length} batched tokens, or leave chunked prefill on"
        )


def _at_odds_beside_the_engine(read: Arguments) -> Iterator[str]:
    """Yield what vLLM refuses of types, adapters and tools: config/model.py, config/lora.py, cli_args.py."""
    dtype = read.values.get("dtype", AUTO)
    if dtype not in DTYPES:
        yield f"--dtype {str(dtype)[:40]} is not one of {', '.join(DTYPES)}"
    others = {name.replace("_", "-") for name in read.others}
    rank = read.values.get("lora_rank")
    if "--enable-lora" in others and rank is not None and rank not in LORA_RANKS:
        yield f"--max-lora-rank {rank} is not one of {', '.join(str(each) for each in LORA_RANKS)}"
    if TOOL_CHOICE in others and TOOL_PARSER not in others:
        yield f"{TOOL_CHOICE} needs {TOOL_PARSER} beside it"


def _at_odds_in_sglang(read: Arguments) -> Iterator[str]:
    values = read.values
    tensor, ranks = int(values.get("tensor_parallel", 1)), int(values.get("attention_data_parallel", 1))
    data = int(values.get("data_parallel", 1))
    if ranks > 1 and data > 1:
        yield f"--dp-size {data} replicas cannot be combined with --attn-dp-size {ranks}: leave one of them out"
    if values.get("is_attention_data_parallel"):
        ranks = data if ranks == 1 else ranks
    if ranks and tensor % ranks:
        yield (
            f"{ranks} data-parallel ranks of attention do not divide {tensor} tensor-parallel ranks; "
            f"possible: {divisors_text(tensor)}"
        )
        return
    chunk, page = values.get("max_num_batched_tokens", AUTO), values.get("block_size")
    # An attention backend, or a draft model, may take pages of its own.
    is_own_page = any(PAGE_CHANGING.match(name.replace("_", "-")) for name in read.others)
    if chunk == AUTO or page in (None, 0) or not ranks or is_own_page:
        return
    if int(chunk) // ranks % int(page):
        each = f"--chunked-prefill-size {chunk}" + (f" over {ranks} ranks" if ranks > 1 else "")
        yield f"{each} is no multiple of --page-size {page}"


def _misspelt(others: tuple[str, ...], command: EngineCommand, version: str | None) -> Iterator[str]:
    """Yield options that argparse refuses, each with the one that was meant."""
    if version is None or not FIRST_READ <= _minor(version) <= LAST_READ:
        return
    known = [name for flag in command.flags for name in flag.names if len(name) >= SHORTEST_OPTION]
    for other in others:
        name = other.lstrip("-").replace("_", "-").partition(".")[0]
        if not other.startswith("--") or any(option.startswith(name) for option in known):
            continue
        meant = max(known, key=lambda option: SequenceMatcher(None, name, option).ratio())
        if SequenceMatcher(None, name, meant).ratio() >= AS_LIKE_AS_A_SLIP:
            yield f"it has no option --{name}; --{meant} is the nearest"


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
