from __future__ import annotations

import pytest

from plimsoll.service.engines.tgi.rules import version_of
from plimsoll.service.workloads.commands.launches import CannotRun, Launch
from tests.service.engines.tgi.test_command import launch

TGI = "ghcr.io/huggingface/text-generation-inference"


@pytest.mark.parametrize(
    ("flags", "gpus", "reason"),
    [
        (
            "--max-input-tokens 4096 --max-total-tokens 4096",
            1,
            "leaves no token to generate of --max-total-tokens 4096",
        ),
        ("--max-input-length 5000 --max-total-tokens 4096", 1, "4095 at most"),
        ("--max-input-length 100 --max-input-tokens 100", 1, "are one option"),
        ("--max-total-tokens 4096 --max-batch-total-tokens 4000", 1, "more than --max-batch-total-tokens 4000"),
        ("--num-shard 0", 1, "--num-shard is 0"),
        ("--sharded true --num-shard 1", 4, "needs a --num-shard of 2"),
        ("--sharded true", 1, "needs 2 GPUs at least"),
        ("--quantize exl2 --num-shard 2", 2, "exl2 weights cannot be sharded"),
        ("--cuda-memory-fraction 1.2", 1, "1.2 must be above 0"),
    ],
)
def test_the_launcher_refuses_these_arguments(flags: str, gpus: int, reason: str):
    found = launch(f"--model-id m {flags}", gpus=gpus)
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    "flags",
    [
        "--max-input-tokens 4095 --max-total-tokens 4096",
        "--max-input-tokens 4096",
        "--max-total-tokens 4096 --max-batch-total-tokens 4096",
        "--sharded true",
        "--sharded false --num-shard 1",
        "--cuda-memory-fraction 1.0",
    ],
)
def test_the_launcher_takes_these_arguments(flags: str):
    assert isinstance(launch(f"--model-id m {flags}", gpus=2), Launch)


def test_a_variable_is_checked_as_an_option_is():
    found = launch("--max-total-tokens 1024", env={"MODEL_ID": "m", "MAX_INPUT_TOKENS": "2048"})
    assert isinstance(found, CannotRun)


@pytest.mark.parametrize(
    ("tag", "is_refused"), [("2.3.1", True), ("2.4.0", False), ("3.3.5", False), ("latest", False)]
)
def test_prompts_longer_than_a_prefill_batch_come_in_chunks_since_2_4(tag: str, is_refused: bool):
    found = launch("--model-id m --max-input-tokens 8000 --max-batch-prefill-tokens 4096", image=f"{TGI}:{tag}")
    assert isinstance(found, CannotRun) is is_refused


@pytest.mark.parametrize(
    ("image", "version"),
    [(f"{TGI}:3.3.5", (3, 3)), (f"{TGI}:2.4.0-rocm", (2, 4)), (f"{TGI}:latest", None), ("localhost:5000/tgi", None)],
)
def test_a_tag_names_the_release(image: str, version: tuple[int, int] | None):
    assert version_of(image) == version
