from __future__ import annotations

import pytest

from service.admission.launches import NotRead
from service.admission.serving_commands import serving_launch


def request(command: str, image: str = "x"):
    return serving_launch(tuple(command.split()), image).request


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m -tp 2 --max-model-len 8192",
        "/usr/local/bin/vllm serve --model m --tensor-parallel-size=2 --max_model_len 8192",
        "python3 -m vllm.entrypoints.openai.api_server --model m -tp 2 --max-model-len 8192",
    ],
)
def test_vllms_commands_are_one_request(command: str):
    assert request(command) == {
        "model": "m",
        "serving": {"max_model_len": 8192, "engine": "vllm"},
        "layout": {"tensor_parallel": 2, "pipeline_parallel": 1},
    }


def test_sglangs_command_is_read():
    read = request(
        "python -m sglang.launch_server --model-path m --tp 4 --context-length 4096 --mem-fraction-static 0.8"
    )
    assert read["serving"] == {"max_model_len": 4096, "gpu_memory_utilization": 0.8, "engine": "sglang"}
    assert read["layout"] == {"tensor_parallel": 4, "pipeline_parallel": 1}


@pytest.mark.parametrize(
    ("flags", "formats"),
    [
        ("", {}),
        ("--dtype float16", {"weights": "fp16"}),
        ("--quantization fp8 --dtype bfloat16", {"weights": "fp8"}),
        ("-q bitsandbytes", {"weights": "nf4"}),
        ("--quantization awq", {}),
        ("--kv-cache-dtype fp8_e4m3", {"kv_cache": "fp8"}),
        ("--kv-cache-dtype auto", {}),
    ],
)
def test_formats_are_said_or_left_to_the_checkpoint(flags: str, formats):
    assert request(f"vllm serve m {flags}")["serving"] == {**formats, "engine": "vllm"}


def test_experts_spread_over_tensor_and_data_parallel_ranks():
    assert request("vllm serve m -tp 2 -dp 4 --enable-expert-parallel")["layout"]["expert_parallel"] == 8


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.19.0", "0.19"),
        ("docker.io/vllm/vllm-openai:0.8.5.post1", "0.8"),
        ("vllm/vllm-openai:latest", None),
        ("mine/vllm:v0.19.0", None),
    ],
)
def test_the_version_is_that_of_the_engines_own_image(image: str, version):
    assert request("vllm serve m", image)["serving"].get("engine_version") == version


def test_what_changes_memory_unread_is_noted():
    launch = serving_launch(("vllm", "serve", "m", "--enable-lora", "--seed", "1"), "x")
    assert launch.notes == ("--enable-lora changes memory and is not taken into account",)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm serve", "names no model"),
        ("vllm serve m --dtype odd", "--dtype odd"),
        ("vllm serve m --kv-cache-dtype odd", "--kv-cache-dtype odd"),
        ("vllm serve m --quantization odd", "--quantization odd"),
        ("vllm serve m -tp x", "--tensor-parallel-size is 'x'"),
    ],
)
def test_what_cannot_be_read_says_what(command: str, reason: str):
    read = serving_launch(tuple(command.split()), "x")
    assert isinstance(read, NotRead)
    assert reason in read.reason


@pytest.mark.parametrize("command", ["vllm bench", "python train.py", "python -m http.server", "sleep 1", "vllm"])
def test_other_commands_serve_nothing(command: str):
    assert serving_launch(tuple(command.split()), "x") is None


@pytest.mark.parametrize(
    ("command", "layout"),
    [
        # SGLang's tensor ranks hold attention's: eight GPUs, not thirty-two.
        (
            "--tp 8 --dp 4 --enable-dp-attention --ep 8",
            {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8},
        ),
        ("--tp 8 --attn-dp-size 8", {"tensor_parallel": 1, "attention_data_parallel": 8}),
        ("--tp 2 --dp 4", {"tensor_parallel": 2, "data_parallel": 4}),
    ],
)  # fmt: skip
def test_sglangs_data_parallel_attention_takes_no_more_gpus(command: str, layout: dict[str, int]):
    words = ("python", "-m", "sglang.launch_server", "--model-path", "m", *command.split())
    assert serving_launch(words, "x").request["layout"] == {"pipeline_parallel": 1, **layout}


def test_attention_ranks_that_do_not_divide_the_tensor_ranks_are_told():
    words = ("python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "8", "--attn-dp-size", "3")
    assert "3 data-parallel ranks do not divide 8" in serving_launch(words, "x").reason


@pytest.mark.parametrize("option", ["--config x.yaml", "--cpu-offload-gb 4", "--hf-overrides {}"])
def test_what_decides_the_load_elsewhere_is_not_guessed(option: str):
    found = serving_launch(("vllm", "serve", "m", *option.split()), "x")
    assert found.reason == f"{option.split()[0]} decides what the vllm command loads, and is not read"
