"""Launch commands of serving plans: every setting of the plan, and none where a program lacks the option."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.service.artifacts.serving import serving_artifacts
from plimsoll.service.engines.vllm.launch import SERVER as VLLM
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.files import LaunchFiles
from tests.service.engines.documented_parsers import parsed
from tests.service.engines.serving_plans import CHECKPOINT, MODEL, hardware, placement, serving_plan

TRTLLM = "tensorrt-llm"


def launch_files(
    plan: ServingPlan, checkpoint: Checkpoint | None = CHECKPOINT, *, gpu: str = "h100-sxm-80gb", gpus_per_node: int = 8
) -> LaunchFiles:
    return serving_artifacts(checkpoint, plan, hardware(gpu, gpus_per_node=gpus_per_node), placement(gpu), fits=True)


def artifacts(plan: ServingPlan, checkpoint: Checkpoint = CHECKPOINT, *, gpus_per_node: int = 8) -> dict[str, Any]:
    return dict(launch_files(plan, checkpoint, gpus_per_node=gpus_per_node).files)


def read(program: str, plan: ServingPlan, **options: Any) -> dict[str, Any]:
    words = shlex.split(artifacts(plan, **options)[program])
    return parsed(program, words, plan.settings.engine_version)


def test_vllm_is_given_every_setting_of_the_plan():
    plan = serving_plan()
    assert read("vllm", plan) == {
        "model": MODEL,
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "gpu_memory_utilization": plan.settings.gpu_memory_utilization,
        "max_num_batched_tokens": plan.settings.max_num_batched_tokens,
        "max_num_seqs": plan.settings.max_num_seqs,
    }


@pytest.mark.parametrize(
    ("engine", "program", "option"), [("vllm", "vllm", "block_size"), ("sglang", "sglang", "page_size")]
)
def test_a_block_size_is_named_where_it_was_fixed_and_else_left_to_the_engine(engine, program, option):
    # FlashMLA runs with blocks of 64 alone: naming another excludes it.
    assert option not in read(program, serving_plan(engine=engine, block_size=16))
    assert read(program, serving_plan(engine=engine, block_size=16, is_block_size_fixed=True))[option] == 16


def test_vllms_degrees_multiply_out_to_the_replicas_gpus():
    layout = {"tensor_parallel": 2, "pipeline_parallel": 2, "attention_data_parallel": 2, "data_parallel": 3}
    given = read("vllm", serving_plan(layout={**layout, "expert_parallel": 4}))
    degrees = [given[f"{axis}_parallel_size"] for axis in ("tensor", "pipeline", "data")]
    # 24 GPUs in 3 replicas; a command starts one of them.
    assert degrees == [2, 2, 2]
    assert given["enable_expert_parallel"] is True


def test_sglang_counts_attention_ranks_among_its_tensor_ranks():
    layout = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}
    plan = serving_plan(engine="sglang", engine_version="0.5", kv_cache="fp8", layout=layout)
    given = read("sglang", plan)
    assert (given["tp_size"], given["dp_size"], given["ep_size"], given["enable_dp_attention"]) == (8, 4, 8, True)
    assert given["kv_cache_dtype"] == "fp8_e4m3"
    assert given["mem_fraction_static"] == plan.settings.gpu_memory_utilization


def test_tensorrt_llm_reads_from_its_file_what_has_no_option():
    layout = {"attention_data_parallel": 4, "expert_parallel": 4}
    plan = serving_plan(
        engine=TRTLLM, engine_version="1.2", kv_cache="fp8", block_size=64, is_block_size_fixed=True, layout=layout
    )
    given, files = read("trtllm-serve", plan), artifacts(plan)
    assert (given["tp_size"], given["ep_size"], given["max_seq_len"]) == (4, 4, 1024)
    # Fields of TorchLlmArgs and KvCacheConfig.
    assert yaml.safe_load(files[given["extra_llm_api_options"]]) == {
        "kv_cache_config": {
            "dtype": "fp8",
            "free_gpu_memory_fraction": plan.settings.gpu_memory_utilization,
            "tokens_per_block": 64,
        },
        "enable_attention_dp": True,
    }


def test_engines_are_told_whether_to_cut_prompts():
    plan = serving_plan(engine=TRTLLM, engine_version="1.2", chunked_prefill=True)
    given, files = read("trtllm-serve", plan), artifacts(plan)
    # TorchLlmArgs.enable_chunked_prefill (tensorrt_llm/llmapi/llm_args.py).
    assert yaml.safe_load(files[given["extra_llm_api_options"]])["enable_chunked_prefill"] is True
    assert "no_enable_chunked_prefill" not in read("vllm", serving_plan())
    assert read("vllm", serving_plan(chunked_prefill=False))["no_enable_chunked_prefill"] is True


def test_tensorrt_llm_is_told_what_computes_its_experts():
    plan = serving_plan(engine=TRTLLM, engine_version="1.2", expert_backend="TRTLLM")
    given, files = read("trtllm-serve", plan), artifacts(plan)
    # MoeConfig.backend (tensorrt_llm/llmapi/llm_args.py).
    assert yaml.safe_load(files[given["extra_llm_api_options"]])["moe_config"] == {"backend": "TRTLLM"}


def test_text_generation_inference_takes_the_tokens_that_were_planned():
    plan = serving_plan(engine="transformers", weights="nf4", layout={"tensor_parallel": 2})
    given = read("text-generation-inference", plan)
    assert (given["quantize"], given["num_shard"]) == ("bitsandbytes-nf4", 2)
    assert (given["max_total_tokens"], given["max_input_tokens"]) == (1024, 1023)
    assert given["max_batch_total_tokens"] == plan.kv.tokens


@pytest.mark.parametrize(
    ("engine", "program", "change", "option", "value"),
    [
        ("vllm", "vllm", {"weights": "fp16", "kv_cache": "fp16"}, "dtype", "float16"),
        ("vllm", "vllm", {"weights": "nf4", "engine_version": "0.27"}, "quantization", "bitsandbytes"),
        ("vllm", "vllm", {"weights": "fp8", "kv_cache": "fp8"}, "kv_cache_dtype", "fp8"),
        ("vllm", "vllm", {"weights": "fp8", "kv_cache": "fp16"}, "dtype", "float16"),
        ("sglang", "sglang", {"weights": "fp8"}, "quantization", "fp8"),
        ("transformers", "text-generation-inference", {"weights": "bf16"}, "dtype", "bfloat16"),
    ],
)
def test_formats_are_asked_for_by_the_programs_own_names(engine, program, change, option, value):
    assert read(program, serving_plan(engine=engine, **change))[option] == value


@pytest.mark.parametrize(
    ("engine", "program"), [("vllm", "vllm"), ("sglang", "sglang"), ("transformers", "text-generation-inference")]
)
def test_a_quantized_checkpoint_needs_no_option_for_its_own_format(engine, program):
    checkpoint = Checkpoint(name="org/tiny-AWQ", stored_weights="int4")
    given = read(program, serving_plan(engine=engine, weights="int4"), checkpoint=checkpoint)
    assert "quantization" not in given
    assert "quantize" not in given


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "int4"},
        # bitsandbytes left vLLM with that version.
        {"weights": "nf4", "engine_version": "0.28"},
        {"weights": "fp32"},
        {"kv_cache": "int8"},
        {"kv_cache": "fp16"},
        {"engine_version": "0.10", "layout": {"tensor_parallel": 2, "decode_context_parallel": 2}},
        {"layout": {"tensor_parallel": 4, "expert_parallel": 2}},
        {"layout": {"prefill_replicas": 1}},
        {"engine": "sglang", "weights": "nf4"},
        {"engine": "sglang", "kv_cache": "int8"},
        {"engine": "sglang", "layout": {"tensor_parallel": 2, "decode_context_parallel": 2}},
        {"engine": TRTLLM, "weights": "fp8"},
        {"engine": TRTLLM, "kv_cache": "fp16"},
        {"engine": TRTLLM, "kv_cache": "int8"},
        {"engine": TRTLLM, "layout": {"tensor_parallel": 2, "attention_data_parallel": 2}},
        {"engine": "transformers", "weights": "mxfp4"},
        {"engine": "transformers", "layout": {"tensor_parallel": 2, "pipeline_parallel": 2}},
    ],
)
def test_what_a_program_has_no_option_for_has_no_command_but_a_reason(change: dict[str, Any]):
    made = launch_files(serving_plan(**change))
    assert made.files == {}
    assert all(reason.endswith(".") for reasons in made.missing.values() for reason in reasons)
    assert made.missing


def test_weights_that_no_engine_makes_while_loading_are_said_to_need_a_checkpoint_of_their_own():
    [said] = launch_files(serving_plan(weights="int4")).missing["vllm"]
    assert said.endswith("Name a checkpoint that is stored in int4, or quantize it beforehand.")


def test_a_model_whose_repository_nobody_named_has_no_command():
    [said] = launch_files(serving_plan(), None).missing["vllm"]
    assert "repository's name" in said


def test_what_does_not_fit_has_no_command():
    made = serving_artifacts(CHECKPOINT, serving_plan(), hardware(), placement(), fits=False)
    assert made.files == {}
    [reason] = made.missing.pop("vllm")
    assert "does not fit" in reason
    assert made.missing == {}


@pytest.mark.parametrize(
    ("engine", "version", "word"),
    [
        ("vllm", "0.33", "--trust-remote-code"),
        ("sglang", "0.5.23", "--trust-remote-code"),
        (TRTLLM, "1.2", "--trust_remote_code"),
        ("transformers", "5.23", "--trust-remote-code"),
    ],
)
def test_code_of_a_repository_is_trusted_where_nothing_else_reads_its_model(engine: str, version: str, word: str):
    # Kimi-K2's tokenizer stands in its repository alone; Llama's is everywhere.
    plan = serving_plan(engine=engine, engine_version=version)
    commands = [
        list(launch_files(plan, Checkpoint(name=MODEL, model_type=kind)).files.values())
        for kind in ("kimi_k2", "llama")
    ]
    assert [any(word in str(text) for text in texts) for texts in commands] == [True, False]


def test_images_are_of_the_newest_patch():
    # Qwen3 came with 0.8.4 and gpt-oss with 0.10.1: the first patches of these releases do not serve them.
    names = [VLLM.image_for(catalogue().gpu("h100-sxm-80gb"), version) for version in ("0.8", "0.10", "0.12")]
    assert names == [f"vllm/vllm-openai:v{release}" for release in ("0.8.5", "0.10.2", "0.12.0")]


@pytest.mark.parametrize(("version", "is_known"), [("0.15", False), ("0.16", True)])
def test_images_for_amds_gpus_are_known_from_0_16_on(version: str, is_known: bool):
    assert (VLLM.image_for(catalogue().gpu("mi300x"), version) is not None) is is_known


def test_an_engine_without_an_image_for_the_card_still_has_its_command():
    made = launch_files(serving_plan(engine="sglang", engine_version="0.5.23"), gpu="mi300x-192gb")
    assert "sglang" in made.files
    [reason] = made.missing["deployment"]
    assert all(words in reason for words in ("sglang 0.5.23", "AMD Instinct MI300X 192 GB"))


@pytest.mark.parametrize("engine", ["vllm", "sglang", TRTLLM, "transformers"])
def test_a_quantized_checkpoint_is_not_served_as_anything_else(engine: str):
    checkpoint = Checkpoint(name="org/tiny-AWQ", stored_weights="int4")
    assert artifacts(serving_plan(engine=engine, weights="bf16"), checkpoint) == {}


def test_tensorrt_llm_serves_a_checkpoint_in_its_own_format():
    checkpoint = Checkpoint(name="org/tiny-FP8", stored_weights="fp8")
    assert "trtllm-serve" in artifacts(serving_plan(engine=TRTLLM, weights="fp8"), checkpoint)


def test_uneven_nodes_have_no_single_command():
    assert artifacts(serving_plan(layout={"tensor_parallel": 12})) == {}


@pytest.mark.parametrize(("version", "backend"), [("0.11", "ray"), ("0.12", None), ("0.33", None)])
def test_vllm_joins_nodes_itself_since_it_can(version: str, backend: str | None):
    plan = serving_plan(engine_version=version, layout={"tensor_parallel": 8, "pipeline_parallel": 2})
    given = read("vllm", plan)
    assert given.get("distributed_executor_backend") == backend
    assert given.get("nnodes") == (None if backend else 2)


def test_the_further_nodes_of_vllm_answer_no_requests():
    plan = serving_plan(layout={"tensor_parallel": 16})
    words = shlex.split(artifacts(plan)["vllm-worker"])
    given = parsed("vllm", words, plan.settings.engine_version)
    assert (given["headless"], given["node_rank"], given["master_addr"]) == (True, "$NODE_RANK", "$HEAD_NODE")


def test_sglang_is_started_alike_on_every_node():
    plan = serving_plan(engine="sglang", layout={"tensor_parallel": 16})
    made = artifacts(plan)
    given = parsed("sglang", shlex.split(made["sglang"]))
    assert (given["nnodes"], given["dist_init_addr"]) == (2, "$HEAD_NODE:20000")
    assert "sglang-worker" not in made


@pytest.mark.parametrize(
    "change",
    [
        {"engine": TRTLLM, "layout": {"tensor_parallel": 16}},
        {"engine": "vllm", "layout": {"attention_data_parallel": 16}},
    ],
)
def test_what_cannot_join_nodes_has_no_command_over_them(change: dict[str, Any]):
    assert artifacts(serving_plan(**change)) == {}
