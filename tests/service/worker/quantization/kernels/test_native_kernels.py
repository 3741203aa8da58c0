"""The compiled kernels give the bytes of plain torch, for every scheme, dtype and kind of number."""

import math
import subprocess

import pytest
import torch

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels import native_kernels
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.kernels.native_kernels import DTYPES, NoKernels, compiled_kernels
from plimsoll.service.worker.quantization.measuring.error import quantization_error
from plimsoll.service.worker.quantization.schemes.quantized import NonFiniteWeights
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer
from tests.service.worker.quantization.schemes.test_bitsandbytes_parity import ADVERSARIES, gauss
from tests.service.worker.quantization.schemes.test_quantizers import SCHEMES

pytestmark = pytest.mark.xdist_group("compiled-kernels")

# Whole blocks; a part of one at the end; blocks longer than the kernels' piece; a single weight.
SHAPES = ((64, 64), (37, 53), (3, 12_288), (1, 1))


def outcome(weight, scheme, kernels):
    with ChunkWorkers(threads=2, kernels=kernels) as workers:
        try:
            parts = scheme.quantize(weight, workers).parts
        except NonFiniteWeights as error:
            return str(error)
    return {name: part.reshape(-1).view(torch.uint8).tolist() for name, part in parts.items()}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ADVERSARIES)
def test_every_byte_equals_that_of_torch(kind, scheme, kernels):
    made = quantizer(scheme_settings(scheme))
    for dtype in DTYPES:
        for shape in SHAPES:
            weight = ADVERSARIES[kind](shape).to(dtype)
            assert outcome(weight, made, kernels) == outcome(weight, made, None), (dtype, shape)


@pytest.mark.parametrize("kind", ADVERSARIES)
def test_scales_quantized_once_more_equal_those_of_torch(kind, kernels):
    made = quantizer(scheme_settings("nf4", double_quantization=True))
    # 3 x 12,288 / 64 = 576 scales: two blocks of 256 and a part of one.
    for shape in ((3, 12_288), (37, 53)):
        weight = ADVERSARIES[kind](shape).bfloat16()
        assert outcome(weight, made, kernels) == outcome(weight, made, None), shape


@pytest.mark.parametrize("scheme", ["nf4", "int8-group", "int4"])
@pytest.mark.parametrize("block_size", [32, 1024, 2048, 4096])
def test_other_block_sizes_equal_those_of_torch(block_size, scheme, kernels):
    made = quantizer(scheme_settings(scheme, block_size=block_size))
    weight = gauss((6, 8192)).bfloat16()
    assert outcome(weight, made, kernels) == outcome(weight, made, None)


@pytest.mark.parametrize("scheme", ["int8", "fp8", "fp8-channel", "int8-channel", "mxfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_finite_number_of_16_bits_is_coded_as_torch_codes_it(dtype, scheme, kernels):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    weight = every[torch.isfinite(every) & (every.float().abs() < 6e4)]
    # 1.1 and 3e-3 have no exact reciprocal: quotients by a reciprocal alone would be off.
    for factor in (1.0, 1.1, 3e-3):
        made = quantizer(scheme_settings(scheme))
        line = (weight.float() * factor).to(dtype).view(1, -1)
        assert outcome(line, made, kernels) == outcome(line, made, None)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 8191])
def test_a_weight_that_is_not_finite_is_refused(scheme, bad, place, kernels):
    weight = gauss((2, 4096)).bfloat16()
    weight.view(-1)[place] = bad
    with ChunkWorkers(threads=1, kernels=kernels) as workers, pytest.raises(NonFiniteWeights, match="not finite"):
        quantizer(scheme_settings(scheme)).quantize(weight, workers)


@pytest.mark.parametrize("scheme", ["nf4", "fp4", "int8-group"])
def test_errors_equal_those_of_torch(scheme, kernels):
    weight = gauss((300, 129)).mul_(0.02).bfloat16()
    made = quantizer(scheme_settings(scheme, double_quantization=True))
    found = []
    for chosen in (kernels, None):
        with ChunkWorkers(threads=1, kernels=chosen) as workers:
            found.append(quantization_error(weight, made.quantize(weight, workers), made, workers))
    # Sums of 38,700 squares in another order, in fp32.
    assert found[0].error_squares == pytest.approx(found[1].error_squares, rel=1e-4)
    assert found[0].signal_squares == pytest.approx(found[1].signal_squares, rel=1e-4)
    assert found[0].max_abs_error == pytest.approx(found[1].max_abs_error, rel=1e-6)


def test_kernels_read_contiguous_tensors_of_three_dtypes(kernels):
    assert kernels.take(torch.zeros(2, 2))
    assert not kernels.take(torch.zeros(2, 3).T)
    assert not kernels.take(torch.zeros(2, 2, dtype=torch.float64))


def test_without_a_compiler_there_are_no_kernels(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoKernels, match="no C compiler"):
        compiled_kernels()


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cc: what is this' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(NoKernels, match="what is this"):
        compiled_kernels()


def test_a_compiler_that_hangs_is_given_up(monkeypatch, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexec sleep 60\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(native_kernels, "COMPILE_SECONDS", 0.05)
    with pytest.raises(NoKernels, match="cannot be run"):
        compiled_kernels()


def test_a_library_that_is_none_is_refused(monkeypatch, tmp_path):
    fake = tmp_path / "cc"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != "-o" ]; do shift; done\necho nonsense > "$2"\n')
    fake.chmod(0o755)
    assert subprocess.run([fake, "-o", tmp_path / "out"], check=True).returncode == 0
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(NoKernels, match="cannot be loaded"):
        compiled_kernels()
