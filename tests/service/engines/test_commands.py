from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.engines.engine import serving_launch
from plimsoll.service.workloads.commands.launches import Launch, NotRead
from tests.service.admission.reviews import a_plain_container


def launch(command: str, image: str = "x", *, gpus: int = 1, **parts: Any):
    return serving_launch(tuple(command.split()), a_plain_container(image=image, **parts), gpus=gpus)


def request(command: str, image: str = "x", **parts: Any):
    return launch(command, image, **parts).request


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
        "layout": {"tensor_parallel": 2, "pipeline_parallel": 1, "expert_parallel": 1},
    }


def test_sglangs_command_is_read():
    read = request(
        "python -m sglang.launch_server --model-path m --tp 4 --context-length 4096 --mem-fraction-static 0.8"
    )
    assert read["serving"] == {"max_model_len": 4096, "gpu_memory_utilization": 0.8, "engine": "sglang"}
    assert read["layout"] == {"tensor_parallel": 4, "pipeline_parallel": 1, "expert_parallel": 1}


@pytest.mark.parametrize(
    ("flags", "formats"),
    [
        ("", {}),
        ("--dtype float16", {"weights": "fp16"}),
        ("--quantization fp8 --dtype bfloat16", {"weights": "fp8"}),
        ("-q bitsandbytes", {"weights": "nf4"}),
        ("--quantization awq", {"weights": "int4"}),
        ("--quantization modelopt_fp4", {"weights": "nvfp4"}),
        ("--quantization compressed-tensors", {}),
        ("--quantization quark", {}),
        ("--quantization fp8_per_block", {"weights": "fp8"}),
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
        ("vllm/vllm-openai:v0.19.0", "0.19.0"),
        ("docker.io/vllm/vllm-openai:0.8.5.post1", "0.8.5"),
        ("vllm/vllm-openai:latest", None),
        ("mine/vllm:v0.19.0", None),
    ],
)
def test_the_version_is_that_of_the_engines_own_image(image: str, version):
    assert request("vllm serve m", image)["serving"].get("engine_version") == version


def test_what_changes_memory_unread_is_noted():
    read = launch("vllm serve m --enable-lora --seed 1")
    assert read.notes == ("--enable-lora changes memory and is not taken into account",)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm serve", "names no model"),
        ("trtllm-serve m --dtype odd", "--dtype odd"),
        ("vllm serve m --kv-cache-dtype odd", "--kv-cache-dtype odd"),
        ("vllm serve m --quantization odd", "--quantization odd"),
        ("vllm serve m -tp x", "--tensor-parallel-size is 'x'"),
    ],
)
def test_what_cannot_be_read_says_what(command: str, reason: str):
    read = launch(command)
    assert isinstance(read, NotRead)
    assert reason in read.reason


@pytest.mark.parametrize("command", ["vllm bench", "python train.py", "python -m http.server", "sleep 1", "vllm"])
def test_other_commands_serve_nothing(command: str):
    assert launch(command) is None


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
    assert launch(" ".join(words)).request["layout"] == {"pipeline_parallel": 1, "expert_parallel": 1, **layout}


def test_attention_ranks_that_do_not_divide_the_tensor_ranks_are_told():
    words = ("python", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "8", "--attn-dp-size", "3")
    assert "3 data-parallel ranks of attention do not divide 8" in launch(" ".join(words)).reason


@pytest.mark.parametrize("option", ["--cpu-offload-gb 4", "--hf-overrides {}"])
def test_what_decides_the_load_elsewhere_is_not_guessed(option: str):
    found = launch(f"vllm serve m {option}")
    assert found.reason == f"{option.split()[0]} decides what the vllm command loads, and is not read"


def test_trtllm_serve_is_read():
    read = request(
        "trtllm-serve serve m --tp_size 4 --ep_size 2 --max_seq_len 8192 --max_num_tokens 4096 --max_batch_size 64 "
        "--kv_cache_free_gpu_memory_fraction 0.8 --backend pytorch",
        "nvcr.io/nvidia/tensorrt-llm/release:1.2.0",
    )
    assert read["serving"] == {
        "max_model_len": 8192, "max_num_batched_tokens": 4096, "max_num_seqs": 64, "gpu_memory_utilization": 0.8,
        "engine": "tensorrt-llm", "engine_version": "1.2.0",
    }  # fmt: skip
    assert read["layout"] == {"tensor_parallel": 4, "pipeline_parallel": 1, "expert_parallel": 2}


def test_whether_prompts_are_cut_is_read():
    assert request("vllm serve m --no-enable-chunked-prefill")["serving"]["chunked_prefill"] is False
    read = request("trtllm-serve m --config /o.yaml", files={"/o.yaml": "enable_chunked_prefill: true\n"})
    assert read["serving"]["chunked_prefill"] is True


OPTIONS = "kv_cache_config: {dtype: fp8, tokens_per_block: 64}\nenable_attention_dp: true\nmax_batch_size: 32\n"


def test_tensorrt_llms_file_replaces_what_the_command_says():
    read = request("trtllm-serve m --tp_size 8 --max_batch_size 64 --config /o.yaml", files={"/o.yaml": OPTIONS})
    assert (read["serving"]["kv_cache"], read["serving"]["block_size"], read["serving"]["max_num_seqs"]) == (
        "fp8", 64, 32,
    )  # fmt: skip
    # Every rank of its tensor group attends to requests of its own.
    assert (read["layout"]["tensor_parallel"], read["layout"]["attention_data_parallel"]) == (1, 8)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("trtllm-serve m --backend tensorrt", "a backend (tensorrt)"),
        ("trtllm-serve m --cp_size 2", "--cp-size decides"),
        ("trtllm-serve m --config /o.yaml", "/o.yaml is not in the object"),
        ("vllm serve m --config /o.yaml", "/o.yaml is not in the object"),
        ("python3 -m huggingfaceserver --model_dir=/mnt/models", "huggingfaceserver command names no model"),
    ],
)
def test_what_another_engine_leaves_unsaid_is_told(command: str, reason: str):
    read = launch(command)
    assert isinstance(read, NotRead)
    assert reason in read.reason


def test_vllms_command_line_comes_before_its_file():
    files = {"/o.yaml": "model: m\ntensor-parallel-size: 4\nmax_model_len: 8192\nenforce-eager: true"}
    read = launch("vllm serve --config /o.yaml -tp 2", files=files)
    assert (read.request["model"], read.request["layout"]["tensor_parallel"]) == ("m", 2)
    assert read.request["serving"]["max_model_len"] == 8192
    assert read.notes == ("--enforce-eager changes memory and is not taken into account",)


def test_kserves_server_hands_its_options_to_vllm():
    read = request("python3 -m huggingfaceserver --model_name=chat --model_id=m --max_length=4096 --dtype=bfloat16")
    assert read["serving"] == {"max_model_len": 4096, "weights": "bf16", "engine": "vllm"}


@pytest.mark.parametrize("command", ["trtllm-serve disaggregated -c x.yaml", "trtllm-serve mm_embedding_serve m"])
def test_tensorrt_llms_other_commands_serve_nothing_we_know(command: str):
    assert launch(command) is None


@pytest.mark.parametrize(
    ("command", "spans_pods"),
    [
        ("vllm serve m -tp 16", False),
        ("vllm serve m -tp 16 --distributed-executor-backend mp", False),
        ("vllm serve m -tp 16 --distributed-executor-backend ray", True),
        ("vllm serve m -tp 16 --nnodes $(LWS_GROUP_SIZE) --node-rank 1 --headless", True),
        ("vllm serve m -dp 16 --data_parallel_size_local 8", True),
        ("vllm serve m -dp 16 -dpl 8 --data-parallel-backend=ray", True),
        ("python -m sglang.launch_server --model m --tp 16 --nnodes 2 --node-rank 0", True),
        ("trtllm-serve m --tp_size 16", False),
    ],
)
def test_a_command_that_is_one_of_several_says_so(command: str, spans_pods: bool):
    assert launch(command).spans_pods is spans_pods


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--trust-remote-code", ()),
        ("--enforce-eager --kv_cache_memory_bytes=5G", ("--enforce-eager", "--kv-cache-memory-bytes")),
        ("-O0", ()),
        ("-O 0", ("-O",)),
    ],
)
def test_flags_that_leave_more_memory_are_named(flags: str, named: tuple[str, ...]):
    assert launch(f"vllm serve m {flags}").memory_saving == named


@pytest.mark.parametrize("flags", ["$EXTRA", "${EXTRA}", "$@", "$(cat flags)", "--trust-remote-code $EXTRA"])
def test_words_that_may_be_any_options_are_not_judged(flags: str):
    read = serving_launch(("vllm", "serve", "m", *flags.split(" ", flags.count("-"))), a_plain_container(), gpus=1)
    assert isinstance(read, NotRead)
    assert "not written in the object" in read.reason


@pytest.mark.parametrize("flags", ["--port $PORT", "--api-key=$KEY", "--served-model-name $(NAME)"])
def test_a_value_that_decides_nothing_may_be_unknown(flags: str):
    assert request(f"vllm serve m {flags}")["model"] == "m"


@pytest.mark.parametrize("written", ["auto", "-1", "AUTO"])
def test_a_length_that_the_engine_finds_is_none_of_the_requests(written: str):
    found = launch(f"vllm serve m --max-model-len {written}")
    assert isinstance(found, Launch)
    assert (found.shortens, "max_model_len" in found.request["serving"]) == (True, False)


def test_a_copy_that_only_the_command_calls_quantized_is_told_of():
    found = launch("vllm serve m --quantization gptq_marlin")
    assert isinstance(found, Launch)
    (note,) = found.notes
    assert note.startswith("judged as a copy in int4 by --quantization gptq_marlin; ")


def test_a_scheme_of_several_formats_may_be_the_smallest():
    found = launch("vllm serve m --quantization compressed-tensors")
    assert isinstance(found, Launch)
    assert {request["serving"]["weights"] for request in found.leaner} == {"int4"}
    assert "--quantization compressed-tensors" in found.leaner_words


def test_nothing_offloaded_is_nothing_said():
    assert isinstance(launch("vllm serve m --cpu-offload-gb 0"), Launch)
