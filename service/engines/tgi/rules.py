"""What Text Generation Inference checks of its arguments before it serves.

Sources, at 2.3.1, 2.4.0 and 3.3.7: launcher/src/main.rs (main, find_num_shards), backends/v3/src/main.rs;
server/text_generation_server/utils/dist.py (set_per_process_memory_fraction takes 0 to 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# The launcher refused prompts longer than a prefill batch until prefill came in chunks (2.4).
CHUNKS_SINCE = (2, 4)
VERSION_TAG = re.compile(r":v?([0-9]+)\.([0-9]+)")
EXL2 = "exl2"
Values = Mapping[str, Any]


def version_of(image: str) -> tuple[int, int] | None:
    """Return the release that an image's tag names, None where it names none."""
    match = VERSION_TAG.search(image.partition("@")[0])
    return (int(match[1]), int(match[2])) if match else None


def longest_prompt(values: Values) -> int | None:
    """Return the longest prompt by either of its names, None where it is not said."""
    told = values.get("max_input_tokens", values.get("max_input_length"))
    return None if told is None else int(told)


def broken_rules(values: Values, version: tuple[int, int] | None, gpus: int) -> tuple[str, ...]:
    """Return why the launcher refuses these arguments on so many GPUs, each with what it takes."""
    return (*_of_shards(values, gpus), *_of_lengths(values, version), *_of_memory(values))


def _of_shards(values: Values, gpus: int) -> Iterator[str]:
    told = values.get("tensor_parallel")
    is_sharded = str(values.get("sharded", "")).lower() == "true"
    if told == 0:
        yield "--num-shard is 0; 1 is the least"
    elif is_sharded and told == 1:
        yield "--sharded true needs a --num-shard of 2 at least"
    elif is_sharded and told is None and gpus == 1:
        yield "--sharded true needs 2 GPUs at least, and the container has one"
    elif values.get("quantize") == EXL2 and told is not None and int(told) > 1:
        yield "exl2 weights cannot be sharded: --num-shard 1"


def _of_lengths(values: Values, version: tuple[int, int] | None) -> Iterator[str]:
    if "max_input_tokens" in values and "max_input_length" in values:
        yield "--max-input-tokens and --max-input-length are one option: give the first"
    prompt, total = longest_prompt(values), values.get("max_model_len")
    if prompt is not None and total is not None and prompt >= int(total):
        told = f"--max-input-tokens {prompt} leaves no token to generate of --max-total-tokens {total}"
        yield f"{told}: {int(total) - 1} at most"
    batch = values.get("max_batch_total_tokens")
    if total is not None and batch is not None and int(total) > int(batch):
        yield f"--max-total-tokens {total} is more than --max-batch-total-tokens {batch}"
    prefill = values.get("max_num_batched_tokens")
    if version is None or version >= CHUNKS_SINCE or prefill is None:
        return
    if prompt is not None and prompt > int(prefill):
        yield f"--max-batch-prefill-tokens {prefill} is less than --max-input-tokens {prompt}"
    if batch is not None and int(prefill) > int(batch):
        yield f"--max-batch-prefill-tokens {prefill} is more than --max-batch-total-tokens {batch}"


def _of_memory(values: Values) -> Iterator[str]:
    fraction = values.get("gpu_memory_utilization")
    if fraction is not None and not 0 < float(fraction) <= 1:
        yield f"--cuda-memory-fraction {fraction:g} must be above 0 and at most 1"
