"""Unpacking 4-bit weights: read the codes and scales, write the matrix."""

import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.questions import Lora
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.unpacking import unpacking_seconds
from tests.planners.factories import hardware, question, small_llama

# The matrices of a layer of small_llama: 36,992 elements less two norms of 64.
ELEMENTS = 36_864


def _seconds(method, *, double_quantization=False):
    asked = question(model=small_llama(), gpus=1, method=method, lora=Lora(double_quantization=double_quantization))
    job = training_job(asked, load_profile("accelerate"))
    efficiency = load_efficiency("accelerate", "test-80gb")
    seconds = unpacking_seconds(job.layers[0], candidates_from_rows([{}]), job, hardware(1), efficiency)[0]
    return seconds * 3.35e12 * efficiency.memory_bandwidth_fraction


def test_half_a_byte_and_a_scale_for_64_are_read_and_two_bytes_written():
    # 36,864 x (0.5 + 4 / 64 + 2) bytes.
    assert _seconds("qlora") == pytest.approx(ELEMENTS * 2.5625)


def test_doubly_quantized_scales_are_smaller():
    assert _seconds("qlora", double_quantization=True) < _seconds("qlora")


def test_a_base_in_sixteen_bits_is_not_unpacked():
    assert _seconds("lora") == 0
