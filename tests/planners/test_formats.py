"""Number formats and the bytes of tensors stored in them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.formats import (
    FORMATS,
    STORAGE_SCHEMES,
    bytes_per_parameter,
    number_format,
    storage_scheme,
    tensor_bytes,
)
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownName
from plimsoll.planners.ground.units import GIB

NESTING = ("nf4", "fp4")


def test_fp16_reaches_65504_and_needs_loss_scaling():
    fp16 = number_format("fp16")
    # (2 - 2^-10) x 2^15; the least normal is 2^-14, the least subnormal 2^-24.
    assert (fp16.largest, fp16.smallest_normal, fp16.smallest_subnormal) == (65_504.0, 2.0**-14, 2.0**-24)
    assert (fp16.exponent_bits, fp16.fraction_bits) == (5, 10)
    assert fp16.needs_loss_scaling
    assert "65,536" in fp16.advice


def test_fp16_has_about_three_decimal_digits_and_bf16_about_two():
    # 11 and 8 significant bits: 11 x 0.30103 = 3.31, 8 x 0.30103 = 2.41.
    assert number_format("fp16").decimal_digits == pytest.approx(3.311, abs=1e-3)
    assert number_format("bf16").decimal_digits == pytest.approx(2.408, abs=1e-3)


def test_bf16_has_the_range_of_fp32_and_seven_fraction_bits():
    bf16 = number_format("bf16")
    assert bf16.largest == pytest.approx(3.39e38, rel=1e-3)
    assert (bf16.exponent_bits, bf16.fraction_bits) == (8, 7)
    assert bf16.smallest_normal == 2.0**-126
    assert not bf16.needs_loss_scaling


def test_fp32_limits_are_those_of_ieee_754():
    fp32 = number_format("fp32")
    # Table 3.5 of IEEE 754-2019: (2 - 2^-23) x 2^127, 2^-126, 2^-149.
    assert fp32.largest == (2 - 2.0**-23) * 2.0**127
    assert (fp32.smallest_normal, fp32.smallest_subnormal) == (2.0**-126, 2.0**-149)


def test_tf32_has_19_significant_bits_and_occupies_four_bytes():
    tf32 = number_format("tf32")
    assert (tf32.bits, tf32.stored_bits) == (19, 32)
    assert tensor_bytes("tf32", (1000,)) == 4000


@pytest.mark.parametrize(
    ("name", "largest", "smallest_normal", "smallest_subnormal"),
    [
        # Micikevicius et al. 2022, table 1.
        ("fp8-e4m3", 448.0, 2.0**-6, 2.0**-9),
        ("fp8-e5m2", 57_344.0, 2.0**-14, 2.0**-16),
        # OCP Microscaling 1.0, table 5.
        ("mxfp4", 6.0, 1.0, 0.5),
        ("nvfp4", 6.0, 1.0, 0.5),
        # bitsandbytes' FP4: 12 over 12, 2 over 12, 0.0625 over 12.
        ("fp4", 1.0, 1 / 6, 1 / 192),
    ],
)
def test_small_floats_have_their_published_limits(name, largest, smallest_normal, smallest_subnormal):
    entry = number_format(name)
    assert entry.largest == largest
    assert entry.smallest_normal == pytest.approx(smallest_normal, rel=1e-15)
    assert entry.smallest_subnormal == pytest.approx(smallest_subnormal, rel=1e-15)


def test_every_format_names_its_source_and_advice():
    assert set(FORMATS) == {
        "fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8", "int4", "nf4", "fp4", "mxfp4", "nvfp4",
    }  # fmt: skip
    assert all(entry.source and entry.advice for entry in FORMATS.values())
    assert [entry.name for entry in FORMATS.values() if entry.needs_loss_scaling] == ["fp16"]


def test_a_table_of_formats_cannot_be_changed():
    with pytest.raises(TypeError):
        FORMATS["fp32"] = FORMATS["fp16"]


def test_six_billion_parameters_in_fp16_are_11_18_gib():
    # 6e9 x 2 / 1024^3 = 11.1759
    assert tensor_bytes("fp16", (6_000_000_000,)) / GIB == pytest.approx(11.18, abs=0.005)


def test_int8_is_half_of_fp16_plus_one_scale():
    assert tensor_bytes("int8", (6_000_000_000,)) == 6_000_000_000 + 4


def test_nf4_is_half_a_byte_plus_a_scale_for_each_64():
    # 6e9 / 2 = 3e9 of codes; 6e9 / 64 = 93.75e6 scales of 4 bytes = 375e6.
    assert tensor_bytes("nf4", (6_000_000_000,)) == 3_375_000_000
    assert bytes_per_parameter("nf4") == 0.5625


def test_double_quantization_leaves_4_127_bits():
    # 4 + 8/64 + 32/(64 x 256) = 4.126953 bits (Dettmers et al. 2023, section 3: 0.127 bits of constants).
    assert 8 * bytes_per_parameter("nf4", double_quantization=True) == 4.126953125
    # 64 x 256 = 16,384 elements: 8,192 + 256 + 4 + 4 bytes.
    assert tensor_bytes("nf4", (16_384,), double_quantization=True) == 8_456


@pytest.mark.parametrize(
    ("elements", "plain", "nested"),
    [
        (1, 1 + 4, 1 + 1 + 4 + 4),
        (63, 32 + 4, 32 + 1 + 4 + 4),
        (64, 32 + 4, 32 + 1 + 4 + 4),
        (65, 33 + 8, 33 + 2 + 4 + 4),
        (64 * 256 + 1, 8_193 + 4 * 257, 8_193 + 257 + 8 + 4),
    ],
)
def test_nf4_counts_part_bytes_and_part_blocks_whole(elements, plain, nested):
    assert tensor_bytes("nf4", (elements,)) == plain
    assert tensor_bytes("nf4", (elements,), double_quantization=True) == nested


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("fp32", 4_000),
        ("bf16", 2_000),
        ("fp8", 1_000 + 4),
        ("int8-channel", 1_000 + 4 * 5),
        ("int8-group", 1_000 + 4 * 5 * 2),  # 200 columns are two groups of 128
        ("int4", 500 + 2 * 10 + 5),  # ten groups: an fp16 scale and half a byte of zero point each
        ("mxfp4", 500 + 5 * 7),  # 200 columns are seven groups of 32
        ("nvfp4", 500 + 5 * 13 + 4),  # thirteen groups of 16, one scale for the tensor
    ],
)
def test_rows_of_200_have_their_scales_counted_row_by_row(scheme, expected):
    assert tensor_bytes(scheme, (5, 200)) == expected


@pytest.mark.parametrize(
    ("scheme", "bits"),
    [("int8-group", 8.25), ("int4", 4.15625), ("mxfp4", 4.25), ("nvfp4", 4.5), ("fp4", 4.5), ("int8-channel", 8.0)],
)
def test_bits_per_parameter_are_the_rules_of_thumb(scheme, bits):
    # 8 + 32/128; 4 + (16 + 4)/128; 4 + 8/32; 4 + 8/16; 4 + 32/64; 8 and a vanishing scale a row.
    assert 8 * bytes_per_parameter(scheme) == bits


def test_larger_blocks_have_fewer_scales():
    # 4096 elements in blocks of 128: 2,048 + 32 x 4.
    assert tensor_bytes("nf4", (4096,), block_size=128) == 2_176
    assert bytes_per_parameter("nf4", block_size=4096) == 0.5 + 4 / 4096


@pytest.mark.parametrize("block_size", [0, 16, 31, 33, 96, 8192, -64])
def test_a_block_size_that_bitsandbytes_lacks_is_refused(block_size):
    with pytest.raises(InvalidQuestion, match="are not possible") as caught:
        tensor_bytes("nf4", (4096,), block_size=block_size)
    assert caught.value.pointer == "/block_size"


def test_a_fixed_block_size_is_refused_any_other():
    with pytest.raises(InvalidQuestion, match="by definition"):
        tensor_bytes("mxfp4", (64, 64), block_size=64)
    assert tensor_bytes("mxfp4", (64, 64), block_size=32) == tensor_bytes("mxfp4", (64, 64))


@pytest.mark.parametrize("scheme", [name for name in STORAGE_SCHEMES if name not in NESTING])
def test_only_bitsandbytes_four_bit_schemes_nest_their_scales(scheme):
    with pytest.raises(InvalidQuestion, match="no double quantization"):
        tensor_bytes(scheme, (64, 64), double_quantization=True)
    with pytest.raises(InvalidQuestion, match="no double quantization"):
        bytes_per_parameter(scheme, double_quantization=True)


def test_an_unknown_name_lists_the_near_ones():
    with pytest.raises(UnknownName, match="nf4"):
        storage_scheme("nf44")
    with pytest.raises(UnknownName, match="bf16"):
        number_format("bfp16")


@pytest.mark.parametrize("scheme", STORAGE_SCHEMES)
def test_an_empty_tensor_takes_nothing(scheme):
    assert tensor_bytes(scheme, (0, 4096)) == 0


@given(st.sampled_from(sorted(STORAGE_SCHEMES)), st.integers(1, 300), st.integers(1, 300))
def test_bytes_are_never_fewer_than_the_elements_and_grow_with_rows(scheme, rows, columns):
    size = tensor_bytes(scheme, (rows, columns))
    assert size >= math.ceil(rows * columns * storage_scheme(scheme).element_bits / 8)
    assert tensor_bytes(scheme, (rows + 1, columns)) >= size


@given(st.sampled_from(sorted(STORAGE_SCHEMES)))
def test_a_large_tensor_comes_to_the_rule_of_thumb(scheme):
    elements = 2**20 * 2**16
    assert tensor_bytes(scheme, (2**20, 2**16)) / elements == pytest.approx(bytes_per_parameter(scheme), rel=1e-4)
