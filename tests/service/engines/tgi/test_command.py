from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.engines.engine import serving_launch
from plimsoll.service.workloads.commands.launches import NotRead
from tests.service.admission.reviews import a_plain_container


def launch(flags: str = "", *, gpus: int = 4, **parts: Any):
    words = ("text-generation-launcher", *flags.split())
    return serving_launch(words, a_plain_container(**parts), gpus=gpus)


def test_the_launchers_options_are_read():
    read = launch(
        "--model-id m --num-shard 2 --max-input-tokens 3000 --max-total-tokens 4000 --max-batch-prefill-tokens 6000 "
        "--quantize bitsandbytes-nf4 --cuda-memory-fraction 0.9"
    )
    assert read.request == {
        "model": "m",
        "serving": {
            "max_model_len": 4000, "max_num_batched_tokens": 6000, "gpu_memory_utilization": 0.9, "weights": "nf4",
            "engine": "transformers",
        },
        "layout": {"tensor_parallel": 2, "pipeline_parallel": 1},
    }  # fmt: skip


def test_a_variable_says_what_an_option_does_and_the_option_comes_first():
    read = launch("--max-total-tokens 2048", env={"MODEL_ID": "m", "MAX_TOTAL_TOKENS": "8192", "NUM_SHARD": "2"})
    assert (read.request["model"], read.request["serving"]["max_model_len"]) == ("m", 2048)
    assert read.request["layout"]["tensor_parallel"] == 2


@pytest.mark.parametrize(("flags", "shards"), [("", 4), ("--sharded false", 1), ("--num-shard 2", 2)])
def test_all_gpus_hold_the_model_unless_it_is_told_otherwise(flags: str, shards: int):
    assert launch(f"--model-id m {flags}").request["layout"]["tensor_parallel"] == shards


def test_a_length_that_is_not_written_is_what_fits():
    # A prompt one shorter than 4,096 tokens with 50 tokens of edge.
    read = launch("--model-id m")
    assert (read.shortens, read.request["serving"]) == (
        True, {"max_num_batched_tokens": 4145, "engine": "transformers"},
    )  # fmt: skip
    assert not launch("--model-id m --max-total-tokens 4096").shortens


@pytest.mark.parametrize(
    ("flags", "formats"),
    [
        ("--dtype bfloat16", {"weights": "bf16"}),
        ("--quantize awq", {"weights": "int4"}),
        ("--quantize fp8", {"weights": "fp8"}),
    ],
)
def test_formats_are_said_or_left_to_the_checkpoint(flags: str, formats: dict[str, str]):
    assert launch(f"--model-id m {flags}").request["serving"].items() >= formats.items()


@pytest.mark.parametrize(
    ("flags", "parts", "reason"),
    [
        ("--dtype odd", {}, "--dtype odd"),
        ("--quantize odd", {}, "--quantize odd is no scheme this service knows"),
        ("--quantize exl2", {}, "--quantize exl2 is told by the checkpoint's config, which is not in the object"),
        ("--num-shard x", {}, "--num-shard is 'x'"),
        ("", {"unread": ("ConfigMap settings (x)",)}, "variables that are not in the object"),
    ],
)
def test_what_cannot_be_read_says_what(flags: str, parts: dict[str, Any], reason: str):
    read = launch(flags, **parts)
    assert isinstance(read, NotRead)
    assert reason in read.reason


def test_what_changes_memory_unread_is_noted():
    notes = launch("--model-id m --lora-adapters a,b --kv-cache-dtype fp8_e5m2").notes
    assert [note.split()[0] for note in notes] == ["--kv-cache-dtype", "--lora-adapters"]
