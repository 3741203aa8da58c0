from plimsoll.service.worker.stacks.deepspeed.ranks import deciding_ranks, shares
from tests.service.worker.cases import job


def test_a_rank_holds_whole_the_tensors_that_its_part_touches():
    # Parts of 8: the first tensor of 10 reaches into the second, whose rest is 4 and half of the last.
    touched, slices = shares([10, 4, 8, 2], 3)
    assert touched.tolist() == [10, 10 + 4 + 8, 8 + 2]
    assert slices.tolist() == [8, 4, 6]


def test_parts_are_of_an_even_number_of_elements():
    touched, _ = shares([3, 3], 2)
    # 4 each, not 3.
    assert touched.tolist() == [6, 3]


def test_at_stage_2_the_last_rank_and_the_one_with_most_can_need_the_most():
    # Of 105,408 elements in four parts the second begins in the first layer and ends in the second.
    assert deciding_ranks(job(framework="deepspeed", zero_stage=2)) == (3, 1)


def test_at_stage_1_it_is_the_first_rank_or_the_one_with_most():
    assert deciding_ranks(job(framework="deepspeed", zero_stage=1)) == (0, 1)


def test_offloaded_gradients_leave_in_slices():
    ranks = deciding_ranks(job(framework="deepspeed", zero_stage=2, offload="optimizer"))
    assert ranks[:2] == (3, 1)


def test_ranks_of_whole_or_of_evenly_cut_parameters_are_alike():
    for changes in ({"zero_stage": 0}, {"zero_stage": 3}, {"zero_stage": 2, "data_parallel": 1}):
        assert deciding_ranks(job(framework="deepspeed", **changes)) == (0,)
