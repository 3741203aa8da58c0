from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.runtime import runtime_bytes
from plimsoll.planners.stacks.profile import load_profile


def test_every_axis_with_ranks_has_a_communicator():
    runtime = load_profile("fsdp2").runtime
    layouts = candidates_from_rows([{}, {"data_parallel": 2}, {"data_parallel": 8, "tensor_parallel": 2}])
    # Context 450 MB and workspace 32 MiB; a pair 544 MB, a larger group 688 MB.
    alone = 450_000_000 + 33_554_432
    assert runtime_bytes(layouts, runtime).tolist() == [alone, alone + 544e6, alone + 688e6 + 544e6]


def test_nanotron_has_two_communicators_of_all_ranks_besides():
    runtime = load_profile("nanotron").runtime
    layouts = candidates_from_rows([{}, {"pipeline_parallel": 2}, {"data_parallel": 2, "tensor_parallel": 2}])
    # Two ranks are three pairs of 544 MB; four are two pairs and two groups of 688 MB.
    alone = 450_000_000 + 33_554_432
    assert runtime_bytes(layouts, runtime).tolist() == [alone, alone + 3 * 544e6, alone + 2 * 544e6 + 2 * 688e6]
