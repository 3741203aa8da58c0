"""mxfp4 and fp8 against what torchao made of the same matrix (golden/make_torchao_golden.py)."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from planners.quantization import scheme_settings
from service.worker.quantization.chunk_workers import ChunkWorkers
from service.worker.quantization.schemes import quantizer
from tests.service.worker.quantization.small_llama import numbers

GOLDEN = json.loads((Path(__file__).parent / "golden" / "torchao.json").read_text())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scheme", ["mxfp4", "fp8", "fp8-channel"])
def test_parts_equal_those_of_torchao(scheme, dtype):
    weight = numbers("golden", (96, 256)).to(dtype)
    with ChunkWorkers(threads=1) as workers:
        parts = quantizer(scheme_settings(scheme)).quantize(weight, workers).parts
    found = {
        name: hashlib.sha256(part.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, part in parts.items()
    }
    assert found == GOLDEN[str(dtype)][scheme]
