"""How FSDP gathers and reduces units; lengths of `test_sharded.py`, and of a small Mixtral with four experts."""

import pytest

from plimsoll.planners.memory.programs.sharded_units import Gathering, Units
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import BACKWARD, REDUCTION
from tests.planners.factories import small_mixtral
from tests.planners.memory.programs.test_sharded import EMBEDDING, HEAD, LAYER, step
from tests.planners.memory.steps.small_layers import unit
from tests.planners.training_cases import events, held, taken

# Four experts of 3 x 64 x 128; queries to output 64 x (64 + 32 + 32 + 64), a router of 4 x 64 and two norms.
EXPERTS, BESIDE = 4 * 24_576, 12_288 + 256 + 128
# Weights of 8 bytes in a buffer of 10; whole gradients of 8 that are reduced in 20 bytes into a shard of 5.
UNIT = unit(
    weights=8, buffer=10, gradients=8, reduced=20, output=5, shard=5, last_gradient=2, summed=16, last_matrix_gradient=6
)
WHEN = {
    "by_layer": True,
    "for_the_step": False,
    "copies_out": True,
    "adds_up": False,
    "waits_for_replicas": False,
    "sends": False,
    "casts_shards": False,
}


def sizes(act, **when):
    """Return what is held after each event of some calls."""
    recorded = RecordedStep()
    act(recorded, Units(recorded, Gathering(**{**WHEN, **when})))
    return [event.total for event in recorded.events]


def gather_twice(recorded, units):
    for _ in range(2):
        units.close_forward(units.open_forward(UNIT))


def test_a_buffer_stays_until_the_next_unit_is_copied_out():
    # Buffer and weights; the weights go; a second buffer, its weights, and the first buffer goes.
    assert sizes(gather_twice) == [10, 18, 10, 20, 28, 18, 10]


def test_views_of_a_buffer_are_the_buffer():
    assert sizes(gather_twice, copies_out=False) == [10, 20, 10]


def test_what_is_gathered_once_stays():
    assert sizes(gather_twice, by_layer=False, copies_out=False) == [8, 16]


def test_experts_are_copied_out_beside_the_next_layer_s_buffer():
    def act(recorded, units):
        units.gather_ahead(UNIT.buffer, UNIT.buffer)
        units.gather_ahead(UNIT.buffer, UNIT.buffer)
        units.open_experts(UNIT, recorded.carry("communication", "weights"))

    # Two layers' buffers with their experts'; the weights of one layer's experts, whose buffer goes.
    assert sizes(act) == [10, 20, 30, 40, 48, 38]


def reduce_once(recorded, units):
    gradients = recorded.take("gradients", "whole", UNIT.gradients)
    whole, summed = recorded.carry("communication", "weights"), recorded.carry("communication", "sums")
    units.close_backward(UNIT, whole, gradients, summed)
    units.finish()


def test_the_last_of_the_gradients_outlives_the_copy_into_the_buffer():
    # Whole gradients; the buffer beside them; all but the last are let go of; the shard beside it, and without it.
    assert sizes(reduce_once) == [8, 28, 22, 27, 25, 5]


def test_a_shard_that_is_added_to_another_or_sent_to_the_host_does_not_stay():
    assert sizes(reduce_once, adds_up=True) == sizes(reduce_once, sends=True) == [8, 28, 22, 27, 25, 20, 0]


def test_what_is_summed_over_replicas_stays_until_that_is_done():
    assert sizes(reduce_once, adds_up=True, waits_for_replicas=True) == [8, 28, 22, 27, 25, 5, 0]


def test_micro_batches_of_a_pipeline_sum_in_the_reduction_s_width_one_weight_after_the_other():
    # Whole gradients, the last matrix's when all others have been cast, that beside the sum of 16, the sum.
    assert sizes(reduce_once, for_the_step=True) == [8, 6, 22, 16]


def test_a_gradient_that_waits_on_the_host_is_on_the_device_while_it_is_reduced():
    found = step("fsdp2", layout={"shard_group": 2, "offload": 2})
    outputs = [event for event in found if event.name == "outputs of reductions" and event.change > 0]
    # Of the head's gradient the matrix, in 16 bits, and the shard that its reduction makes, 4 bytes over 2 ranks; of
    # the embedding likewise.
    assert held(outputs[0], "gradients") == 2 * EMBEDDING + 4 * HEAD / 2
    assert held(outputs[-1], "gradients") == 2 * EMBEDDING + 4 * EMBEDDING / 2


def test_a_root_s_shard_is_made_once_its_whole_gradients_are_let_go_of():
    found = step("torchtune", training={"precision": "bf16"})
    # All in 16 bits: the buffer; of the layers the shards, over 2 ranks; the matrix copied last.
    reduced = [event for event in found if event.name == "reduction" and event.layer is None and event.change > 0][-1]
    assert held(reduced, "communication") == 2 * (EMBEDDING + HEAD)
    assert held(reduced, "gradients") == 4 * 2 * LAYER / 2 + 2 * (EMBEDDING + HEAD)


def mixture_step(model=None, **layout):
    return events(
        "fsdp2",
        model=model or small_mixtral(),
        sequence_length=32,
        global_batch_size=4,
        gpus=4,
        layout={"data_parallel": 4, "shard_group": 4, "zero_stage": 3, **layout},
    )


def test_gradients_of_all_experts_stand_together():
    product = taken(mixture_step(), "experts' first product", layer=1)
    # The top layer, with nothing above: its experts' gradients in 16 bits, and the head's shard of four.
    assert held(product, "gradients") == 2 * EXPERTS + 4 * HEAD / 4


def test_experts_that_others_do_not_have_are_reduced_before_the_layer_they_are_in():
    found = mixture_step(expert_parallel=2)
    # Half of the experts on a rank, over two ranks. The lowest layer: its own weights, the embedding ahead, and the
    # buffer of what the layer above has beside its experts.
    lowest = taken(found, "last matrix", layer=0)
    assert held(lowest, "communication") == 2 * (EXPERTS // 2 + BESIDE) + 2 * EMBEDDING + 4 * BESIDE
    # As the top layer's experts are copied out of their buffer the next layer is gathered ahead, the head reduced.
    whole = EXPERTS // 2 + BESIDE
    copied = taken(found, "weights", layer=1, phase=BACKWARD)
    assert held(copied, "communication") == 2 * whole + 2 * whole + 2 * EXPERTS // 2 + 4 * HEAD
    # Then its experts' weights are gone, and their buffer is there.
    reduced = next(e for e in found if (e.name, e.layer, e.change) == ("reduction", 0, 4 * EXPERTS // 2))
    assert held(reduced, "communication") == 2 * BESIDE + 2 * EMBEDDING + 4 * EXPERTS // 2


def test_the_next_layer_s_experts_stay_in_their_buffer_as_a_layer_s_own_are_copied_out():
    found = mixture_step(expert_parallel=2)
    # The top layer's experts are reduced beside its other weights, the next layer's in their buffers and the head.
    reduced = next(e for e in found if (e.name, e.layer, e.change) == ("reduction", 1, 4 * EXPERTS // 2))
    assert held(reduced, "communication") == 2 * BESIDE + 2 * (EXPERTS // 2 + BESIDE) + 4 * EXPERTS // 2


def beside_shared():
    """Return a mixture like `small_mixtral`, with an expert of 128 features beside those that are chosen."""
    sizes = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "num_experts": 4}
    return small_mixtral(model_type="qwen2_moe", **sizes)


def experts_run_again(found):
    """Return what is gathered beside a second run of the top layer's experts; nothing where no buffer is left."""
    again = [e for e in found if (e.name, e.layer) == ("experts gathered again", 1) and e.change > 0]
    return [held(event, "communication") for event in again]


def test_experts_that_a_pipeline_keeps_gathered_are_not_gathered_for_a_second_run():
    found = events(
        "fsdp2",
        model=beside_shared(),
        sequence_length=32,
        global_batch_size=8,
        gpus=8,
        layout={"data_parallel": 4, "zero_stage": 3, "expert_parallel": 2, "pipeline_parallel": 2, "recompute": 2},
    )
    assert [event for event in found if event.name == "experts run again" and event.change > 0]
    assert not [event for event in found if event.name == "experts gathered again"]


def test_experts_that_a_second_run_gathers_leave_their_buffer_where_several_ranks_share_them():
    found = mixture_step(beside_shared(), expert_parallel=2, recompute=2)
    # This layer's weights, the buffers of the next one and of its experts, and of half of its own experts over two
    # ranks, and the head that is reduced. Beside the experts are the shared one, 3 x 64 x 128, the biases of query, key
    # and value, and a score of one row, of which four ranks gather four.
    beside = BESIDE + 24_576 + 64 + 32 + 32 + 4 * 64
    own = 2 * (EXPERTS // 2 + beside)
    next_ahead = 2 * beside + 2 * EXPERTS // 2
    assert experts_run_again(found) == [own + next_ahead + 2 * EXPERTS // 2 + 4 * HEAD]


@pytest.mark.parametrize(("recompute", "ranks"), [(0, 2), (2, 4)])
def test_elsewhere_they_leave_none(recompute, ranks):
    assert experts_run_again(mixture_step(beside_shared(), expert_parallel=ranks, recompute=recompute)) == []


def test_without_a_shared_expert_a_second_run_finds_its_experts_gathered():
    assert experts_run_again(mixture_step(expert_parallel=2, recompute=2)) == []


def test_the_last_unit_is_reduced_when_all_else_is_done():
    found = step("fsdp2")
    last = [event for event in found if event.phase == REDUCTION and event.item == "communication"]
    assert [event.change for event in last] == [-4 * EMBEDDING]
