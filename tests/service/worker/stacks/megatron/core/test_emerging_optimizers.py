"""What stands in for Emerging-Optimizers, held to numbers that its release 0.1.0 returned on a CPU."""

import sys

import pytest
import torch

from plimsoll.service.worker.stacks.megatron.core import emerging_optimizers
from plimsoll.service.worker.stacks.megatron.core.emerging_optimizers import (
    OrthogonalizedOptimizer,
    get_muon_scale_factor,
    named_where_missing,
    newton_schulz_tp,
)

MATRIX = [[-2.0, -1.0, 2.0], [0.0, 0.0, 2.0], [-1.0, -2.0, -1.0], [2.0, 0.0, 0.0], [2.0, -1.0, -2.0]]
# Of `newton_schulz_tp` with five quintic steps in bf16 (torch 2.13).
ORTHOGONAL = [
    [-0.35546875, -0.45703125, 0.51953125],
    [0.236328125, -0.1650390625, 0.67578125],
    [-0.291015625, -0.75, -0.291015625],
    [0.67578125, -0.1650390625, 0.236328125],
    [0.51953125, -0.45703125, -0.35546875],
]
# Of three updates by `OrthogonalizedOptimizer`; the gradients are sines of the matrix, of it and one, of it and two.
UPDATED = [
    [-1.6479324102401733, -0.8156870007514954, 1.765010952949524],
    [-0.27749237418174744, -0.08552997559309006, 1.760995864868164],
    [-0.9324806928634644, -1.5637717247009277, -0.9324806928634644],
    [1.760995864868164, -0.08552997559309006, -0.27749237418174744],
    [1.765010952949524, -0.8156870007514954, -1.6479324102401733],
]


def orthogonal(matrix):
    return newton_schulz_tp(matrix, steps=5, coefficient_type="quintic", tp_group=None, mode="duplicated")


def test_its_products_are_the_package_s():
    torch.testing.assert_close(orthogonal(torch.tensor(MATRIX)), torch.tensor(ORTHOGONAL), rtol=0.01, atol=0.004)


def test_its_updates_are_the_package_s():
    parameter = torch.nn.Parameter(torch.tensor(MATRIX))
    optimizer = OrthogonalizedOptimizer(
        [parameter],
        lr=0.1,
        momentum_beta=0.9,
        use_nesterov=False,
        weight_decay=0.01,
        weight_decay_method="decoupled",
        fp32_matmul_prec="medium",
        scaled_orthogonalize_fn=lambda update: orthogonal(update) * get_muon_scale_factor(5, 3, mode="spectral"),
    )
    for step in range(3):
        parameter.grad = (torch.tensor(MATRIX) + step).sin()
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor(UPDATED), rtol=0.01, atol=0.01)


def test_blocks_that_ranks_would_gather_are_not_stood_in_for():
    with pytest.raises(NotImplementedError, match="blockwise"):
        newton_schulz_tp(torch.tensor(MATRIX), steps=5, partition_dim=0)


def test_the_names_are_there_while_megatron_core_is_imported_and_gone_after():
    with named_where_missing():
        assert hasattr(sys.modules["emerging_optimizers.orthogonalized_optimizers"], "OrthogonalizedOptimizer")
    assert "emerging_optimizers" not in sys.modules


def test_an_installed_package_is_not_stood_in_for(monkeypatch):
    monkeypatch.setattr(emerging_optimizers.importlib.util, "find_spec", lambda _name: object())
    with named_where_missing():
        assert "emerging_optimizers" not in sys.modules
