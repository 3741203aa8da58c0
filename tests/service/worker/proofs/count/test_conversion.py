"""Checkpoints as transformers loads them."""

import pytest

from plimsoll.service.worker.proofs.count.conversion import loaded
from plimsoll.service.worker.proofs.count.module import whole_module
from tests.planners.families.small_mixtures import MIXTURE_VARIANTS

EXPERTS = "model.layers.0.block_sparse_moe.experts"


@pytest.fixture(scope="module")
def mixtral():
    return whole_module({"model_type": "mixtral", **MIXTURE_VARIANTS["mixtral"][0]})


def test_experts_are_stacked_and_their_matrices_joined(mixtral):
    checkpoint = {f"{EXPERTS}.{expert}.{matrix}.weight": (88, 64) for expert in range(4) for matrix in ("w1", "w3")}
    result = loaded(checkpoint, mixtral)
    assert dict(result.shapes) == {"model.layers.0.mlp.experts.gate_up_proj": (4, 176, 64)}
    assert result.converted == 8


def test_a_name_of_the_module_s_own_is_not_converted(mixtral):
    result = loaded({"lm_head.weight": (131, 64)}, mixtral)
    assert (dict(result.shapes), result.converted) == ({"lm_head.weight": (131, 64)}, 0)


def test_a_name_that_the_module_lacks_keeps_it(mixtral):
    assert dict(loaded({"model.layers.0.eyes.weight": (3,)}, mixtral).shapes) == {"model.layers.0.eyes.weight": (3,)}


def test_experts_of_several_shapes_are_left_apart(mixtral):
    checkpoint = {f"{EXPERTS}.{expert}.w2.weight": (64, 88 + expert) for expert in range(4)}
    assert dict(loaded(checkpoint, mixtral).shapes) == checkpoint
