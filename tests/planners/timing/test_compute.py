import dataclasses

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.formats.precision import Precision
from plimsoll.planners.jobs.job import BlockWeights
from plimsoll.planners.questions import Recompute
from plimsoll.planners.timing.compute import layer_seconds, selective_recompute_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from tests.planners.factories import hardware, llama
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job, one_layout


def layer(framework: str = "reference", *, layout: dict | None = None, **changes):
    asked = job(framework, sequence_length=4096, global_batch_size=8, **changes)
    part: BlockWeights = asked.layers[0]
    return layer_seconds(part, one_layout(**(layout or {})), asked, hardware(8), load_efficiency(framework))


def recomputed(framework: str = "reference", **changes):
    """Seconds of what selective recomputation does again of a layer."""
    asked = job(framework, sequence_length=4096, global_batch_size=8, **changes)
    at = (one_layout(), asked, hardware(8), load_efficiency(framework))
    return selective_recompute_seconds(asked.layers[0], layer(framework, **changes), *at)[0]


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
    eager, titan = layer("megatron-deepspeed", attention="eager"), layer("fsdp2")
    assert recomputed("megatron-deepspeed") == 0.0
    assert recomputed("megatron-deepspeed", attention="eager") == pytest.approx(eager.attention[0])
    assert 0 < recomputed("fsdp2") < titan.forward[0] - titan.attention[0]


@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("framework", ["megatron", "reference"])
def test_selective_recompute_is_the_module_core_attn_where_modules_have_names(framework: str, attention: str):
    named = Recompute(mode="selective", modules=("core_attn",))
    unnamed = recomputed(framework, attention=attention)
    assert unnamed == recomputed(framework, attention=attention, recompute=named)
    assert unnamed == layer(framework, attention=attention).attention[0]


def test_kernels_that_are_not_fused_move_more():
    assert layer("accelerate", model=llama()).forward[0] > layer("megatron", model=llama()).forward[0]


def test_a_long_product_runs_at_the_card_s_fraction_of_the_peak():
    asked = job("reference", sequence_length=4096, global_batch_size=8)
    efficiency = plain(card={"memory_bandwidth_fraction": 1.0})
    part = asked.layers[0]
    seconds = layer_seconds(part, one_layout(), asked, hardware(8), efficiency)
    matrices = 2 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) * 4096 / (0.5 * 989.4e12)
    # Attention: 2 x 32 heads x (128 + 128) x 2,048.5 positions x 4,096 tokens at half the peak.
    attention = 2 * 32 * 256 * 2048.5 * 4096 / (0.5 * 989.4e12)
    # Element-wise: two norms 2 x 4096 each, two adds 3 x 4096 less the last one's output, which the next layer counts;
    # rotary 4096 + 1024 + 4096, activation 3 x 14336; 2 bytes each.
    moved = (9 * 4096 + 9216 + 3 * 14336) * 4096 * 2 / 3.35e12
    assert seconds.forward[0] == pytest.approx(matrices + attention + moved, rel=1e-6)
    assert seconds.backward[0] == pytest.approx(2 * matrices + 2.5 * attention + 2 * moved, rel=1e-6)


def test_products_that_add_to_gradients_read_and_write_them_each_micro_batch():
    asked = job("reference", sequence_length=4096, global_batch_size=8)
    plainly, adding = (
        layer_seconds(asked.head, one_layout(), asked, hardware(8), plain(adds_gradients_in_products=adds))
        for adds in (False, True)
    )
    # 128,256 x 4,096 sums of 2 bytes there and back at half of 3.35 TB/s.
    assert (adding.backward - plainly.backward)[0] == pytest.approx(2 * 2 * 128256 * 4096 / (0.5 * 3.35e12))
    assert adding.forward[0] == plainly.forward[0]


def test_fp8_speeds_products_up_and_leaves_attention_at_16_bits():
    asked = job("reference", sequence_length=4096, global_batch_size=8)
    low = dataclasses.replace(asked, precision=Precision(name="fp8", compute_format="fp8", compute_bytes=2))
    efficiency = plain(card={"low_precision_peak_fraction": 0.5})
    wide, narrow = (layer_seconds(one.layers[0], one_layout(), one, hardware(8), efficiency) for one in (asked, low))
    assert narrow.attention[0] == wide.attention[0]
    # 1978.9 against 989.4 TFLOP/s: the matrices' 3.612 ms of forward become half.
    assert (wide.forward - narrow.forward)[0] == pytest.approx(1.787e12 / (0.5 * 989.4e12) / 2, rel=1e-3)


@pytest.mark.parametrize("changes", [{"window": 512}, {"is_bidirectional": True}])
def test_eager_attention_multiplies_the_whole_square_whatever_is_hidden(changes):
    asked = job("reference", sequence_length=4096, global_batch_size=8, attention="eager")
    part = asked.layers[0]
    operations = tuple(
        dataclasses.replace(op, **changes) if op.kind is OperationKind.ATTENTION else op for op in part.block.operations
    )
    other = dataclasses.replace(part, block=dataclasses.replace(part.block, operations=operations))
    causal, seen = (layer_seconds(one, one_layout(), asked, hardware(8), plain()).attention[0] for one in (part, other))
    assert seen == causal


def test_eager_scores_cross_the_memory_six_times():
    asked = job("reference", sequence_length=4096, global_batch_size=8, attention="eager")
    seconds = layer_seconds(asked.layers[0], one_layout(), asked, hardware(8), plain()).attention[0]
    # The whole square, whatever the mask hides.
    products = 2 * 32 * 256 * 4096 * 4096 / (0.5 * 989.4e12)
    # 32 heads x 4,096^2 scores of 2 bytes, six times, at half of 3.35 TB/s.
    assert seconds == pytest.approx(products + 6 * 2 * 32 * 4096**2 / (0.5 * 3.35e12))
