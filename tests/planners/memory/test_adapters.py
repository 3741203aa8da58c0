import pytest

from planners.architecture import Split
from planners.errors import InvalidQuestion
from planners.memory.adapters import adapter_weights, check_targets, matrix_features, module_name
from planners.questions import Lora
from tests.planners.factories import gpt, llama


def test_adapters_have_the_module_s_inputs_and_outputs():
    weights = adapter_weights(llama().layers[0], Lora(rank=8, target_modules=("k_proj",)))
    assert [weight.shape for weight in weights] == [(8, 4096), (1024, 8)]


def test_the_factor_that_faces_the_split_is_split():
    column = adapter_weights(llama().layers[0], Lora(target_modules=("q_proj",)))
    row = adapter_weights(llama().layers[0], Lora(target_modules=("down_proj",)))
    assert [weight.split for weight in column] == [Split.REPLICATED, Split.COLUMN]
    assert [weight.split for weight in row] == [Split.ROW, Split.REPLICATED]


def test_conv1d_matrices_are_read_the_right_way_round():
    # GPT-2 holds [in, out]: c_attn is (h, 3h), so its outputs are 3h; the second c_proj is (4h, h).
    weights = {
        module_name(weight) + str(weight.shape): weight for weight in gpt().layers[0].weights if weight.is_linear
    }
    assert matrix_features(weights["c_attn(4096, 12288)"]) == (12288, 4096)
    assert matrix_features(weights["c_proj(16384, 4096)"]) == (4096, 16384)


def test_targets_that_the_model_lacks_are_refused():
    with pytest.raises(InvalidQuestion, match="c_attn") as caught:
        check_targets(gpt().layers, Lora())
    assert caught.value.pointer == "/training/lora/target_modules"


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_below_one_is_refused(rank: int):
    with pytest.raises(InvalidQuestion, match="rank"):
        check_targets(llama().layers, Lora(rank=rank))
