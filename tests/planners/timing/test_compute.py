import pytest

from planners.memory.job import BlockWeights
from planners.timing.compute import layer_seconds
from planners.timing.efficiency import load_efficiency
from tests.planners.factories import hardware, llama
from tests.planners.training_cases import job, one_layout


def layer(framework: str = "reference", *, layout: dict | None = None, **changes):
    asked = job(framework, sequence_length=4096, global_batch_size=8, **changes)
    part: BlockWeights = asked.layers[0]
    return layer_seconds(part, one_layout(**(layout or {})), asked, hardware(8), load_efficiency(framework))


def test_a_layer_is_slower_than_its_operations_at_the_peak():
    # 2 x 218,103,808 matrix parameters and 4,096 tokens: 1.787e12 operations at 989.4e12 a second.
    seconds = layer()
    matrices = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) * 4096 / 989.4e12
    assert matrices / 0.72 < seconds.forward[0] < matrices / 0.3


def test_tensor_parallelism_divides_the_work():
    whole, half = layer().forward[0], layer(layout={"tensor_parallel": 2}).forward[0]
    assert whole / 2 < half < whole


def test_a_frozen_base_skips_the_weights_gradients():
    full, lora = layer(), layer(method="lora")
    assert lora.forward[0] == pytest.approx(full.forward[0])
    assert lora.backward[0] < 0.8 * full.backward[0]


def test_eager_attention_is_slower_than_flash():
    assert layer(attention="eager").attention[0] > layer().attention[0]


def test_selective_recompute_does_again_what_it_did_not_keep():
    textbook_flash, textbook_eager = layer(), layer(attention="eager")
    assert textbook_flash.selective_recompute[0] == 0.0
    assert textbook_eager.selective_recompute[0] == pytest.approx(textbook_eager.attention[0])
    titan = layer("fsdp2")
    assert 0 < titan.selective_recompute[0] < titan.forward[0] - titan.attention[0]


def test_kernels_that_are_not_fused_move_more():
    assert layer("accelerate", model=llama()).forward[0] > layer("megatron", model=llama()).forward[0]
