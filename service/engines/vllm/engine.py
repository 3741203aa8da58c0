"""vLLM: how it is launched, how its commands are read, and what it checks before it serves.

Sources of what it checks: vllm 0.33.0, config/model.py (verify_with_parallel_config, _verify_with_expert_parallelism,
_get_and_verify_max_len, _verify_quantization), distributed/utils.py (divide), platforms/cuda.py
(check_if_supports_dtype), layers/quantization/fp8.py (create_weights).
"""

from __future__ import annotations

from plimsoll.planners.serving.releases.cards import CARD_FORMAT, MODEL_FORMAT
from plimsoll.planners.serving.settings.lengths import LONG_POSITIONS
from plimsoll.planners.serving.weights.scale_blocks import SCALE_BLOCKS
from plimsoll.service.engines.commands import engine_reader
from plimsoll.service.engines.engine import Engine
from plimsoll.service.engines.vllm.command import HUGGING_FACE_SERVER, STARTING_IMAGES, VLLM
from plimsoll.service.engines.vllm.flags import FLAGS
from plimsoll.service.engines.vllm.kserve import llm_inference_service
from plimsoll.service.engines.vllm.launch import SERVER, on_loading
from plimsoll.service.engines.vllm.ray_serve import ray_service
from plimsoll.service.workloads.commands.images import is_one_of

ENGINE = Engine(
    name="vllm",
    server=SERVER,
    read=engine_reader(VLLM, HUGGING_FACE_SERVER),
    flags=FLAGS,
    entrypoint=lambda image: VLLM.starts[0] if is_one_of(image, STARTING_IMAGES) else (),
    objects={
        ("serving.kserve.io", "LLMInferenceService"): llm_inference_service,
        ("ray.io", "RayService"): ray_service,
    },
    changes={
        "layout.tensor_parallel": "tensor_parallel",
        "layout.pipeline_parallel": "pipeline_parallel",
        "layout.data_parallel": "data_parallel",
        # Replicas of a dense model, and of attention alone where experts are parallel, have one name.
        "layout.attention_data_parallel": "data_parallel",
        "layout.expert_parallel": "expert_parallel",
        "layout.decode_context_parallel": "decode_context_parallel",
        "serving.max_model_len": "max_model_len",
        "serving.gpu_memory_utilization": "gpu_memory_utilization",
        "serving.kv_cache": "kv_cache",
        "serving.weights": "quantization",
        "serving.max_num_seqs": "max_num_seqs",
        "serving.max_num_batched_tokens": "max_num_batched_tokens",
    },
    on_loading=on_loading,
    checked_rules=frozenset(
        {
            "tensor-parallel-divides",
            "vocabulary-divides",
            SCALE_BLOCKS,
            "experts-needed",
            "context-parallel-divides",
            LONG_POSITIONS,
            CARD_FORMAT,
            MODEL_FORMAT,
        }
    ),
    ways={
        CARD_FORMAT: "On the command line that is --dtype half.",
        MODEL_FORMAT: "On the command line that is --dtype float32, or bfloat16 where the card computes in it.",
        LONG_POSITIONS: "A command states it in --hf-overrides.",
    },
    whole_experts="On the command line that is --enable-expert-parallel.",
    # v1/worker/utils.py (`request_memory`).
    claims_fraction=True,
    compares_schemes=True,
    # model_executor/layers/fused_moe/config.py, flatten_tp_across_dp; 0.11.2 to 0.33.0.
    replicas_share_experts=True,
    quantizes_by_weight_since="vLLM 0.15",
)
