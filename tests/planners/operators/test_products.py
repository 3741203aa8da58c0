import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.products import GRID, products, products_of_engines, roofline
from plimsoll.planners.operators.tables import measured_cards

# Medians over outputs and inputs of 4,096 to 16,384 of the measurements, as parts of the dense peak
# (shared by the tables' own summary: aiconfigurator's tables at 095f58a51, large products).
LARGE = [
    ("h100-sxm-80gb", "vllm", "bfloat16", 2048, 0.84),
    ("h100-sxm-80gb", "vllm", "fp8", 2048, 0.56),
    ("h200-sxm-141gb", "tensorrt-llm", "int4_wo", 4096, 0.87),
    ("b200-sxm-180gb", "vllm", "nvfp4", 4096, 0.44),
    ("rtx-pro-6000-server-96gb", "vllm", "bfloat16", 4096, 0.80),
    ("a100-sxm-80gb", "vllm", "bfloat16", 4096, 0.88),
]
SIZES = np.array([4096, 6144, 8192, 12288, 16384])


def rates(gpu, number_format):
    return gpu.peak_flops_per_second[{"bfloat16": "bf16", "int4_wo": "bf16"}.get(number_format, number_format)]


@pytest.mark.parametrize(("card", "engine", "number_format", "rows", "part"), LARGE)
def test_large_products_reach_the_measured_part_of_the_peak(card, engine, number_format, rows, part):
    gpu = catalogue().gpu(card)
    n, k = np.meshgrid(SIZES, SIZES)
    seconds = products(gpu, engine, number_format).seconds(rows, n, k)

    reached = np.median(2 * rows * n * k / seconds / rates(gpu, number_format))
    assert reached == pytest.approx(part, abs=0.07)


# Floor and part of the bandwidth of small products of one row, from the same summary.
@pytest.mark.parametrize(
    ("card", "floor", "part"),
    [
        ("h100-sxm-80gb", 3e-6, 0.85),
        ("h200-sxm-141gb", 3.3e-6, 0.83),
        ("a100-sxm-80gb", 5e-6, 0.75),
        ("b200-sxm-180gb", 2.8e-6, 0.78),
    ],
)
def test_one_row_takes_a_floor_and_the_weights_reading(card, floor, part):
    gpu = catalogue().gpu(card)
    outputs = np.array([4096, 8192, 16384])
    seconds = products(gpu, "vllm", "bfloat16").seconds(1, outputs, 8192)
    expected = floor + 2 * outputs * 8192 / (part * gpu.memory_bytes_per_second)

    assert np.abs(seconds / expected - 1).max() < 0.2


@pytest.mark.parametrize("card", measured_cards())
@pytest.mark.parametrize("number_format", ["bfloat16", "fp8", "nvfp4", "int4_wo"])
def test_more_rows_outputs_or_inputs_never_take_less(card, number_format):
    gpu = catalogue().gpu(card)
    random = np.random.default_rng(7)
    sizes = [np.exp2(random.uniform(axis[0], axis[-1] - 0.5, 400)) for axis in GRID.knots]
    priced = products(gpu, "vllm", number_format)
    before = priced.seconds(*sizes)
    for axis in GRID.grows:
        larger = [size * (1.3 if place == axis else 1) for place, size in enumerate(sizes)]
        assert (priced.seconds(*larger) >= before * (1 - 1e-9)).all()
    assert (before >= roofline(gpu, number_format)(*sizes)).all()


def test_a_card_that_nobody_measured_is_as_far_from_its_roofline_as_its_relative():
    own, relative = catalogue().gpu("rtx-4090-24gb"), catalogue().gpu("l40s-48gb")
    sizes = (16, 4096, 4096)
    ours = products(own, "vllm", "bfloat16").seconds(*sizes) / roofline(own, "bfloat16")(*sizes)
    theirs = products(relative, "vllm", "bfloat16").seconds(*sizes) / roofline(relative, "bfloat16")(*sizes)

    assert ours == pytest.approx(theirs)


def test_an_unknown_format_is_an_error():
    with pytest.raises(KeyError):
        products(catalogue().gpu("h100-sxm-80gb"), "vllm", "int3")


@pytest.mark.parametrize("number_format", ["bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo", "int8_wo"])
def test_twice_as_many_rows_take_no_more_than_twice_as_long_where_nothing_was_measured(number_format):
    rows = np.exp2(np.arange(0, 14))
    for gpu in (
        catalogue().gpu(name) for name in ("rtx-3090", "a30", "h100-pcie-80gb", "b200-sxm-180gb", "v100-sxm-16gb")
    ):
        priced = products(gpu, "vllm", number_format)
        if priced.evidence.is_own_card and priced.evidence.variant == number_format:
            continue
        seconds = priced.seconds(rows, 10240, 8192)
        assert (seconds[1:] <= 2 * seconds[:-1] * (1 + 1e-9)).all()


def test_weights_in_4_bits_have_another_cards_kernel_for_such_stand_in_before_the_cards_own_in_16_bits():
    evidence = products(catalogue().gpu("b200-sxm-180gb"), "vllm", "int4_wo").evidence
    assert (evidence.card, evidence.engine, evidence.variant) == ("h200-sxm-141gb", "tensorrt-llm", "int4_wo")
    assert not evidence.is_own_card


# Microseconds of vLLM 0.24's CuTe DSL kernel on one B200, the activations' quantization counted.
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "microseconds"),
    [(4, 8192, 8192, 12.8), (64, 16384, 8192, 17.0), (1, 65536, 8192, 56.7), (32, 8192, 16384, 18.7)],
)
def test_few_rows_in_nvfp4_take_what_was_measured(rows, outputs, inputs, microseconds):
    priced = products(catalogue().gpu("b200-sxm-180gb"), "vllm", "nvfp4")
    assert priced.seconds(rows, outputs, inputs) * 1e6 == pytest.approx(microseconds, rel=0.15)


def test_engines_without_a_format_say_nothing_of_it():
    # TensorRT-LLM alone has static fp8 on B200; on A100, which multiplies no 8 bits, 16-bit products stand in.
    b200, a100 = (catalogue().gpu(name) for name in ("b200-sxm-180gb", "a100-sxm-80gb"))
    assert {one.evidence.engine for one in products_of_engines(b200, ("fp8_static",))} == {"tensorrt-llm"}
    assert [one.evidence.variant for one in products_of_engines(a100, ("fp8",))] == ["bfloat16"]
    assert len(products_of_engines(b200, ("bfloat16",))) == 3
