from __future__ import annotations

import pytest

from plimsoll.planners.serving.settings.lengths import LONG_POSITIONS
from plimsoll.service.engines.engine import serving_launch
from plimsoll.service.workloads.commands.launches import CannotRun, Launch
from tests.service.admission.reviews import a_plain_container

VLLM, SGLANG = "vllm/vllm-openai:v0.19.0", "lmsysorg/sglang:v0.5.6"
LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def read(line: str, image: str = VLLM, **parts):
    return serving_launch(tuple(line.split()), a_plain_container(image=image, **parts), gpus=8)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-tp 0", "tensor parallelism of 0 leaves no rank"),
        ("--pipeline-parallel-size 0", "pipeline parallelism of 0"),
        ("--gpu-memory-utilization 1.5", "is 1.5, and must be above 0 and at most 1"),
        ("--gpu-memory-utilization 0", "is 0, and must be above 0"),
        ("--max-num-seqs 0", "max_num_seqs is 0"),
        ("--max-num-batched-tokens 128 --max-num-seqs 256", "128 is less than --max-num-seqs 256"),
        (
            "--max-num-batched-tokens 2048 --max-model-len 4k --no-enable-chunked-prefill",
            "2048 is less than --max-model-len 4000",
        ),
        ("--max-num-batched-tokens 2048 --max-model-len 4096 --enable-chunked-prefill=False", "ask for 4096 batched"),
        ("--tensor-paralel-size 2", "no option --tensor-paralel-size; --tensor-parallel-size is the nearest"),
        ("--gpu_memory_utilisation=0.9", "--gpu-memory-utilization is the nearest"),
        ("--max-modle-len 4096", "--max-model-len is the nearest"),
        ("--max-model-length 4096", "--max-model-len is the nearest"),
        ("--dtype fp16", "--dtype fp16 is not one of auto, half, float16, bfloat16"),
        ("--enable-lora --max-lora-rank 20", "--max-lora-rank 20 is not one of 1, 8, 16"),
        ("--enable_auto_tool_choice", "--enable-auto-tool-choice needs --tool-call-parser"),
    ],
)
def test_vllm_refuses_these_arguments(flags: str, reason: str):
    found = read(f"vllm serve m {flags}")
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    "flags",
    [
        "--gpu-memory-utilization 1",
        "--max-num-batched-tokens 256 --max-num-seqs 256",
        "--max-num-batched-tokens 2048 --max-model-len 4096",
        "--max-num-batched-tokens 2048 --max-model-len 2048 --no-enable-chunked-prefill",
        "--max-num-batched-tokens 2048 --max-model-len auto --no-enable-chunked-prefill",
        # argparse takes the beginning of an option, and options of their own stand beside each other.
        "--tensor-parallel 2",
        "--enable-lora --max-lora-rank 64",
        "--dtype half",
        "--enable-auto-tool-choice --tool-call-parser hermes",
        "--data-parallel-size-local 1 --max-num-partial-prefills 2 --tensor-parallel-rank 0",
    ],
)
def test_vllm_takes_these_arguments(flags: str):
    assert isinstance(read(f"vllm serve m {flags}"), Launch)


@pytest.mark.parametrize("image", ["mine/vllm:v0.19.0", "vllm/vllm-openai:latest", "vllm/vllm-openai:v0.99.0"])
def test_an_option_is_misspelt_only_where_the_versions_own_are_known(image: str):
    assert isinstance(read("vllm serve m --tensor-paralel-size 2", image), Launch)


@pytest.mark.parametrize(("ranks", "is_refused"), [(8, True), (3, True), (4, False), (2, False)])
def test_sglangs_attention_ranks_divide_its_tensor_ranks(ranks: int, is_refused: bool):
    found = read(f"python3 -m sglang.launch_server --model m --tp 4 --dp {ranks} --enable-dp-attention", SGLANG)
    assert isinstance(found, CannotRun) is is_refused


SERVER = "python3 -m sglang.launch_server --model m"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--tp 8 --dp-size 2 --attn-dp-size 2", "leave one of them out"),
        ("--tp 8 --attn-dp-size 3", "possible: 1, 2, 4 or 8"),
        ("--chunked-prefill-size 1000 --page-size 64", "--chunked-prefill-size 1000 is no multiple of --page-size 64"),
        # 2,048 over 8 ranks of attention are 256 each.
        (
            "--tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 2048 --page-size 512",
            "2048 over 8 ranks is no multiple of --page-size 512",
        ),
    ],
)
def test_sglang_refuses_these_arguments(flags: str, reason: str):
    found = read(f"{SERVER} {flags}", SGLANG)
    assert isinstance(found, CannotRun)
    assert reason in found.reason


@pytest.mark.parametrize(
    "flags",
    [
        "--chunked-prefill-size -1 --page-size 64",
        "--chunked-prefill-size 1000 --page-size 64 --attention-backend flashinfer",
        "--tp 8 --attn-dp-size 8",
        "--tp 8 --dp 4 --enable-dp-attention --chunked-prefill-size 2048 --page-size 512",
    ],
)
def test_sglang_takes_these_arguments(flags: str):
    assert isinstance(read(f"{SERVER} {flags}", SGLANG), Launch)


def test_sglang_batches_fewer_tokens_than_requests():
    assert isinstance(read("python3 -m sglang.launch_server --model m --chunked-prefill-size 128", SGLANG), Launch)


@pytest.mark.parametrize(
    ("image", "parts", "is_checked"),
    [
        (VLLM, {}, True),
        ("mine/vllm", {}, False),
        (VLLM, {"env": {LONG: "1"}}, False),
        (VLLM, {"command": ("sh", "-c", f"export {LONG}=1; vllm serve m")}, False),
        (VLLM, {"unread": ("ConfigMap x (away)",)}, False),
        (VLLM, {"definition": {"envFrom": [{"secretRef": {"name": "x"}}]}}, False),
    ],
)
def test_a_variable_that_lets_requests_be_longer_may_be_set(image: str, parts, is_checked: bool):
    assert (LONG_POSITIONS not in read("vllm serve m", image, **parts).unchecked) is is_checked
