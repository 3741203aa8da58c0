"""The error of a layer's output for random activations."""

import pytest
import torch

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.layer_output import sampled_error
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer


def output_error(weight, scheme="int8"):
    made = quantizer(scheme_settings(scheme))
    with ChunkWorkers(threads=1) as workers:
        return sampled_error(weight, made.quantize(weight, workers), made, workers).output_relative_error


def test_weights_that_come_back_exactly_have_exact_outputs():
    # Whole numbers up to 127: the scale is 1.
    weight = torch.arange(-127, 129).clamp(max=127).float().view(2, 128)
    assert output_error(weight) == 0.0


def test_the_error_of_normal_weights_is_about_that_of_the_weights():
    # Independent errors add up as the weights do: NF4's 0.092 (Dettmers et al. 2023's code in blocks of 64).
    weight = torch.randn(512, 1024, generator=torch.Generator().manual_seed(2))
    assert output_error(weight, "nf4") == pytest.approx(0.092, rel=0.05)


def test_an_error_in_a_feature_with_large_activations_weighs_more():
    # Feature 500 is the one in a thousand whose activations are 20 times as large.
    weight = torch.ones(4, 1000)
    weight[:, 3] = 127.0
    near, far = weight.clone(), weight.clone()
    near[:, 500], far[:, 501] = 1.49, 1.49
    assert output_error(near) > 5 * output_error(far)


@pytest.mark.parametrize("scheme", ["nf4", "int8-channel", "int4"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 5000), (1100, 1024)])
def test_any_shape_is_sampled(shape, scheme):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert 0 <= output_error(weight, scheme) < 0.5
