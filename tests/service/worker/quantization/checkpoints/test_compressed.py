"""Checkpoints in compressed-tensors' form: what stands in them, and that its own loader reads it."""

import json

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.checkpoints.compressed import (
    COMPRESSED_SCHEMES,
    CompressedCheckpoint,
)
from plimsoll.service.worker.quantization.checkpoints.sources import SourceTensor
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer

NAME = "layer.weight"
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def settings(scheme):
    return scheme_settings(scheme, block_size=32 if scheme in ("int8-group", "int4") else None)


def source(weight, name=NAME, reason=None):
    return SourceTensor(name=name, dtype=DTYPES[weight.dtype], shape=tuple(weight.shape), weight=None, reason=reason)


def matrix(rows=24, columns=96):
    """Return rows of many magnitudes, one of zeros and one with an outlier."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))
    weight *= 10.0 ** torch.arange(-3, 3).repeat_interleave(-(-rows // 6))[:rows].unsqueeze(1)
    weight[1:2] = 0
    weight[2:3, 7] = 300
    return weight.bfloat16()


def written(weight, scheme):
    """Return the stored tensors and the weights that the service restores from its own parts."""
    made = quantizer(settings(scheme))
    with ChunkWorkers(threads=1) as workers:
        quantized = made.quantize(weight, workers)
        restore = made.restore(quantized, workers)
        restored = torch.cat([restore(*span) for span in made.spans(quantized.shape, 2**20)]).view(weight.shape)
    return CompressedCheckpoint(settings(scheme)).stored_parts(source(weight), quantized), restored


def read(stored, scheme):
    """Return what compressed-tensors makes of it, by the config that is written beside."""
    config = CompressedCheckpoint(settings(scheme)).quantization_config([], dtype="bfloat16")
    group = QuantizationScheme.model_validate(config["config_groups"]["group_0"])
    parts = {name.removeprefix("layer."): part for name, part in stored.items()}
    return BaseCompressor.get_value_from_registry(config["format"]).decompress(parts, group)["weight"]


@pytest.mark.parametrize("scheme", ["fp8", "fp8-channel", "int8", "int8-group"])
def test_compressed_tensors_reads_the_very_weights(scheme):
    stored, restored = written(matrix(), scheme)
    assert torch.equal(read(stored, scheme), restored)


def test_compressed_tensors_reads_int4_in_its_scales_dtype():
    stored, restored = written(matrix(), "int4")
    assert torch.equal(read(stored, "int4"), restored.half())


def test_compressed_tensors_reads_mxfp4_in_bf16():
    stored, restored = written(matrix(), "mxfp4")
    assert torch.equal(read(stored, "mxfp4").bfloat16(), restored.bfloat16())


@pytest.mark.parametrize("rows", [9, 15, 16, 17])
def test_zero_points_of_any_number_of_rows_are_read(rows):
    weight = matrix(24)[:rows] + 0.25
    stored, restored = written(weight, "int4")
    assert torch.equal(read(stored, "int4"), restored.half())


def test_zero_points_of_eight_rows_share_a_word_from_its_lowest_bits_on():
    # Row r spans from -r to 15 - r, whose scale is 1 and whose code of zero is r.
    weight = torch.stack([torch.linspace(-row, 15 - row, 32).round() for row in range(9)])
    stored, _ = written(weight, "int4")
    assert stored[f"{NAME}_zero_point"].tolist() == [[0x76543210], [8]]


def test_codes_of_int4_lie_in_a_word_from_its_lowest_bits_on():
    weight = torch.arange(32).remainder(16).float().view(1, 32)
    stored, _ = written(weight, "int4")
    low, high = 0x76543210, 0xFEDCBA98 - 2**32
    assert stored[f"{NAME}_packed"].tolist() == [[low, high, low, high]]


@pytest.mark.parametrize("scheme", COMPRESSED_SCHEMES)
@pytest.mark.parametrize("shape", [(24, 96), (9, 32), (1, 64)])
def test_what_is_planned_is_what_is_stored(scheme, shape):
    weight = matrix(*shape)
    stored, _ = written(weight, scheme)
    planned = CompressedCheckpoint(settings(scheme)).planned_parts(source(weight))
    assert {part.name: part.bytes for part in planned} == {name: part.nbytes for name, part in stored.items()}
    assert {part.name: part.shape for part in planned} == {name: tuple(part.shape) for name, part in stored.items()}


@pytest.mark.parametrize("scheme", COMPRESSED_SCHEMES)
def test_the_stored_bytes_are_the_schemes_and_a_packed_matrix_shape(scheme):
    weight = matrix(24, 96)
    stored, _ = written(weight, scheme)
    # compressed-tensors keeps two int64 beside packed integers; 24 rows fill three words of zero points.
    beside = 16 if scheme in ("int8-group", "int4") else 0
    assert sum(part.nbytes for part in stored.values()) == settings(scheme).tensor_bytes((24, 96)) + beside


@pytest.mark.parametrize("scheme", COMPRESSED_SCHEMES)
def test_the_config_is_one_that_compressed_tensors_takes(scheme):
    config = CompressedCheckpoint(settings(scheme)).quantization_config([], dtype="bfloat16")
    taken = QuantizationConfig.model_validate(json.loads(json.dumps(config)))
    weights = taken.config_groups["group_0"].weights
    expected = COMPRESSED_SCHEMES[scheme]
    assert (weights.num_bits, weights.type, weights.strategy) == (expected.bits, expected.type, expected.strategy)
    assert weights.group_size == settings(scheme).block_size


def test_linear_layers_left_alone_are_ignored_and_the_tied_head_too():
    tensors = [
        source(torch.ones(2, 2), "a.weight"),
        source(torch.ones(2, 2), "b.weight", reason="expert router"),
        source(torch.ones(2), "c.bias", reason="bias"),
    ]
    config = CompressedCheckpoint(settings("fp8")).quantization_config(tensors, dtype="float32")
    assert config["ignore"] == ["b", "lm_head"]


@pytest.mark.parametrize(("scheme", "is_noted"), [("fp8", True), ("int8", True), ("int4", True), ("mxfp4", False)])
def test_what_engines_do_otherwise_is_noted(scheme, is_noted):
    assert bool(CompressedCheckpoint(settings(scheme)).notes) == is_noted
