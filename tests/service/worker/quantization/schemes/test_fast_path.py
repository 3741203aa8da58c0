"""When compiled kernels are used: worth it, possible, and exact."""

import pytest
import torch

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels.native_kernels import NoKernels
from plimsoll.service.worker.quantization.schemes.fast_path import WORTH_COMPILING_PARAMETERS, kernels_for_job, proven
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer
from tests.service.worker.quantization.schemes.test_quantizers import SCHEMES

CPU = torch.device("cpu")
NF4 = quantizer(scheme_settings("nf4"))


class WrongKernels:
    """Kernels that leave the scales as they find them."""

    def take(self, weight):
        return True

    def quantize_blocks(self, line, *, absmax, packed, **rest):
        absmax.fill_(1.0)
        packed.fill_(0)


def test_a_small_model_is_not_worth_compiling_for():
    kernels, note = kernels_for_job(NF4, parameters=WORTH_COMPILING_PARAMETERS - 1, device=CPU)
    assert kernels is None
    assert "longer than it saves" in note


def test_another_device_runs_torch():
    kernels, note = kernels_for_job(NF4, parameters=10**12, device=torch.device("cuda"))
    assert kernels is None
    assert "cuda" in note


def test_without_a_compiler_torch_runs_and_the_note_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    kernels, note = kernels_for_job(NF4, parameters=WORTH_COMPILING_PARAMETERS, device=CPU)
    assert kernels is None
    assert "no C compiler" in note


@pytest.mark.xdist_group("compiled-kernels")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_exact_kernels_are_used(scheme, kernels):
    assert proven(kernels, quantizer(scheme_settings(scheme))) is kernels


def test_kernels_with_other_bytes_are_refused():
    with pytest.raises(NoKernels, match="other packed"):
        proven(WrongKernels(), NF4)
