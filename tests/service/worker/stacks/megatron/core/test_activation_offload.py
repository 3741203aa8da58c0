"""Activations on the host, as Megatron-Core's own code sends parts of layers there, and plans held to it."""

import pytest

from benchmarks.random_plans.planning import chosen_layout, planned_memory, proof_request, read_request
from plimsoll.service.worker.proofs.task import run
from tests.service.worker.cases import LATENT, config, traced_once

TOKENS, HIDDEN = 8192, 256
LLAMA = config(vocab_size=256, hidden_size=HIDDEN, intermediate_size=704, num_hidden_layers=4, head_dim=64)
MIXTURE = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LATENTS = LATENT | {
    "vocab_size": 256, "hidden_size": HIDDEN, "intermediate_size": 704, "num_hidden_layers": 4, "q_lora_rank": 192,
    "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "head_dim": 32,
    "moe_intermediate_size": 192, "first_k_dense_replace": 1, "max_position_embeddings": TOKENS,
}  # fmt: skip


def traced(*modules):
    return traced_once(
        framework="megatron",
        config=LLAMA,
        zero_stage=1,
        sequence_length=TOKENS,
        micro_batch_size=1,
        activation_offload=bool(modules),
        offload_modules=modules,
    )


def test_the_device_lets_go_of_a_part_of_all_layers_but_the_highest_and_the_host_has_it_of_all():
    # Query and output 256, key and value 128 features each in 2 bytes: of the operands 512 leave, and 768 are sent.
    plain, moved = traced(), traced("core_attn")
    feature = 2 * TOKENS
    assert plain.peak().allocated_bytes - moved.peak().allocated_bytes == 3 * 512 * feature
    assert moved.peak(on_host=True).allocated_bytes == 4 * 768 * feature


def proved(model, layout, **training):
    body = {
        "model": {"config": model},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 4},
        "training": {"sequence_length": TOKENS, "global_batch_size": 16, "micro_batch_size": 1, **training},
        "framework": "megatron",
        "layout": {"zero_stage": 1, **layout},
    }
    question = read_request(body)
    chosen = chosen_layout(question)
    memory = planned_memory(question, chosen)
    return run(proof_request(question, chosen, memory) | {"device": {"on": "any"}}, lambda *_progress: None)


@pytest.mark.parametrize(
    ("model", "layout", "training"),
    [
        (LLAMA, {"data_parallel": 4}, {}),
        (LLAMA, {"data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}, {}),
        (LLAMA, {"data_parallel": 1, "pipeline_parallel": 4, "virtual_pipeline": 1}, {}),
        (MIXTURE, {"data_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2, "virtual_pipeline": 1}, {}),
        (MIXTURE, {"data_parallel": 4}, {"recompute": {"modules": ["layernorm", "moe_act"]}}),
        (LATENTS, {"data_parallel": 4}, {}),
        (LATENTS, {"data_parallel": 4}, {"recompute": {"modules": ["layernorm", "mla_up_proj", "moe_act"]}}),
    ],
    ids=["four ranks", "split", "four stages", "experts", "experts recomputed", "latents", "latents recomputed"],
)
def test_a_plan_agrees(model, layout, training):
    result = proved(model, layout, **{"recompute": "none", "activation_offload": True, **training})
    assert result["verdict"] == "consistent"  # shapes stand in for kernels
    assert abs(result["relative_error"]) < 0.01
    assert result["measured"]["host_bytes"] == pytest.approx(result["predicted"]["host_bytes"], rel=0.01)
