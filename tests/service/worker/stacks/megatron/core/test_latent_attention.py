"""Plans of latent attention, shared experts and balanced routers, held to Megatron-Core's own steps."""

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, NONE, SELECTIVE
from plimsoll.planners.questions import Recompute
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.recording.ledger import Kind
from tests.planners.training_cases import events
from tests.service.worker.cases import config, requested_bytes, traced_once

TOKENS, HIDDEN, HEADS = 512, 512, 8
# No two matrices are of one shape but those of routed and shared experts: those of one have one empty gradient.
SIZES = {"vocab_size": 2048, "hidden_size": HIDDEN, "intermediate_size": 1280, "num_attention_heads": HEADS}
LATENT_SIZES = {"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 320, "n_shared_experts": 1}
# Like DeepSeek V3: a latent for queries, a dense layer first, experts in two groups and a bias that balances them.
DEEPSEEK_V3 = config(
    model_type="deepseek_v3", num_hidden_layers=4, num_key_value_heads=HEADS, q_lora_rank=192,
    first_k_dense_replace=1, n_group=2, topk_group=1, **SIZES, **LATENT_SIZES, **EXPERTS,
)  # fmt: skip
KIMI_K2 = DEEPSEEK_V3 | {"model_type": "kimi_k2", "n_group": 1}
DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {"model_type": "deepseek_v2", "q_lora_rank": None, "n_group": 1, "n_shared_experts": 2}
QWEN2_MOE = config(
    model_type="qwen2_moe", num_hidden_layers=4, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=320,
    shared_expert_intermediate_size=512, head_dim=64, **SIZES,
)  # fmt: skip
GLM_4_5 = config(
    model_type="glm4_moe", num_hidden_layers=4, first_k_dense_replace=1, head_dim=64, attention_bias=True,
    use_qk_norm=True, n_group=1, topk_group=1, **SIZES, **EXPERTS,
)  # fmt: skip
SPLIT = {"tensor_parallel": 2, "sequence_parallel": True}
MODES = {"none": NONE, "selective": SELECTIVE, "full": FULL}


def off(model, *, stage=None, recompute="none", modules=(), micro_batch_size=1, micro_batches=2, further=0, **degrees):
    """Return by how much of it a planned peak lies above the traced one; `stage` is one of two."""
    ranks = {"data_parallel": 2, "zero_stage": 1, **degrees}
    recompute = "selective" if modules else recompute
    layers = {"full_layers": ALL_LAYERS} if recompute == "full" else {}
    planned = events(
        "megatron",
        stage=stage.number if stage else 0,
        layout=ranks
        | layers
        | {"shard_group": ranks["data_parallel"], "recompute": MODES[recompute], "micro_batch_size": micro_batch_size},
        divided="even" if stage else None,
        model=describe_config(model, name="small"),
        sequence_length=TOKENS,
        global_batch_size=ranks["data_parallel"] * micro_batch_size * micro_batches,
        multi_token_prediction=further,
        **({"recompute": Recompute(mode="selective", modules=modules)} if modules else {}),
    )
    ledger = traced_once(
        stage,
        framework="megatron",
        config=model,
        micro_batch_size=micro_batch_size,
        accumulation_steps=micro_batches,
        sequence_length=TOKENS,
        multi_token_prediction=further,
        pipeline_layout="even" if stage else None,
        recompute=recompute,
        recompute_modules=modules,
        **ranks,
    )
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.step > 0]
    traced_bytes = max(sum(piece.requested_bytes for piece in ledger.peak(start, end).live) for start, end in ranges)
    return max(event.total for event in planned) / traced_bytes - 1.0


@pytest.mark.parametrize(
    "model",
    [DEEPSEEK_V3, KIMI_K2, DEEPSEEK_V2_LITE, QWEN2_MOE, GLM_4_5],
    ids=["DeepSeek V3", "Kimi K2", "V2 Lite", "Qwen2-MoE", "GLM-4.5"],
)
def test_a_family_s_peak_is_the_plan_s(model):
    assert off(model, expert_parallel=2) == pytest.approx(0.0, abs=0.0015)


@pytest.mark.parametrize(
    "modules",
    [("core_attn",), ("mla_up_proj",), ("shared_experts",), ("layernorm",), ("moe_act", "mlp"), ("moe",)],
    ids="+".join,
)
def test_parts_of_a_layer_are_recomputed_as_the_plan_says(modules):
    assert off(DEEPSEEK_V3, modules=modules, expert_parallel=2) == pytest.approx(0.0, abs=0.0015)


@pytest.mark.parametrize(
    "degrees",
    [
        {**SPLIT, "expert_parallel": 2},
        {**SPLIT, "expert_parallel": 4},
        {**SPLIT, "expert_parallel": 2, "recompute": "full"},
        {"micro_batch_size": 3},
        {"further": 1},
    ],
    ids=["experts in parts", "experts whole", "recomputed", "sequences", "multi-token"],
)
def test_a_divided_rank_s_peak_is_the_plan_s(degrees):
    assert off(DEEPSEEK_V3, **degrees) == pytest.approx(0.0, abs=0.003)


@pytest.mark.parametrize("number", [0, 1])
def test_a_stage_s_peak_is_the_plan_s(number):
    stage = PipelineStage(number=number, stages=2, first_layer=2 * number, last_layer=2 * number + 1)
    layout = {"pipeline_parallel": 2, "micro_batches": 4, "expert_parallel": 2}
    assert off(KIMI_K2, stage=stage, **layout) == pytest.approx(0.0, abs=0.003)


def test_shared_experts_that_a_gate_scales_are_recomputed_as_the_plan_says():
    assert off(QWEN2_MOE, recompute="full", expert_parallel=2) == pytest.approx(0.0, abs=0.0015)


def test_deeper_layers_that_are_recomputed_leave_their_inputs_and_gradients():
    deep = KIMI_K2 | {"num_hidden_layers": 8}
    assert off(deep, recompute="full", expert_parallel=2) == pytest.approx(0.0, abs=0.0015)


def test_both_latents_norms_keep_their_inputs_and_the_angles_of_each_layer_stay():
    # In 2 bytes and of each token: 192 of the queries' latent twice, 128 of the other one copied and normalized.
    ledger = traced_once(framework="megatron", config=KIMI_K2, zero_stage=1, sequence_length=TOKENS, micro_batch_size=1)
    live = ledger.peak().live
    sizes = [piece.requested_bytes for piece in live if piece.kind is Kind.FORWARD_ACTIVATION]
    layers = KIMI_K2["num_hidden_layers"]
    assert sizes.count(2 * TOKENS * 192) >= 2 * layers
    assert sizes.count(2 * TOKENS * 128) >= 2 * layers
    assert sizes.count(4 * TOKENS * 32) >= layers


def test_the_bias_that_balances_experts_is_a_buffer_beside_the_parameters():
    # Biased scores need no gradient: as many states as of the same model without a bias.
    biased, plain = (
        traced_once(framework="megatron", config=model, zero_stage=1, sequence_length=TOKENS, micro_batch_size=1)
        for model in (KIMI_K2 | {"n_shared_experts": 2, "q_lora_rank": None}, DEEPSEEK_V2_LITE)
    )
    for kind in (Kind.PARAMETER, Kind.OPTIMIZER_STATE):
        assert requested_bytes(biased, kind) == pytest.approx(requested_bytes(plain, kind), abs=2_000)
