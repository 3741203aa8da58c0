"""SGLang: how it is launched, how its commands are read, and what it checks before it serves.

Sources of what it checks: sglang 0.5.23, the same of its fp8.py as vLLM; the asserts of heads and KV heads in
srt/models (llama.py, qwen2.py, deepseek_v2.py ...), srt/runtime_context.py (tp = moe_ep x moe_dp x moe_tp),
srt/configs/model_config.py (_derive_context_length, _verify_quantization), srt/utils/common.py (make_layers). Its
padding of the vocabulary takes any degree (srt/layers/vocab_parallel_embedding.py), and it falls back to fp16.
"""

from __future__ import annotations

from plimsoll.planners.serving.settings.lengths import LONG_POSITIONS
from plimsoll.planners.serving.weights.scale_blocks import SCALE_BLOCKS
from plimsoll.service.engines.commands import engine_reader
from plimsoll.service.engines.engine import Engine
from plimsoll.service.engines.sglang.command import SGLANG
from plimsoll.service.engines.sglang.flags import FLAGS
from plimsoll.service.engines.sglang.launch import CACHE_NAMES, ON_LOADING, SERVER

ENGINE = Engine(
    name="sglang",
    server=SERVER,
    read=engine_reader(SGLANG),
    flags=FLAGS,
    changes={
        "layout.tensor_parallel": "tensor_parallel",
        "layout.pipeline_parallel": "pipeline_parallel",
        "layout.data_parallel": "data_parallel",
        "serving.max_model_len": "max_model_len",
        "serving.gpu_memory_utilization": "gpu_memory_utilization",
        "serving.kv_cache": "kv_cache",
        "serving.weights": "quantization",
        "serving.max_num_seqs": "max_num_seqs",
        "serving.max_num_batched_tokens": "max_num_batched_tokens",
    },
    on_loading=lambda _version: ON_LOADING,
    cache_names=CACHE_NAMES,
    checked_rules=frozenset(
        {
            "tensor-parallel-divides",
            SCALE_BLOCKS,
            "expert-parallel-divides",
            "pipeline-needs-layers",
            LONG_POSITIONS,
        }
    ),
    ways={LONG_POSITIONS: "A command states it in --json-model-override-args."},
    whole_experts="On the command line that is --ep-size.",
    # srt/managers/tp_worker.py (`max_req_len`).
    shortens_requests=True,
    compares_schemes=True,
)
