"""How each stack deals layers to pipeline stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.ground.errors import ImpossibleLayout
from plimsoll.planners.jobs.pipeline_layouts import BEHIND_FIRST, named
from plimsoll.planners.sharding.stages import (
    behind_the_first,
    last_but_one_first,
    stage_weights,
)
from tests.planners.factories import llama
from tests.planners.sharding.models import LLAMA, TIED_LLAMA, spec


@pytest.mark.parametrize(
    ("layers", "stages", "shares"), [(32, 3, (11, 11, 10)), (33, 2, (17, 16)), (10, 4, (2, 3, 3, 2))]
)
def test_vllm_gives_what_is_left_to_the_stages_before_the_last(layers, stages, shares):
    assert last_but_one_first(layers, stages) == shares


def test_what_is_left_goes_behind_the_first_stage_unless_a_stack_says():
    assert behind_the_first(10, 4) == (2, 3, 3, 2)


@pytest.mark.parametrize(("layers", "stages"), [(10, 4), (32, 8), (61, 16), (3, 3)])
def test_stages_without_a_stacks_own_rule_are_those_of_the_memory_plan(layers: int, stages: int):
    division = named(BEHIND_FIRST).division(llama(num_hidden_layers=layers), stages, 1)
    assert division is not None
    assert division.layers == behind_the_first(layers, stages)


@given(layers=st.integers(2, 130), stages=st.integers(1, 16))
def test_every_layer_is_dealt_once(layers, stages):
    for deal in (last_but_one_first, behind_the_first):
        shares = deal(layers, stages)
        assert (len(shares), sum(shares)) == (stages, layers)


def test_uneven_stages_are_legal():
    first, second = stage_weights(spec(LLAMA), (1, 2))
    assert (first.layers, second.layers) == (range(1), range(1, 3))
    names = [name for name, _ in second.named()]
    assert names[0] == "model.layers.1.self_attn.q_proj.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]


def test_a_stage_may_have_no_layer_at_all():
    first, _ = stage_weights(spec(LLAMA), (0, 3))
    assert [name for name, _ in first.named()] == ["model.embed_tokens.weight"]


def test_a_tied_embedding_is_repeated_on_another_last_stage_only():
    assert stage_weights(spec(TIED_LLAMA), (3,))[0].tied_copy == ()
    first, middle, last = stage_weights(spec(TIED_LLAMA), (1, 1, 1))
    assert (first.tied_copy, middle.tied_copy) == ((), ())
    assert [weight.name for weight in last.tied_copy] == ["model.embed_tokens.weight"]
    assert stage_weights(spec(LLAMA), (1, 2))[1].tied_copy == ()


def test_kinds_count_the_stages_own_layers():
    (stage,) = stage_weights(spec(LLAMA), (3,))
    assert sum(weight.elements * count for weight, count in stage.kinds()) == spec(LLAMA).parameters


@pytest.mark.parametrize("layers", [(1, 1), (2, 2), (4, -1)])
def test_stages_that_are_not_the_models_layers_are_refused(layers):
    with pytest.raises(ImpossibleLayout, match="are not 3 layers"):
        stage_weights(spec(LLAMA), layers)
