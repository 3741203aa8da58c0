"""A small DeepSeek of dense layers below and mixtures above, sharded over two ranks."""

import numpy as np
import pytest

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.items import Items
from plimsoll.planners.memory.step_context import step_context
from plimsoll.planners.memory.unlike_layers import UnlikeKind, only_where, stands_alone, unlike_kinds
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import memory


def step(*, dense=2, layers=4, layout=None):
    model = spec(DEEPSEEK, num_hidden_layers=layers, first_k_dense_replace=dense)
    asked = question(model=model, sequence_length=32, global_batch_size=2, gpus=2)
    job = training_job(asked, load_profile("fsdp2"))
    layouts = candidates_from_rows([{"data_parallel": 2, "zero_stage": 3, **(layout or {})}])
    rows = all_stages(layouts, job.model, 2)
    return step_context(layouts, rows, job, holdings(layouts, rows, job), activity(layouts, rows, job))


def test_each_kind_is_seen_at_its_highest_and_lowest_layers_the_last_layer_s_first():
    layers = [kind.layers.ravel().tolist() for kind in unlike_kinds(step(dense=2, layers=8))]
    assert layers == [[7, 6, 3, 2], [1, 0]]


def test_around_the_lowest_mixture_lie_a_dense_layer_and_a_mixture():
    mixtures, dense = unlike_kinds(step())
    around = mixtures.step.neighbours
    # Layers 3 and 2: below them lie a mixture and a dense layer, above them nothing and a mixture.
    assert around.ahead_buffer.ravel().tolist() == [
        2 * mixtures.step.held.layer_padded.item(),
        2 * dense.step.held.layer_padded.item(),
    ]
    assert around.above_padded.ravel().tolist() == [0, mixtures.step.held.layer_padded.item()]


def test_what_lies_below_is_kept_as_it_is_and_not_as_the_mean_of_all():
    mixtures, dense = unlike_kinds(step(dense=1, layers=3))
    # Below layer 2 lie a mixture and a dense layer, below layer 1 a dense one.
    one, other = dense.layer_bytes.item(), mixtures.layer_bytes.item()
    assert mixtures.step.active.layer.ravel().tolist() == [(one + other) / 2, one]
    assert mixtures.of_highest.active.layer.item() == other


@pytest.mark.parametrize(
    ("dense", "layout"),
    [
        (0, {}),  # all layers alike
        (2, {"zero_stage": 2, "shard_group": 2}),  # all are gathered at once
        (2, {"pipeline_parallel": 2, "data_parallel": 1}),
        (2, {"recompute": 2, "full_layers": 1}),
    ],
)
def test_elsewhere_no_kind_stands_alone(dense, layout):
    context = step(dense=dense, layout=layout)
    assert not stands_alone(context).any()
    assert unlike_kinds(context) == []


def test_a_kind_that_stands_nowhere_has_no_highest_layer():
    nothing = np.zeros(1)
    nowhere = UnlikeKind(step=step(dense=0), layers=nothing, layer_bytes=nothing, is_apart=np.zeros(1, dtype=bool))
    with pytest.raises(ValueError, match="between"):
        _ = nowhere.of_highest


def test_where_a_moment_does_not_apply_only_what_is_always_held_is_left():
    five = {name: np.full(2, 5.0) for name in ("parameters", "gradients", "optimizer", "activations", "communication")}
    items = only_where(Items(phase=0, logits=np.zeros(1), **five), np.array([True, False]))
    assert (items.parameters + items.gradients + items.activations + items.communication).tolist() == [20, 5]


def test_one_mixture_above_dense_layers_is_reduced_beside_a_dense_layer_gathered_ahead():
    model = spec(DEEPSEEK, num_hidden_layers=4, first_k_dense_replace=3, n_routed_experts=64)
    layout = {"data_parallel": 2, "zero_stage": 3}
    events = memory("fsdp2", model=model, sequence_length=8, global_batch_size=2, layout=layout).stages[0].moments
    (top,) = (step for step in events if step.layer == 3)
    dense, mixture = (sum(weight.elements for weight in block.weights) for block in model.layers)
    # Of few tokens its own reduction is the worst: the fp32 buffer, and a dense layer's weights in 16 bits.
    assert top.items.communication == 4 * mixture + 2 * dense
