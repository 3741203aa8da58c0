from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.runtime import runtime_bytes, tensor_overlap_bytes
from plimsoll.planners.questions import Overlap
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.training_cases import job, one_layout


def test_every_axis_with_ranks_has_a_communicator():
    runtime = load_profile("fsdp2").runtime
    layouts = candidates_from_rows([{}, {"data_parallel": 2}, {"data_parallel": 8, "tensor_parallel": 2}])
    # Context 450 MB and workspace 32 MiB; a pair 544 MB, a larger group 688 MB.
    alone = 450_000_000 + 33_554_432
    assert runtime_bytes(layouts, runtime).tolist() == [alone, alone + 544e6, alone + 688e6 + 544e6]


def test_ranks_that_exchange_heads_and_the_ring_between_them_have_a_communicator_each():
    runtime = load_profile("megatron").runtime
    layouts = candidates_from_rows([{"context_parallel": 8, "context_all_to_all": ranks} for ranks in (1, 4, 8)])
    ring, both, exchange = runtime_bytes(layouts, runtime).tolist()
    # A pair 544 MB, a larger group 688 MB.
    assert (ring, both - ring) == (exchange, 544e6)


def test_nanotron_has_two_communicators_of_all_ranks_besides():
    runtime = load_profile("nanotron").runtime
    layouts = candidates_from_rows([{}, {"pipeline_parallel": 2}, {"data_parallel": 2, "tensor_parallel": 2}])
    # Two ranks are three pairs of 544 MB; four are two pairs and two groups of 688 MB.
    alone = 450_000_000 + 33_554_432
    assert runtime_bytes(layouts, runtime).tolist() == [alone, alone + 3 * 544e6, alone + 2 * 544e6 + 2 * 688e6]


def test_an_overlap_of_tensor_parallel_traffic_that_is_asked_for_has_buffers():
    def buffers(**asked):
        return tensor_overlap_bytes(one_layout(tensor_parallel=2, micro_batch_size=2), job("megatron", **asked)).sum()

    hides = {"overlap": Overlap(tensor_parallel=True)}
    # Ten of 2 sequences of 8,192 tokens by 4,096 features, of which six are fp8 where products are.
    whole = 2 * 8192 * 4096
    assert buffers() == 0
    assert buffers(layout=hides) == 10 * 2 * whole
    assert buffers(layout=hides, precision="fp8-mixed") == (4 * 2 + 6) * whole


def test_torchs_async_tensor_parallelism_has_two_chunks():
    asked = {"layout": {"overlap": Overlap(tensor_parallel=True)}, "kernels": "compiled"}
    layouts = candidates_from_rows([{"tensor_parallel": degree, "micro_batch_size": 2} for degree in (1, 2, 8)])
    # Chunks of 2 sequences of 8,192 tokens by 4,096 features of 16 bits are a half and an eighth of them; one rank
    # sends none.
    whole = 2 * 2 * 8192 * 4096
    assert tensor_overlap_bytes(layouts, job("fsdp2", **asked)).tolist() == [0, whole, whole / 4]
    assert tensor_overlap_bytes(layouts, job("fsdp2")).sum() == 0
