import dataclasses

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.calibration.microbenchmarks import (
    attention_seconds,
    matmul_seconds,
    memory_seconds,
    one_all_reduce_seconds,
)
from plimsoll.planners.timing.compute import layer_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from tests.planners.factories import hardware
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job, one_layout

GPU = dataclasses.replace(
    load_efficiency("reference", "h100-sxm-80gb").gpu,
    matmul_peak_fraction=0.647,
    low_precision_peak_fraction=0.587,
    measured_sizes=False,
    attention_peak_fraction=0.318,
)


def test_a_product_runs_at_its_part_of_the_peak():
    # 2 x 8192^3 operations at 989.4 TFLOP/s x 0.647.
    rate = 989.4e12 * 0.647
    assert matmul_seconds(8192, 8192, 8192, "bf16", hardware(8), GPU) == pytest.approx(2 * 8192**3 / rate)


def test_a_low_precision_product_has_a_fraction_of_its_own():
    rate = 1978.9e12 * 0.587
    assert matmul_seconds(8192, 8192, 8192, "fp8", hardware(8), GPU) == pytest.approx(2 * 8192**3 / rate)


def test_a_short_product_is_as_much_slower_as_it_was_measured():
    # cuBLAS on H100 takes 3 to 6 times as long an operation with 64 rows, which wait for the weights, as with 8,192.
    measured = dataclasses.replace(GPU, measured_sizes=True)
    long, short = (matmul_seconds(rows, 8192, 8192, "bf16", hardware(8), measured) for rows in (8192, 64))
    assert long == pytest.approx(matmul_seconds(8192, 8192, 8192, "bf16", hardware(8), GPU))
    assert 3.0 < short * 128 / long < 6.0


def test_memory_moves_at_its_part_of_the_rate():
    # 2.68 GB at 3.35 TB/s x 0.80.
    assert memory_seconds(2.68e9, hardware(8), GPU) == pytest.approx(1e-3)


def test_attention_runs_at_its_kernel_s_part_of_the_peak():
    assert attention_seconds(989.4e12 * 0.318, "bf16", hardware(8), GPU) == pytest.approx(1.0)


def test_an_all_reduce_within_a_node_goes_at_the_link_s_rate():
    # 2 x 7/8 of 100 GB at 450 GB/s x 0.75, and latencies of less than a millisecond.
    seconds = one_all_reduce_seconds(100e9, 8, hardware(8), load_efficiency("reference", "h100-sxm-80gb"))
    assert seconds == pytest.approx(2 * 7 / 8 * 100e9 / (450e9 * 0.75), rel=1e-2)


def test_a_layer_s_products_are_those_of_its_matrices():
    asked = job("reference", sequence_length=4096, global_batch_size=8)
    without_traffic = plain(card={"measured_sizes": True}, traffic_multiple=1e-12)
    seconds = layer_seconds(asked.layers[0], one_layout(), asked, hardware(8), without_traffic)
    matrices = [op.matmul_shape for op in asked.layers[0].block.operations if op.kind is OperationKind.MATMUL]
    own = sum(matmul_seconds(4096, *shape, "bf16", hardware(8), without_traffic.gpu) for shape in matrices)
    assert seconds.forward[0] - seconds.attention[0] == pytest.approx(own)
