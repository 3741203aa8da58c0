import pytest

from plimsoll.planners.architecture import Split
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.adapters import (
    adapter_weights,
    adapters_by_input,
    check_targets,
    is_matrix,
    learning_operations,
    matrix_features,
    module_name,
    unadapted_note,
)
from plimsoll.planners.questions import Lora
from tests.planners.factories import gpt, llama, small_mixtral
from tests.planners.sharding.models import DEEPSEEK, spec

PHI_3 = {
    "model_type": "phi3",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}


def test_adapters_have_the_module_s_inputs_and_outputs():
    weights = adapter_weights(llama().layers[0].weights, Lora(rank=8, target_modules=("k_proj",)))
    assert [weight.shape for weight in weights] == [(8, 4096), (1024, 8)]


def test_the_factor_that_faces_the_split_is_split():
    column = adapter_weights(llama().layers[0].weights, Lora(target_modules=("q_proj",)))
    row = adapter_weights(llama().layers[0].weights, Lora(target_modules=("down_proj",)))
    assert [weight.split for weight in column] == [Split.REPLICATED, Split.COLUMN]
    assert [weight.split for weight in row] == [Split.ROW, Split.REPLICATED]


def _read(layer, *names: str) -> dict[str, int]:
    return adapters_by_input(layer, adapter_weights(layer.weights, Lora(target_modules=names)))


def test_each_tensor_has_as_many_readers_as_adapters():
    assert _read(llama().layers[0], "q_proj", "v_proj", "o_proj") == {"attention_input": 2, "attention_context": 1}


def test_one_matrix_of_queries_keys_and_values_has_one_adapter():
    layer = describe_config(PHI_3, name="tiny").layers[0]
    assert _read(layer, "qkv_proj", "gate_up_proj") == {"attention_input": 1, "feed_forward_input": 1}


def test_a_router_does_not_learn_beside_attention_s_adapters():
    block, lora = small_mixtral().layers[0], Lora(target_modules=("q_proj", "k_proj"))
    learning = learning_operations(block, block.weights, lora)
    assert "query_projection" in learning
    assert "router" not in learning


def test_conv1d_matrices_are_read_the_right_way_round():
    # GPT-2 holds [in, out]: c_attn is (h, 3h), so its outputs are 3h; the second c_proj is (4h, h).
    weights = {
        module_name(weight) + str(weight.shape): weight for weight in gpt().layers[0].weights if weight.is_linear
    }
    assert matrix_features(weights["c_attn(4096, 12288)"]) == (12288, 4096)
    assert matrix_features(weights["c_proj(16384, 4096)"]) == (4096, 16384)


def test_targets_that_the_model_lacks_are_refused():
    with pytest.raises(InvalidQuestion, match="c_attn") as caught:
        check_targets(gpt(), Lora())
    assert caught.value.pointer == "/training/lora/target_modules"


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_below_one_is_refused(rank: int):
    with pytest.raises(InvalidQuestion, match="rank"):
        check_targets(llama(), Lora(rank=rank))


@pytest.mark.parametrize(
    ("lora", "pointer", "nearest"),
    [
        (Lora(target_modules=("q_proj", "nonsense")), "/training/lora/target_modules/1", "q_proj"),
        (Lora(target_modules=("v_projs",)), "/training/lora/target_modules", "v_proj"),
        (Lora(target_modules=("q_proj", "v_projs")), "/training/lora/target_modules/1", "v_proj"),
        (Lora(modules_to_save=("lm_haed",)), "/training/lora/modules_to_save/0", "lm_head"),
    ],
)
def test_a_name_that_the_model_lacks_is_refused_with_the_nearest(lora: Lora, pointer: str, nearest: str):
    with pytest.raises(InvalidQuestion) as caught:
        check_targets(llama(), lora)
    assert caught.value.pointer == pointer
    assert nearest in caught.value.detail


def test_of_the_usual_names_those_count_that_the_model_has():
    # Phi-3 has o_proj and down_proj of the seven, and its other matrices by names of its own.
    check_targets(describe_config(PHI_3, name="phi"), Lora())


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "self_attn.q_proj", "model.embed_tokens"])
def test_heads_embeddings_and_ends_of_paths_are_names(name: str):
    check_targets(llama(), Lora(target_modules=(name,)))
    check_targets(llama(tie_word_embeddings=True), Lora(target_modules=(name,)))


@pytest.mark.parametrize(
    ("name", "here"),
    [("output_proj", "o_proj"), ("w1", "gate_proj"), ("linear_qkv", "q_proj, k_proj, v_proj"), ("attn.wo", "o_proj")],
)
def test_a_matrix_named_as_other_programs_do_is_answered_with_its_name_here(name: str, here: str):
    for targets in ((name,), ("q_proj", name)):
        with pytest.raises(InvalidQuestion, match=f"Here {name} is {here}\\."):
            check_targets(llama(), Lora(target_modules=targets))


def test_experts_may_share_one_adapter():
    # Experts of 64 x 128: three matrices, of each a factor of 8 by either side.
    experts = [weight for weight in small_mixtral().layers[0].weights if weight.experts > 1]
    count, lora = experts[0].experts, Lora(rank=8, target_modules=("all-linear",))
    own, shared = (
        sum(each.elements for each in adapter_weights(experts, lora, shares_experts=shares)) for shares in (False, True)
    )
    assert shared == 3 * 8 * (64 + 128)
    assert own == count * shared


def test_usual_names_that_a_model_lacks_are_told_with_what_its_matrices_are_called():
    told = unadapted_note(describe_config(PHI_3, name="phi"), Lora())
    assert told is not None
    assert "Adapters stand beside o_proj, down_proj." in told
    assert "qkv_proj, gate_up_proj have none" in told
    assert unadapted_note(llama(), Lora()) is None
    assert unadapted_note(describe_config(PHI_3, name="phi"), Lora(target_modules=("qkv_proj",))) is None


def test_a_router_s_bias_takes_no_adapter():
    weights = [weight for block in spec(DEEPSEEK).layers for weight in block.weights if len(weight.shape) == 1]
    assert weights
    assert not any(is_matrix(weight) for weight in weights)
