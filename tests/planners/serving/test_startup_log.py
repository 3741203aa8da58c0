"""Start-up logs as engines print them, and as nobody should: what is read, and what is refused."""

from __future__ import annotations

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.startup_log import MOST_LINE_CHARACTERS, MOST_LINES, read_startup_log

# Written for this project in the wording of each version; figures of public starts (Llama-3.1-8B and Qwen3-14B on
# H100-80GB by vLLM 0.19 and 0.15, Llama-3-8B by 0.6, Qwen3-14B by SGLang 0.5).
VLLM_19 = """\
(APIServer pid=21) INFO 04-20 10:00:00 [api_server.py:1971] vLLM API server version 0.19.0
(APIServer pid=21) INFO 04-20 10:00:00 [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', \
'max_model_len': 8192, 'gpu_memory_utilization': 0.95, 'max_num_seqs': 512}
(APIServer pid=21) INFO 04-20 10:00:01 [scheduler.py:238] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore pid=90) INFO 04-20 10:00:09 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, \
tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, decode_context_parallel_size=1, \
quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda
(EngineCore pid=90) INFO 04-20 10:00:20 [gpu_model_runner.py:4700] Model loading took 14.99 GiB memory and 3.2 seconds
(EngineCore pid=90) DEBUG 04-20 10:00:40 [gpu_worker.py:380] Memory profiling takes 5.20 seconds. Total non KV cache \
memory: 17.12GiB; torch peak memory increase: 1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: \
14.99GiB.
(EngineCore pid=90) INFO 04-20 10:00:40 [gpu_worker.py:391] Available KV cache memory: 58.11 GiB
(EngineCore pid=90) INFO 04-20 10:00:40 [kv_cache_utils.py:1307] GPU KV cache size: 476,000 tokens
(EngineCore pid=90) INFO 04-20 10:00:40 [kv_cache_utils.py:1312] Maximum concurrency for 8,192 tokens per request: \
58.11x
(EngineCore pid=90) INFO 04-20 10:00:52 [gpu_model_runner.py:5800] Graph capturing finished in 10 secs, took 0.51 GiB
"""
VLLM_6 = """\
INFO 11-26 02:10:01 llm_engine.py:237] Initializing an LLM engine (v0.6.5) with config: model='meta-llama/Meta-Llama-\
3-8B', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None
INFO 11-26 02:10:20 model_runner.py:1077] Loading model weights took 14.9595 GB
INFO 11-26 02:10:22 worker.py:241] Memory profiling takes 1.20 seconds
INFO 11-26 02:10:22 worker.py:241] the current vLLM instance can use total_gpu_memory (79.22GiB) x \
gpu_memory_utilization (0.90) = 71.30GiB
INFO 11-26 02:10:22 worker.py:241] model weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch activation \
peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB.
INFO 11-26 02:10:23 gpu_executor.py:76] # GPU blocks: 27283, # CPU blocks: 2048
INFO 11-26 02:10:23 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 53.29x
"""
SGLANG = """\
[2026-01-01 00:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-14B', tokenizer_path='Qwen/Qwen3-14B', \
dtype='auto', quantization=None, kv_cache_dtype='auto', context_length=None, mem_fraction_static=0.8, tp_size=4, \
pp_size=1, dp_size=1, chunked_prefill_size=2048, enable_dp_attention=False)
[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=23.17 GB
[2026-01-01 00:00:09 TP0] Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=16.00 GB, mem \
usage=7.08 GB.
[2026-01-01 00:00:09 TP1] KV Cache is allocated. #tokens: 298447, K size: 5.69 GB, V size: 5.69 GB
[2026-01-01 00:00:09 TP0] KV Cache is allocated. #tokens: 298447, K size: 5.69 GB, V size: 5.69 GB
[2026-01-01 00:00:09 TP0] Memory pool end. avail mem=4.10 GB
[2026-01-01 00:00:20 TP0] Capture cuda graph end. Time elapsed: 5.1 s. mem usage=0.38 GB. avail mem=3.70 GB.
[2026-01-01 00:00:21 TP0] max_total_num_tokens=298447, chunked_prefill_size=2048, max_prefill_tokens=16384, \
max_running_requests=2048, context_len=40960, available_gpu_mem=3.70 GB
"""


def test_a_log_of_vllm_says_what_was_loaded_profiled_and_left():
    log = read_startup_log(VLLM_19)
    assert (log.engine, log.engine_version, log.model) == ("vllm", "0.19", "meta-llama/Llama-3.1-8B-Instruct")
    assert log.weights_bytes == round(14.99 * GIB)
    assert log.activations_bytes == round(1.89 * GIB)
    assert log.runtime_bytes == round(0.25 * GIB)
    assert log.cuda_graphs_bytes == round(0.51 * GIB)
    assert log.kv_available_bytes == round(58.11 * GIB)
    assert (log.kv_tokens, log.kv_max_concurrency) == (476_000, 58.11)


def test_a_log_of_vllm_says_how_it_was_started():
    log = read_startup_log(VLLM_19)
    assert (log.gpu_memory_utilization, log.max_model_len, log.max_num_batched_tokens) == (0.95, 8192, 8192)
    assert (log.max_num_seqs, log.tensor_parallel, log.pipeline_parallel, log.data_parallel) == (512, 1, 1, 1)
    assert (log.weight_dtype, log.quantization, log.kv_cache_dtype) == ("bfloat16", None, None)


def test_the_wording_before_version_1_of_the_engine_is_read_too():
    log = read_startup_log(VLLM_6)
    assert (log.engine_version, log.gpu_memory_utilization, log.kv_blocks) == ("0.6", 0.9, 27_283)
    assert log.runtime_bytes == round(1.79 * GIB)
    assert log.activations_bytes == round(1.26 * GIB)
    assert log.kv_available_bytes == round(53.29 * GIB)


def test_sglang_prints_keys_and_values_apart_and_gib_as_gb():
    log = read_startup_log(SGLANG)
    assert (log.engine, log.tensor_parallel, log.gpu_memory_utilization) == ("sglang", 4, 0.8)
    # 5.69 GiB of keys and as much of values.
    assert log.kv_available_bytes == round(11.38 * GIB)
    assert log.free_before_bytes == round(23.17 * GIB)
    assert (log.weights_bytes, log.cuda_graphs_bytes) == (round(7.08 * GIB), round(0.38 * GIB))
    assert (log.kv_tokens, log.max_model_len, log.max_num_batched_tokens) == (298_447, 40_960, 2048)
    assert not log.has_attention_data_parallel


def test_a_latent_cache_of_sglang_is_printed_in_one():
    log = read_startup_log("[TP0] KV Cache is allocated. #tokens: 975424, KV size: 43.67 GB")
    assert (log.kv_available_bytes, log.kv_tokens) == (round(43.67 * GIB), 975_424)


def test_attention_ranks_of_sglang_are_told():
    log = read_startup_log(SGLANG.replace("enable_dp_attention=False", "enable_dp_attention=True"))
    assert log.has_attention_data_parallel


def test_the_fullest_workers_weights_and_the_emptiest_ones_cache_count():
    log = read_startup_log(
        "(Worker_PP0) Model loading took 4.26 GiB memory\n(Worker_PP1) Model loading took 3.28 GiB memory\n"
        "(Worker_PP0) Available KV cache memory: 69.80 GiB\n(Worker_PP1) Available KV cache memory: 70.90 GiB\n"
    )
    assert log.weights_bytes == round(4.26 * GIB)
    assert log.kv_available_bytes == round(69.8 * GIB)


def test_the_last_start_that_measured_counts():
    second = VLLM_19.replace("58.11 GiB", "50.00 GiB").replace("0.95", "0.85")
    third = "(EngineCore pid=9) Initializing a V1 LLM engine (v0.19.0) with config: model='other', max_seq_len=1\n"
    log = read_startup_log(VLLM_19 + second + third)
    assert log.kv_available_bytes == 50 * GIB
    assert (log.gpu_memory_utilization, log.max_model_len) == (0.85, 8192)


def test_colours_and_progress_bars_do_not_hide_a_figure():
    log = read_startup_log("Loading 100%\r\x1b[36m(EngineCore pid=1)\x1b[0;0m Available KV cache memory: 9.50 GiB\r\n")
    assert log.kv_available_bytes == round(9.5 * GIB)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "INFO: Application startup complete.", "Available KV cache memory: a lot", "\x00\ud800" * 10],
)
def test_a_text_without_a_figure_is_refused(text: str):
    with pytest.raises(InvalidQuestion) as refused:
        read_startup_log(text)
    assert refused.value.pointer == "/log"


def test_a_start_that_failed_is_refused():
    # What remained for the cache was negative, and the engine stopped.
    with pytest.raises(InvalidQuestion, match="failed"):
        read_startup_log("the rest of the memory reserved for KV Cache is -7.83GiB.")


@pytest.mark.parametrize(
    "line",
    [
        "Available KV cache memory: 999999999999 GiB",
        "GPU KV cache size: 99999999999999999999 tokens",
        "GPU KV cache size: 0 tokens",
        "Available KV cache memory: 5 GiB gpu_memory_utilization=7.5",
    ],
)
def test_a_figure_that_no_engine_has_is_refused(line: str):
    with pytest.raises(InvalidQuestion):
        read_startup_log(line)


def test_a_log_may_have_so_many_lines_and_no_more():
    line = "Available KV cache memory: 9.50 GiB"
    assert read_startup_log("\n" * (MOST_LINES - 1) + line).kv_available_bytes == round(9.5 * GIB)
    with pytest.raises(InvalidQuestion, match="lines"):
        read_startup_log("\n" * MOST_LINES + line)


def test_what_lies_far_out_on_a_line_is_not_read():
    with pytest.raises(InvalidQuestion):
        read_startup_log(" " * MOST_LINE_CHARACTERS + "Available KV cache memory: 9.50 GiB")


def test_figures_in_other_digits_are_no_figures():
    with pytest.raises(InvalidQuestion):
        read_startup_log("Available KV cache memory: ٩.٥ GiB")
