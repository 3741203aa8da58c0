"""TensorRT-LLM: how it is launched, how its commands are read, and what it checks before it serves.

Sources of what it checks: tensorrt_llm, _torch/modules/attention.py (heads), _torch/models/modeling_utils.py
(duplicate_kv_weight: KV heads), mapping.py (tp = moe_tp x moe_ep x cluster, pp_layers).
"""

from __future__ import annotations

from plimsoll.service.engines.commands import engine_reader
from plimsoll.service.engines.engine import Engine
from plimsoll.service.engines.tensorrt_llm.command import TENSORRT_LLM
from plimsoll.service.engines.tensorrt_llm.flags import FLAGS
from plimsoll.service.engines.tensorrt_llm.launch import SERVER

ENGINE = Engine(
    name="tensorrt-llm",
    server=SERVER,
    read=engine_reader(TENSORRT_LLM),
    flags=FLAGS,
    launchers=("trtllm-llmapi-launch",),
    changes={
        "layout.tensor_parallel": "tensor_parallel",
        "layout.pipeline_parallel": "pipeline_parallel",
        "serving.max_model_len": "max_model_len",
        "serving.gpu_memory_utilization": "gpu_memory_utilization",
        "serving.max_num_seqs": "max_num_seqs",
        "serving.max_num_batched_tokens": "max_num_batched_tokens",
    },
    checked_rules=frozenset({"tensor-parallel-divides", "expert-parallel-divides", "pipeline-needs-layers"}),
    # _torch/pyexecutor/resource_manager.py (`clamp_max_seq_len_for_mem`).
    shortens_requests=True,
)
