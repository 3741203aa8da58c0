"""NF4, FP4, double quantization and LLM.int8 against bitsandbytes itself, bit for bit."""

import bitsandbytes
import bitsandbytes.functional
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.schemes.double_quantization import dynamic_map
from plimsoll.service.worker.quantization.schemes.four_bit_codes import FP4, NF4
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# One element, one block, one over, odd ends, odd rows, several chunks with a part block at the end.
SHAPES = ((1,), (64,), (65,), (37, 53), (256, 128), (1031, 257))


def gauss(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def half_zeros(shape):
    values = gauss(shape)
    values.view(-1)[: values.numel() // 2] = 0
    return values


def one_outlier(shape):
    values = gauss(shape) * 1e-3
    values.view(-1)[values.numel() // 2] = 6e4
    return values


def ties(shape):
    """Numbers at the thresholds themselves, and one fp32 step to either side, in blocks whose scale is 1."""
    at = torch.tensor(NF4.thresholds + FP4.thresholds)
    near = torch.cat([at, torch.nextafter(at, torch.tensor(2.0)), torch.nextafter(at, torch.tensor(-2.0))])
    picked = torch.randint(0, near.numel(), shape, generator=torch.Generator().manual_seed(3))
    values = near[picked]
    values.view(-1)[::32] = 1.0
    return values


ADVERSARIES = {
    "gauss": gauss,
    "zeros": torch.zeros,
    "half_zeros": half_zeros,
    "subnormal": lambda shape: gauss(shape) * 1e-41,
    "below_the_floor": lambda shape: gauss(shape) * 1e-39,
    "huge": lambda shape: gauss(shape) * 1e4,
    "one_outlier": one_outlier,
    "constant": lambda shape: torch.full(shape, -0.3),
    "ties": ties,
}


def quantized(weight, scheme, **settings):
    with ChunkWorkers(threads=2) as workers:
        return quantizer(scheme_settings(scheme, **settings)).quantize(weight, workers)


def assert_equals_bitsandbytes(weight, scheme, *, double_quantization, block_size=64):
    packed, state = bitsandbytes.functional.quantize_4bit(
        weight, blocksize=block_size, compress_statistics=double_quantization, quant_type=scheme
    )
    parts = quantized(weight, scheme, double_quantization=double_quantization, block_size=block_size).parts
    assert torch.equal(parts["packed"], packed.view(-1))
    assert torch.equal(parts["absmax"], state.absmax)
    if double_quantization:
        assert torch.equal(parts["nested_absmax"], state.state2.absmax)
        assert torch.equal(parts["nested_offset"], state.offset)


@pytest.mark.parametrize("double_quantization", [False, True], ids=["plain", "double"])
@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ADVERSARIES)
def test_four_bit_parts_equal_those_of_bitsandbytes(kind, dtype, scheme, double_quantization):
    for shape in SHAPES:
        weight = ADVERSARIES[kind](shape).to(dtype)
        assert_equals_bitsandbytes(weight, scheme, double_quantization=double_quantization)


@pytest.mark.parametrize("block_size", [32, 128, 4096])
def test_other_block_sizes_equal_those_of_bitsandbytes(block_size):
    weight = gauss((300, 129)).bfloat16()
    assert_equals_bitsandbytes(weight, "nf4", double_quantization=True, block_size=block_size)


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 40),
    columns=st.integers(1, 200),
    exponent=st.integers(-40, 4),
    dtype=st.sampled_from(DTYPES),
    scheme=st.sampled_from(["nf4", "fp4"]),
    double_quantization=st.booleans(),
)
def test_any_random_matrix_equals_bitsandbytes(seed, rows, columns, exponent, dtype, scheme, double_quantization):
    numbers = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight = (numbers * 10.0**exponent).to(dtype)
    assert_equals_bitsandbytes(weight, scheme, double_quantization=double_quantization)


@pytest.mark.parametrize("scheme", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_restored_weights_equal_those_of_bitsandbytes(dtype, scheme):
    weight = gauss((1030, 256)).to(dtype)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, compress_statistics=True, quant_type=scheme)
    ours = quantizer(scheme_settings(scheme, double_quantization=True))
    with ChunkWorkers(threads=1) as workers:
        parts = ours.quantize(weight, workers)
    restore = ours.restore(parts, workers)
    restored = torch.cat([restore(start, stop) for start, stop in ours.spans(parts.shape, 2**14)])
    expected = bitsandbytes.functional.dequantize_4bit(packed, state)
    assert torch.equal(restored.to(dtype).view(weight.shape), expected)


def test_the_dynamic_map_is_that_of_bitsandbytes():
    assert torch.equal(dynamic_map(torch.device("cpu")), bitsandbytes.functional.create_dynamic_map())


@pytest.mark.parametrize("book", [NF4, FP4], ids=lambda book: book.name)
def test_the_code_books_are_those_of_bitsandbytes(book):
    expected = bitsandbytes.functional.get_4bit_type(book.name, device="cpu")
    assert torch.equal(torch.tensor(book.values), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in ADVERSARIES if kind != "huge"])
def test_int8_rows_equal_those_of_llm_int8(kind, dtype):
    for shape in ((1, 1), (37, 53), (1031, 257)):
        weight = ADVERSARIES[kind](shape).to(dtype)
        expected = bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")
        parts = quantized(weight, "int8-channel").parts
        assert torch.equal(parts["codes"], expected.CB)
        assert torch.equal(parts["absmax"], expected.SCB)


def test_a_row_of_zeros_equals_that_of_llm_int8():
    weight = gauss((4, 64))
    weight[2] = 0
    expected = bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")
    assert torch.equal(quantized(weight, "int8-channel").parts["codes"], expected.CB)
