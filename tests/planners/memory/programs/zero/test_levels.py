"""Layers in the middle of a deep model are gone through once: the same as going through all of them."""

import numpy as np
import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.memory.programs.zero import levels as module
from plimsoll.planners.memory.programs.zero.levels import levels
from plimsoll.planners.memory.programs.zero.tensors import model_tensors
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama, small_mixtral

GATHERING = (1_000_000_000, 50_000_000)


def _tensors(model, method="full"):
    job = training_job(question(model=model, framework="deepspeed", method=method), load_profile("deepspeed"))
    return model_tensors(job.embedding, job.layers, job.head, 1)


@pytest.mark.parametrize(
    "model",
    [
        small_llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=40),
        small_llama(hidden_size=4096, intermediate_size=14336, num_hidden_layers=43),
        small_mixtral(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32),
    ],
)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("is_recomputed", [True, False])
@pytest.mark.parametrize(("has_leaves", "gathering"), [(True, GATHERING), (False, GATHERING), (False, None)])
def test_the_middle_of_a_deep_model_is_as_if_every_layer_were_gone_through(
    model, method, is_recomputed, has_leaves, gathering
):
    told = {
        "is_tied": False,
        "is_recomputed": is_recomputed,
        "has_leaves": has_leaves,
        "has_dropout": False,
        "bias_first": False,
    }
    tensors = _tensors(model, method)
    short = levels(tensors, gathering, **told)
    whole = module._whole(tensors, gathering, **told)
    assert (short.parts, short.turn) == (whole.parts, whole.turn)
    for name in ("layers", "moments", "made", "usual", "first"):
        np.testing.assert_array_equal(getattr(short, name), getattr(whole, name))
    assert [tensor.elements for tensor in short.reduced] == [tensor.elements for tensor in whole.reduced]


def test_a_deep_model_is_cut_short(monkeypatch):
    gone_through = []
    script = module.script
    monkeypatch.setattr(module, "script", lambda model, *a, **k: gone_through.append(model) or script(model, *a, **k))
    tensors = _tensors(small_llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=41))
    told = dict.fromkeys(("is_tied", "is_recomputed", "has_leaves", "has_dropout", "bias_first"), False)
    assert levels(tensors, GATHERING, **told).parts == 43
    assert [len(model.layers) for model in gone_through] == [16]
