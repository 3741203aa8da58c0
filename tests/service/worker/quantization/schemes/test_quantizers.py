"""Every scheme: exact bytes, small errors, and tensors that must fail."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.error import quantization_error
from plimsoll.service.worker.quantization.schemes.quantized import NonFiniteWeights
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

SCHEMES = ("int8", "int8-channel", "int8-group", "nf4", "fp4", "fp8", "fp8-channel", "int4", "mxfp4")
# Relative Frobenius error on normal numbers. int8 has steps of amax/127 and so an
# error of amax/(127 sqrt(12)): amax of 262,144 numbers is 4.4 to 5.5 sigma, that of
# a row of 1,024 about 3.2 and of a group of 128 about 2.7 (mean square 2.86).
# e4m3 has a step of 1/8 of a binade: 1/8 x 1/sqrt(12) over the mean binade = 0.0265.
# NF4 in blocks of 64: 0.092, as bitsandbytes' own codes give.
GAUSSIAN_ERRORS = {"int8": (0.0100, 0.0125), "int8-channel": (0.0068, 0.0080), "int8-group": (0.0062, 0.0068),
                   "nf4": (0.0910, 0.0930), "fp8": (0.0260, 0.0270), "fp8-channel": (0.0260, 0.0270)}  # fmt: skip


@pytest.fixture(scope="module")
def workers():
    with ChunkWorkers(threads=2) as running:
        yield running


def gauss(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).mul_(0.02).to(dtype)


def restored(scheme, quantized, chunk_elements=4096):
    restore = scheme.restore(quantized, ChunkWorkers())
    spans = scheme.spans(quantized.shape, chunk_elements)
    return torch.cat([restore(start, stop) for start, stop in spans]).view(quantized.shape)


@given(scheme=st.sampled_from(SCHEMES), rows=st.integers(1, 40), columns=st.integers(1, 300), nested=st.booleans())
def test_bytes_equal_the_planners(scheme, rows, columns, nested):
    settings = scheme_settings(scheme, double_quantization=nested)
    with ChunkWorkers(threads=1) as workers:
        quantized = quantizer(settings).quantize(gauss(rows, columns), workers)
    assert quantized.bytes == settings.tensor_bytes((rows, columns))


@pytest.mark.parametrize("scheme", GAUSSIAN_ERRORS)
def test_normal_weights_have_the_known_error(scheme, workers):
    weight = gauss(256, 1024)
    made = quantizer(scheme_settings(scheme))
    error = quantization_error(weight, made.quantize(weight, workers), made, workers)
    low, high = GAUSSIAN_ERRORS[scheme]
    assert low < error.relative_error < high


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (33, 129)])
def test_no_weight_is_further_off_than_half_the_widest_step(scheme, shape, workers):
    weight = gauss(*shape, dtype=torch.float32)
    made = quantizer(scheme_settings(scheme))
    error = quantization_error(weight, made.quantize(weight, workers), made, workers)
    # The widest is mxfp4's, whose 6 stands for all up to 8: a quarter of the largest weight.
    assert error.max_abs_error <= weight.abs().max().item() / 4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zeros_come_back_as_zeros(scheme, workers):
    made = quantizer(scheme_settings(scheme))
    quantized = made.quantize(torch.zeros(5, 130), workers)
    assert torch.equal(restored(made, quantized), torch.zeros(5, 130))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 700, -1])
def test_a_weight_that_is_not_finite_is_refused(scheme, bad, place, workers):
    weight = gauss(7, 131)
    weight.view(-1)[place] = bad
    with pytest.raises(NonFiniteWeights, match="not finite"):
        quantizer(scheme_settings(scheme)).quantize(weight, workers)


def test_llm_int8_refuses_what_fp16_cannot_hold(workers):
    # Half a step above 65,504 rounds to infinity in fp16.
    fits, too_large = torch.tensor([[65_504.0]]), torch.tensor([[65_520.0]])
    quantizer(scheme_settings("int8-channel")).quantize(fits, workers)
    with pytest.raises(NonFiniteWeights, match="fp16"):
        quantizer(scheme_settings("int8-channel")).quantize(too_large, workers)


def test_int4_refuses_a_scale_that_fp16_cannot_hold(workers):
    with pytest.raises(NonFiniteWeights, match="scales"):
        quantizer(scheme_settings("int4")).quantize(torch.tensor([[-1e6, 1e6]]), workers)


def test_int8_scale_is_twice_the_largest_over_254(workers):
    quantized = quantizer(scheme_settings("int8")).quantize(torch.tensor([[-127.0, 1.5, 2.5, 0.49]]), workers)
    # scale = 254 / 254 = 1; half-way points go to the even step.
    assert quantized.parts["scale"].item() == 1.0
    assert quantized.parts["codes"].tolist() == [-127, 2, 2, 0]


def test_int8_groups_have_their_own_scales(workers):
    weight = torch.cat([torch.full((1, 128), 1.27), torch.full((1, 128), -127.0), torch.tensor([[25.4]])], dim=1)
    quantized = quantizer(scheme_settings("int8-group")).quantize(weight, workers)
    assert quantized.parts["scale"].flatten().tolist() == pytest.approx([0.01, 1.0, 0.2])
    assert quantized.parts["codes"].tolist() == [127] * 128 + [-127] * 128 + [127]


def test_fp8_reaches_448_at_the_largest_weight(workers):
    quantized = quantizer(scheme_settings("fp8")).quantize(torch.tensor([[-448.0, 2.0, 100.0]]), workers)
    # scale 1; 100 lies half-way between 96 = 1.100b x 2^6 and 104 = 1.101b x 2^6 and goes to the even one.
    assert quantized.parts["scale"].item() == 1.0
    assert quantized.parts["codes"].float().tolist() == [-448.0, 2.0, 96.0]


def test_int4_gives_zero_a_code_where_all_weights_are_positive(workers):
    made = quantizer(scheme_settings("int4"))
    quantized = made.quantize(torch.tensor([[3.0, 2.0, 1.0]]), workers)
    # Range 0 to 3 and not 1 to 3: steps of 0.2, codes 15, 10, 5.
    assert quantized.parts["codes"].tolist() == [0xFA, 0x50]
    assert restored(made, quantized)[0].tolist() == pytest.approx([3.0, 2.0, 1.0], rel=1e-3)


def test_int4_stores_the_code_of_zero(workers):
    weight = torch.linspace(-1.0, 2.0, 16).repeat(8).view(1, 128)
    quantized = quantizer(scheme_settings("int4")).quantize(weight, workers)
    # Range 3 over 15 steps: 0.2 (as fp16), and zero is code 5, in the high half of its byte.
    assert quantized.parts["scale"].item() == pytest.approx(0.2, rel=1e-3)
    assert quantized.parts["zero_point"].tolist() == [5 << 4]
    assert quantized.parts["codes"][:8].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]


def test_mxfp4_rounds_half_way_points_to_the_even_code(workers):
    # The largest, 6, has exponent 2, so the scale is 2^0 and the elements are E2M1 as they stand.
    weights = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, 0.0]
    weight = torch.tensor([weights + [0.0] * 16])
    made = quantizer(scheme_settings("mxfp4"))
    quantized = made.quantize(weight, workers)
    rounded = [6.0, 0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 0.0, -1.0, -1.0, -2.0, -2.0, -4.0, -4.0, 0.0]
    assert quantized.parts["exponent"].item() == 127
    assert restored(made, quantized)[0, :16].tolist() == rounded


@pytest.mark.parametrize(("largest", "exponent"), [(7.9, 127), (8.0, 128), (3.99, 126), (1e-45, 0), (3e38, 252)])
def test_mxfp4_scale_is_the_power_of_two_of_the_largest_less_two(largest, exponent, workers):
    # floor(log2(amax)) - 2 + 127, kept at 0 or more; 3e38 is 1.76 x 2^127.
    quantized = quantizer(scheme_settings("mxfp4")).quantize(torch.tensor([[largest, 0.0]]), workers)
    assert quantized.parts["exponent"].item() == exponent


@pytest.mark.parametrize("scheme", SCHEMES)
def test_neither_threads_nor_chunks_change_a_byte(scheme):
    weight = gauss(1500, 260)
    parts = []
    for threads in (1, 2):
        with ChunkWorkers(threads=threads) as workers:
            workers.chunk_elements = 2 ** (18 - threads)
            parts.append(quantizer(scheme_settings(scheme)).quantize(weight, workers).parts)
    assert all(torch.equal(parts[0][name], parts[1][name]) for name in parts[0])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("magnitude", [1e-45, 1e-43, 1e-39, 1e30, 1e38, 3.4e38])
def test_what_is_written_is_finite_at_both_ends_of_fp32(scheme, nested, magnitude, workers):
    weight = torch.linspace(-1, 1, 16 * 256).view(16, 256) * magnitude
    made = quantizer(scheme_settings(scheme, double_quantization=nested))
    try:
        quantized = made.quantize(weight, workers)
    except NonFiniteWeights:
        assert magnitude >= 1e30
    else:
        assert torch.isfinite(restored(made, quantized)).all()


@pytest.mark.parametrize("scheme", ["int8", "int8-group"])
def test_int8_refuses_a_range_that_fp32_cannot_hold(scheme, workers):
    # Twice 1.8e38 exceeds 3.4e38, the largest number of fp32.
    with pytest.raises(NonFiniteWeights, match="scales that exceed their format"):
        quantizer(scheme_settings(scheme)).quantize(torch.full((2, 128), 1.8e38), workers)


def test_double_quantization_refuses_scales_whose_sum_fp32_cannot_hold(workers):
    # The mean of two scales of 3e38 passes through their sum.
    with pytest.raises(NonFiniteWeights, match="scales that exceed their format"):
        quantizer(scheme_settings("nf4", double_quantization=True)).quantize(torch.full((2, 64), 3e38), workers)


@pytest.mark.parametrize("scheme", ["fp8", "fp8-channel"])
def test_fp8_has_no_code_for_what_its_scale_cannot_tell_from_zero(scheme, workers):
    # 1e-44 / 448 is below the least subnormal number of fp32, 1.4e-45.
    weight = torch.tensor([[1e-44, 0.0, -1e-44, 0.0]])
    quantized = quantizer(scheme_settings(scheme)).quantize(weight, workers)
    assert quantized.parts["scale"].view(-1).tolist() == [0.0]
    assert torch.equal(quantized.parts["codes"].view(-1).float().abs(), torch.zeros(4))
