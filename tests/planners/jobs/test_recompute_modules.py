import itertools

import numpy as np
import pytest

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.recompute_modules import (
    again,
    check_modules,
    dropped,
    has_norm_apart,
    sets_worth_trying,
)
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.memory.selective import selectively_saved_bytes
from plimsoll.planners.questions import Recompute
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.compute import layer_seconds, selective_recompute_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from tests.planners.factories import gpt, hardware, llama, small_llama, small_mixtral
from tests.planners.training_cases import job, one_layout

MEGATRON, REFERENCE = (load_profile(name).kernels for name in ("megatron", "reference"))
H, F = 4096, 14336
DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 0,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip


def selective(model, *modules: str, attention: str = "flash", kernels=REFERENCE):
    return selectively_saved_bytes(
        model.layers[-1], kernels, policy="attention_scores", attention=attention, element_bytes=2, modules=modules
    )


def whole(model, attention: str = "flash", kernels=REFERENCE):
    return saved_bytes(model.layers[-1], kernels, attention=attention, element_bytes=2)


def dropped_bytes(model, *modules: str, kernels=MEGATRON) -> float:
    kept = selective(model, *modules, kernels=kernels)
    return whole(model, kernels=kernels).sequence_bytes - kept.sequence_bytes


def test_layernorm_drops_the_outputs_of_both_norms():
    assert dropped_bytes(llama(), "layernorm", kernels=REFERENCE) == 2 * 2 * H


def test_a_norm_that_is_one_module_with_its_matrix_is_computed_again_with_that_alone():
    assert not has_norm_apart(llama().layers[0])
    assert dropped_bytes(llama(), "layernorm") == 0
    assert dropped_bytes(llama(), "mlp") == dropped_bytes(llama(), "mlp", "layernorm") == 2 * H


def test_norms_before_latent_attention_and_before_experts_are_modules_of_their_own():
    # Hidden 64: the outputs of both norms; of Mixtral's the one before its experts.
    assert dropped_bytes(describe_config(DEEPSEEK, name="deepseek"), "layernorm") == 2 * 2 * 64
    assert dropped_bytes(small_mixtral(), "layernorm") == 2 * small_mixtral().hidden_size


def test_mlp_keeps_its_input_and_drops_gate_up_and_their_product():
    kept = selective(llama(), "mlp")
    assert whole(llama()).tensor_bytes - kept.tensor_bytes == 3 * 2 * F
    assert kept.sequence_bytes == whole(llama()).sequence_bytes


def test_beside_mlp_layernorm_leaves_the_norm_that_the_mlp_keeps():
    kept = selective(llama(), "layernorm", "mlp")
    assert whole(llama()).sequence_bytes - kept.sequence_bytes == 2 * H


def test_core_attention_drops_the_scores_alone():
    kept = selective(gpt(), "core_attn", attention="eager")
    assert kept.score_bytes == 0
    assert kept.tensor_bytes == whole(gpt(), "eager").tensor_bytes


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("moe_act", {"expert_product"}),
        ("mla_up_proj", {"query", "key", "value"}),
        ("shared_experts", {"shared_gate", "shared_up", "shared_product"}),
        (
            "moe",
            {"router_scores", "dispatched", "expert_gate", "expert_up", "expert_product", "expert_output"}
            | {"shared_gate", "shared_up", "shared_product"},
        ),
    ],
)
def test_a_mixture_s_modules_drop_what_lies_inside_them(module: str, names: set[str]):
    assert dropped(describe_config(DEEPSEEK, name="deepseek").layers[-1], (module,), fuses_norms=False) == names


def test_recomputing_an_mlp_does_its_three_products_again():
    asked = job("megatron", recompute=Recompute(mode="selective", modules=("mlp",)))
    part, layout = asked.layers[0], one_layout()
    at = (layout, asked, hardware(8), load_efficiency("megatron"))
    seconds = layer_seconds(part, *at)
    recomputed = selective_recompute_seconds(part, seconds, *at)
    names = [operation.name for operation in again(part.block, ("mlp",), fuses_norms=True)]
    assert names[:2] == ["feed_forward_norm", "feed_forward_gate_projection"]
    assert names[-1] == "feed_forward_down_projection"
    # 6 h f of 2 (h (2 h + 2 x 1,024) + 3 h f) + 2 h s operations: less than the forward pass, more than half of it.
    assert np.all(0.5 * seconds.forward < recomputed)
    assert np.all(recomputed < seconds.forward)


@pytest.mark.parametrize(("modules", "words"), [(("mla_up_proj",), "No layer of llama has"), (("all",), "not one of")])
def test_a_module_that_no_layer_has_is_refused(modules: tuple[str, ...], words: str):
    with pytest.raises(InvalidQuestion, match=words) as caught:
        check_modules(modules, llama())
    assert caught.value.pointer == "/training/recompute/modules"


def test_the_modules_that_spare_most_are_tried_with_and_without_each_other():
    model = describe_config(DEEPSEEK, name="deepseek")
    tried = sets_worth_trying(ByIdentity(model), keeps_scores=False, fuses_norms=True)
    best = ("layernorm", "moe_act", "mla_up_proj")
    assert {names for names in tried if set(names) <= set(best)} == {
        some for number in (1, 2, 3) for some in itertools.combinations(best, number)
    }
    assert all(set(best) < set(names) for names in tried if not set(names) <= set(best) and "moe" not in names)
    assert all(not {"moe", "moe_act"} <= set(names) for names in tried)
    again_in = [tuple(again(block, names, fuses_norms=True) for block in model.layers) for names in tried]
    assert len(set(again_in)) == len(tried)


def test_norms_within_a_dense_layer_s_products_are_no_set_of_their_own():
    dense = sets_worth_trying(ByIdentity(small_llama()), keeps_scores=False, fuses_norms=True)
    assert dense == (("mlp",),)
    scores = sets_worth_trying(ByIdentity(small_llama()), keeps_scores=True, fuses_norms=True)
    assert scores == (("core_attn",), ("mlp",), ("core_attn", "mlp"))
