import numpy as np
import pytest

from plimsoll.planners.questions import Overlap
from plimsoll.planners.timing.pace import host_seconds_per_layer, micro_batch_pace, stage_steps
from plimsoll.planners.timing.traffic import Groups
from tests.planners.factories import hardware, llama, small_mixtral
from tests.planners.timing.efficiencies import plain
from tests.planners.training_cases import job, one_layout

# A vocabulary so small that the head takes nothing beside a layer.
MODEL = llama(vocab_size=128)


def pace(
    efficiency, *, framework="reference", micro_batches=8, model=MODEL, attention="flash", overlap=None, **degrees
):
    one = one_layout(**degrees)
    batch = micro_batches * degrees.get("data_parallel", 1) * degrees.get("micro_batch_size", 1)
    asked = job(
        framework,
        model=model,
        sequence_length=4096,
        global_batch_size=batch,
        attention=attention,
        layout={"overlap": overlap},
    )
    groups = Groups(one, asked, hardware(8), efficiency)
    return micro_batch_pace(one, asked, hardware(8), efficiency, groups)


def test_the_host_needs_more_for_collectives_and_for_a_pipeline_beside_them():
    efficiency = plain(host_layer_seconds=1e-3, host_collective_seconds=1e-4, host_rank_seconds=2e-3)

    def seconds(**degrees):
        part = job(model=MODEL).layers[0]
        return host_seconds_per_layer(part, one_layout(**degrees), hardware(8), efficiency)[0]

    assert seconds() == pytest.approx(1e-3)
    # Eight collectives a layer and micro-batch.
    assert seconds(tensor_parallel=4) == pytest.approx(1e-3 + 8e-4)
    # Sixteen ranks span two nodes of eight.
    assert seconds(tensor_parallel=16) == pytest.approx(1e-3 + 16e-4)
    # Within one node a pipeline adds nothing; between two each of the four ranks does.
    assert seconds(tensor_parallel=4, pipeline_parallel=2) == pytest.approx(1e-3 + 8e-4)
    assert seconds(tensor_parallel=4, pipeline_parallel=4) == pytest.approx(1e-3 + 8e-4 + 4 * 2e-3)
    assert seconds(pipeline_parallel=16) == pytest.approx(1e-3)


def test_a_layer_is_as_slow_as_its_host():
    # Half a second a layer is more than any kernel here: 32 layers, a third forward and two thirds backward.
    slow = pace(plain(host_layer_seconds=0.5))
    fast = pace(plain())
    waiting = 32 * 0.5 - (fast.forward + fast.backward - slow_accumulation(fast))[0]
    assert (slow.forward - fast.forward)[0] == pytest.approx(waiting / 3, rel=0.02)
    assert (slow.forward + slow.backward)[0] == pytest.approx(16.0, rel=0.02)


def slow_accumulation(fast):
    # Reading 2-byte gradients of 6.98e9 parameters, reading and writing their sum, at half of 3.35 TB/s: 25 ms.
    return np.full_like(fast.forward, 3 * 2 * 6.98e9 / (0.5 * 3.35e12))


def test_a_host_that_is_faster_than_the_kernels_costs_nothing():
    assert pace(plain(host_layer_seconds=1e-6)).forward[0] == pace(plain()).forward[0]


def test_gradients_are_added_up_once_a_micro_batch_where_a_rank_keeps_them_whole():
    alone, several = pace(plain(), micro_batches=1), pace(plain(), micro_batches=2)
    parameters = MODEL.parameters
    # The textbook's gradients have 2 bytes: two reads and a write at half of 3.35 TB/s.
    assert (several.backward - alone.backward)[0] == pytest.approx(6 * parameters / (0.5 * 3.35e12))
    sharded = {"data_parallel": 8, "zero_stage": 2}
    assert (
        pace(plain(), micro_batches=2, **sharded).backward[0] == pace(plain(), micro_batches=1, **sharded).backward[0]
    )


def test_a_wider_sum_moves_more_and_a_product_that_adds_moves_nothing():
    # Megatron-DeepSpeed adds bf16 gradients to fp32 sums, 2 + 2 x 4 bytes; the textbook bf16 to bf16, 3 x 2.
    def added(framework, **stack):
        return (
            pace(plain(**stack), framework=framework).backward
            - pace(plain(**stack), framework=framework, micro_batches=1).backward
        )[0]

    assert added("megatron-deepspeed") / added("reference") == pytest.approx(10 / 6)
    assert added("megatron-deepspeed", adds_gradients_in_products=True) == 0.0


def test_the_other_stages_fill_the_pipeline():
    one = pace(plain(), pipeline_parallel=4)
    busy = (one.forward + one.backward + one.recompute + one.exchange)[0]
    # Three stages as slow as the slowest.
    assert one.fill[0] == pytest.approx(3 * busy, rel=0.01)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_each_stage_takes_as_long_as_its_own_layers_and_the_slowest_is_the_pace(micro_batches: int):
    # Half a second a layer, which the host sets: 5, 9, 9 and 9 of the 32 layers. The head is next to nothing.
    efficiency, layout = plain(host_layer_seconds=0.5), {"pipeline_layout": "first=5,last=9"}
    one = one_layout(pipeline_parallel=4)
    asked = job("megatron", model=MODEL, sequence_length=4096, global_batch_size=micro_batches, layout=layout)
    groups = Groups(one, asked, hardware(8), efficiency)
    stages = stage_steps(one, asked, hardware(8), efficiency, groups)
    assert [stage.layers for stage in stages] == [5, 9, 9, 9]
    assert [stage.micro_batch_seconds for stage in stages] == pytest.approx([2.5, 4.5, 4.5, 4.5], rel=0.01)
    pace = micro_batch_pace(one, asked, hardware(8), efficiency, groups)
    parts = (pace.forward, pace.backward, pace.recompute, pace.exchange, pace.context_exchange, pace.expert_exchange)
    assert max(stage.micro_batch_seconds for stage in stages) == pytest.approx(sum(parts).item(), rel=1e-12)


def test_the_head_makes_the_last_stage_the_slowest_and_is_filled_once():
    model = llama(vocab_size=1_000_000)
    one, small = pace(plain(), model=model, pipeline_parallel=32), pace(plain(), pipeline_parallel=32)
    # The head's 4.1e9 elements are 18.8 layers' of 0.218e9, less what a layer does beside products.
    assert 17 * small.forward[0] < one.forward[0] < 19 * small.forward[0]
    assert one.fill[0] < 2 * small.fill[0]


def test_tensor_parallel_traffic_overlaps_under_sequence_parallelism_and_flash_attention_only():
    hiding = plain(tensor_overlap_fraction=0.75)
    whole = pace(plain(), tensor_parallel=8).exchange[0]

    def exchange(framework="megatron", **fields):
        return pace(hiding, framework=framework, tensor_parallel=8, **fields).exchange[0]

    assert exchange() == pytest.approx(whole)
    assert exchange(sequence_parallel=True) == pytest.approx(whole / 4)
    assert exchange(sequence_parallel=True, attention="eager") == pytest.approx(whole)
    # Its layers hide it with the option and without; torchtitan's by the option alone.
    for on in (False, True):
        told = exchange(sequence_parallel=True, overlap=Overlap(tensor_parallel=on))
        assert told == pytest.approx(whole / 4)
    torchtitans = [
        exchange("fsdp2", sequence_parallel=True, overlap=Overlap(tensor_parallel=on)) for on in (False, True)
    ]
    assert torchtitans[1] == pytest.approx(torchtitans[0] / 4)


def test_a_pipeline_is_filled_by_passes_that_hide_no_exchange():
    def of(expert_overlap, **fields):
        return pace(
            plain(expert_overlap_cost_fraction=0.2),
            framework="megatron",
            model=small_mixtral(),
            micro_batches=16,
            data_parallel=2,
            expert_parallel=2,
            expert_overlap=expert_overlap,
            **fields,
        )

    plain_pace, hidden = (of(hides, pipeline_parallel=1, virtual_pipeline=1) for hides in (False, True))
    # 15 of 16 passes have a pair, and a fifth of their exchange comes back as slower computation, or more.
    assert hidden.expert_exchange[0] < plain_pace.expert_exchange[0]
    assert hidden.expert_exchange[0] >= (1 / 16 + 0.2 * 15 / 16) * plain_pace.expert_exchange[0] * (1 - 1e-9)
    assert hidden.fill[0] == pytest.approx(plain_pace.fill[0])


class TestStages:
    """Stages as Megatron divides them, of a vocabulary that takes some time."""

    MODEL = llama()

    def pace(self, layers, *, way="even", model=MODEL, efficiency=None, **degrees):
        one = one_layout(**degrees)
        asked = job(
            "megatron",
            model=model,
            sequence_length=4096,
            global_batch_size=8,
            multi_token_prediction=layers,
            layout={"pipeline_layout": way},
        )
        efficiency = efficiency or plain()
        groups = Groups(one, asked, hardware(8), efficiency)
        return micro_batch_pace(one, asked, hardware(8), efficiency, groups)

    def test_each_layer_for_a_further_token_adds_itself_its_matrix_and_the_head(self):
        # Of 8,030 million parameters without the table a layer has 218, its matrix 33.6 and the head 525.3; attention
        # and what moves through memory are in the layers alone.
        none, one, two = (self.pace(layers).forward[0] for layers in range(3))
        assert two - one == pytest.approx(one - none)
        assert (one - none) / none == pytest.approx((218.1 + 33.6 + 525.3) / (8030.3 - 525.3), rel=0.08)

    def test_the_head_s_stage_has_them_whatever_its_division(self):
        degrees = {"pipeline_parallel": 2}
        even, fewer, without = (
            self.pace(layers, way=way, **degrees).forward[0]
            for layers, way in ((1, "even"), (1, "first=19"), (0, "first=19"))
        )
        # 16 layers, one more, its matrix and two heads are more than 19 layers; beside them 13 are less.
        assert even > fewer
        assert fewer == pytest.approx(without)

    def test_of_a_round_s_last_chunk_it_waits_for_the_slowest_by_its_time(self):
        # A head of 8,192 words is more products than a layer of these, and takes less than a host's 10 ms: the last
        # chunk is as slow as the others' two layers, not as its own one beside the head.
        model = small_mixtral(num_hidden_layers=15, hidden_size=1024, vocab_size=8192)
        efficiency = plain(host_layer_seconds=1e-2, host_expert_layer_seconds=1e-2)
        degrees = {"pipeline_parallel": 4, "virtual_pipeline": 2, "model": model, "way": "Ett|(tt|)*6tL"}
        found = self.pace(0, efficiency=efficiency, **degrees)
        assert (found.forward + found.backward)[0] == pytest.approx(4 * 1e-2, rel=0.02)
