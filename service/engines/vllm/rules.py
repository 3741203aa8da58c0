"""What vLLM checks of its own arguments before it starts, whatever the model and the card.

Sources: vllm, config/cache.py, config/parallel.py and config/scheduler.py (0.8.5 to 0.33.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

from plimsoll.service.engines.nodes import other_options
from plimsoll.service.engines.vllm.flags import FLAGS
from plimsoll.service.workloads.commands.flags import AUTO, Arguments

# argparse takes the beginning of an option for the option. Of all options of vllm 0.8.5, 0.11.2, 0.19.1, 0.25.1 and
# 0.33.0 none is as like another one that stands in our table: the nearest are 0.88 (`--cache-dtype`). Two letters that
# changed places in `--max-model-len` leave 0.92, `--max-model-length` 0.896.
AS_LIKE_AS_A_SLIP = 0.89
SHORTEST_OPTION = 10
DTYPES = (AUTO, "half", "float16", "bfloat16", "float", "float32")
# The least of them is taken since 0.11.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
TOOL_CHOICE, TOOL_PARSER = "--enable-auto-tool-choice", "--tool-call-parser"
FIRST_READ, LAST_READ = (0, 8), (0, 33)


def at_odds(read: Arguments) -> Iterator[str]:
    """Yield arguments that contradict each other."""
    yield from _beside_the_engine(read)
    values = read.values
    if "max_num_batched_tokens" not in values:
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


def _beside_the_engine(read: Arguments) -> Iterator[str]:
    """Yield what vLLM refuses of types, adapters and tools: config/model.py, config/lora.py, cli_args.py."""
    dtype = read.values.get("dtype", AUTO)
    if dtype not in DTYPES:
        yield f"--dtype {str(dtype)[:40]} is not one of {', '.join(DTYPES)}"
    others = other_options(read)
    rank = read.values.get("lora_rank")
    if "--enable-lora" in others and rank is not None and rank not in LORA_RANKS:
        yield f"--max-lora-rank {rank} is not one of {', '.join(str(each) for each in LORA_RANKS)}"
    if TOOL_CHOICE in others and TOOL_PARSER not in others:
        yield f"{TOOL_CHOICE} needs {TOOL_PARSER} beside it"


def unknown_options(read: Arguments, version: str | None) -> Iterator[str]:
    """Yield options that argparse refuses, each with the one that was meant."""
    if version is None or not FIRST_READ <= _minor(version) <= LAST_READ:
        return
    known = [name for flag in FLAGS for name in flag.names if len(name) >= SHORTEST_OPTION]
    for other in read.others:
        name = other.lstrip("-").replace("_", "-").partition(".")[0]
        if not other.startswith("--") or any(option.startswith(name) for option in known):
            continue
        meant = max(known, key=lambda option: SequenceMatcher(None, name, option).ratio())
        if SequenceMatcher(None, name, meant).ratio() >= AS_LIKE_AS_A_SLIP:
            yield f"it has no option --{name}; --{meant} is the nearest"


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
