"""A model in the fields of Megatron-Core's configs: its attention, its feed-forwards, and its experts.

Sizes are those of the described model, so that a config that leaves one out has its family's.

Source: Megatron-Core 0.16.1, transformer/transformer_config.py; of the routers, Megatron-LM d98e8a6's own launch files
(tests/functional_tests/test_cases/mixtral/deepseekv3_proxy_*, examples/post_training/modelopt/conf).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from plimsoll.planners.architecture import ModelSpec, Operation, OperationKind
from plimsoll.planners.families import describe_config
from plimsoll.service.launch.model_facts import rope_factor
from plimsoll.service.stacks.megatron.model import WITH_QUERY_BIAS, WITH_QUERY_NORM
from plimsoll.service.worker.jobs.config_keys import number_of_layers
from plimsoll.service.worker.jobs.job import TraceJob

# Megatron-LM's default, and the only rotation of latent attention that is fused; by a factor of one nothing is scaled.
YARN = "yarn"
# A router whose experts a bias balances scores them by a sigmoid, and in fp32.
BALANCING_BIAS = "e_score_correction_bias"
SHARED_GATE = "shared_expert_gate.weight"


def has_latents(job: TraceJob) -> bool:
    """Return whether keys and values are rebuilt from a narrow latent."""
    return "key_value_down" in _operations(_model(job))


def model_fields(job: TraceJob) -> dict[str, Any]:
    """Return the fields that make the model's layers."""
    config, model = job.config, _model(job)
    operations = _operations(model)
    attention = _attention(operations)
    dense = operations.get("feed_forward_gate_projection")
    return {
        "num_layers": number_of_layers(config),
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": _outputs(dense) if dense else config["intermediate_size"],
        "num_attention_heads": model.attention_heads,
        "num_query_groups": model.key_value_heads,
        "kv_channels": attention.value_dim,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": nn.functional.silu,
        "add_bias_linear": False,
        "add_qkv_bias": config["model_type"] in WITH_QUERY_BIAS or _has_weight(model, "q_proj.bias"),
        "qk_layernorm": config["model_type"] in WITH_QUERY_NORM or _has_weight(model, "q_norm.weight"),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "hidden_dropout": 0.0,
        "apply_rope_fusion": True,
        **(_latents(job, operations) if has_latents(job) else {}),
        **(_experts(job, model, operations) if job.has_experts else {}),
    }


def rotary_fraction(job: TraceJob) -> float:
    """Return the part of a key's features that turn."""
    return _model(job).rotary_fraction


def _latents(job: TraceJob, operations: Mapping[str, Operation]) -> dict[str, Any]:
    """Return the sizes of latent attention, and how its positions are scaled."""
    attention, query = _attention(operations), operations.get("query_down")
    rank, _ = operations["key_value_up"].matmul_shape or (0, 0)
    positions = _outputs(operations["key_value_down"]) - rank
    return {
        "q_lora_rank": _outputs(query) if query else None,
        "kv_lora_rank": rank,
        "qk_head_dim": attention.key_dim - positions,
        "qk_pos_emb_head_dim": positions,
        "v_head_dim": attention.value_dim,
        "qk_layernorm": True,
        "rope_type": YARN,
        "rotary_scaling_factor": rope_factor(job.config) or 1.0,
    }


def _experts(job: TraceJob, model: ModelSpec, operations: Mapping[str, Operation]) -> dict[str, Any]:
    """Return the sizes of a mixture, which layers are one, and what routes tokens."""
    shared = operations.get("shared_gate_projection")
    return {
        "num_moe_experts": _outputs(operations["router"]),
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": _outputs(operations["expert_gate_projection"]),
        "moe_layer_freq": _mixture_layers(model),
        "moe_shared_expert_intermediate_size": _outputs(shared) if shared else None,
        "moe_shared_expert_gate": "shared_score_projection" in operations,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_router_load_balancing_type": "aux_loss",
        **_router(job, model),
    }


def _router(job: TraceJob, model: ModelSpec) -> dict[str, Any]:
    groups = int(job.config.get("n_group") or 1)
    limited: dict[str, Any] = {}
    if groups > 1:
        limited = {"moe_router_num_groups": groups, "moe_router_group_topk": job.config["topk_group"]}
    if not _has_weight(model, BALANCING_BIAS):
        # Scores of the chosen experts that do not sum to one are of all experts: DeepSeek V2's, and Qwen2-MoE's.
        return {**limited, "moe_router_pre_softmax": has_latents(job) or _has_weight(model, SHARED_GATE)}
    return {
        **limited,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_pre_softmax": True,
        "moe_router_dtype": "fp32",
    }


def _mixture_layers(model: ModelSpec) -> list[int]:
    """Return a one for each layer that has experts, and a zero for each that has none."""
    mixtures = {
        layer
        for block in model.layers
        if any(operation.name == "router" for operation in block.operations)
        for layer in block.layers
    }
    return [int(layer in mixtures) for layer in range(model.num_layers)]


def _model(job: TraceJob) -> ModelSpec:
    return describe_config(job.config, name=job.model_name)


def _operations(model: ModelSpec) -> dict[str, Operation]:
    return {operation.name: operation for block in model.layers for operation in block.operations}


def _attention(operations: Mapping[str, Operation]) -> Operation:
    return next(operation for operation in operations.values() if operation.kind is OperationKind.ATTENTION)


def _outputs(product: Operation) -> int:
    return product.matmul_shape[1] if product.matmul_shape is not None else 0


def _has_weight(model: ModelSpec, ending: str) -> bool:
    return any(weight.name.endswith(ending) for block in model.layers for weight in block.weights)
