"""Tests of the formats that served weights are timed as."""

from __future__ import annotations

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.formats import FORMATS
from plimsoll.planners.serving.formats.operand_formats import operand_formats
from plimsoll.planners.serving.formats.weight_format import WEIGHT_FORMATS


def formats(name: str, gpu: str, *, blocks: bool = False) -> tuple[str, str, float]:
    found = operand_formats(WEIGHT_FORMATS[name], catalogue().gpu(gpu), has_scale_blocks=blocks)
    return dataclasses.astuple(found)


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("bf16", "h100-sxm-80gb", ("bfloat16", "bfloat16", 1)),
        ("fp32", "h100-sxm-80gb", ("bfloat16", "bfloat16", 2)),
        ("fp8", "h100-sxm-80gb", ("fp8", "fp8", 1)),
        # Cards before Ada multiply 8-bit weights in 16 bits.
        ("fp8", "a100-sxm-80gb", ("int8_wo", "int8_wo", 1)),
        # gpt-oss: only its experts are quantized; Blackwell takes their inputs in 8 bits.
        ("mxfp4", "h100-sxm-80gb", ("int4_wo", "w4a16_mxfp4", 1)),
        ("mxfp4", "b200-sxm-180gb", ("int4_wo", "w4a8_mxfp4_mxfp8", 1)),
        ("nvfp4", "b200-sxm-180gb", ("nvfp4", "nvfp4", 1)),
        ("nvfp4", "h100-sxm-80gb", ("int4_wo", "int4_wo", 1)),
        ("int4-experts", "h200-sxm-141gb", ("bfloat16", "int4_wo", 1)),
    ],
)
def test_weights_are_timed_in_the_format_that_the_card_multiplies_them_in(name, gpu, expected):
    assert formats(name, gpu) == expected


def test_scales_by_blocks_have_kernels_of_their_own():
    assert formats("fp8", "h200-sxm-141gb", blocks=True) == ("fp8_block", "fp8_block", 1)
    assert formats("fp8", "a100-sxm-80gb", blocks=True) == ("int8_wo", "int8_wo", 1)


@pytest.mark.parametrize("gpu", ["v100-sxm-32gb", "rtx-4090-24gb", "mi300x-192gb", "b200-sxm-180gb"])
@pytest.mark.parametrize("name", WEIGHT_FORMATS)
def test_every_format_of_weights_is_timed_as_a_measured_one(name, gpu):
    dense, experts, factor = formats(name, gpu)
    assert {dense, experts} <= set(FORMATS)
    assert factor in (1, 2)
