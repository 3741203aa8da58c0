"""Optimizer states that Megatron-Core's hybrid optimizer keeps on the host, by hand."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.memory.peak import needs_of
from plimsoll.planners.search.able import jobs_of
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import question, small_llama
from tests.planners.training_cases import asked, job, one_layout, step

# Embedding and head of 1,024 rows of 64, nine norms, and four layers' matrices of 36,864.
ELEMENTS = 2 * 65_536 + 9 * 64 + 4 * 36_864


def held(precision="bf16-mixed", *, offload=1, ranks=1, **changes):
    degrees = {"data_parallel": ranks, "shard_group": ranks, "zero_stage": 1, "offload": offload}
    given = {"model": small_llama(), "precision": precision, "gpus": ranks, **changes}
    return asked("megatron", layout=degrees, **given).held


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
def test_the_host_has_copies_of_parameters_and_gradients_and_both_moments_in_fp32(precision):
    # hybrid_optimizer.py: `param.detach().clone().cpu()` in fp32, `cpu_copy_map_grad`, and torch's AdamW.
    of_rank = held(precision)
    assert of_rank.host.max() == pytest.approx(16 * ELEMENTS, rel=0.001)
    assert of_rank.optimizer.max() == 0


def test_the_device_keeps_parameters_and_main_gradients():
    there, here = held(), held(offload=0)
    assert there.parameters.max() == here.parameters.max()
    assert there.gradients.max() == here.gradients.max() == pytest.approx(4 * ELEMENTS, rel=0.001)
    assert here.host.max() == 0


def test_the_host_has_a_rank_s_part_alone():
    assert held(ranks=7).host.max() == pytest.approx(16 * ELEMENTS / 7, rel=0.02)  # parts end on 64 elements


@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_a_node_has_room_for_copies_of_whole_parameters_while_the_optimizer_is_made(ranks):
    layouts = one_layout(data_parallel=ranks, zero_stage=1, offload=1)
    own = job("megatron", model=small_llama(), gpus=ranks)
    # 16 bytes of a rank's part, and 4 of every parameter of the model on each rank.
    assert needs_of(layouts, own).node_host.item() == pytest.approx((16 + 4 * ranks) * ELEMENTS, rel=0.02)


def test_gradients_in_sixteen_bits_are_in_fp32_on_the_host():
    narrow = held(gradient_dtype="bf16")
    assert narrow.host.max() == held().host.max()
    assert narrow.gradients.max() == held().gradients.max() / 2


def test_gradients_go_down_as_they_are_added_up_and_weights_come_up_as_they_are():
    layout = {"zero_stage": 1, "offload": 1}
    wide, narrow = (step("megatron", layout=layout, gradient_dtype=dtype) for dtype in (None, "bf16"))
    on_device = step("megatron", layout={"zero_stage": 1})
    # 4 + 2 bytes over PCIe, or 2 + 2; the same update on the host.
    assert on_device.parts.offload == 0.0
    assert wide.parts.optimizer < on_device.parts.optimizer
    bytes_apart = 2 * question().model.parameters
    rate = question().hardware.gpu.pcie_bytes_per_second
    assert wide.parts.offload - narrow.parts.offload > bytes_apart / rate


@pytest.mark.parametrize("optimizer", ["muon", "sgd-momentum"])
def test_adam_alone_goes_to_the_host(optimizer):
    with pytest.raises(InvalidQuestion, match="offload must be none"):
        jobs_of(question(framework="megatron", optimizer=optimizer, layout={"offload": "optimizer"}))
    assert jobs_of(question(framework="megatron", layout={"offload": "optimizer"}))


def test_who_runs_the_update_is_told_how_many_threads_it_has():
    # PyTorch, distributed/run.py: OMP_NUM_THREADS is 1 for each of several processes unless it is set.
    said = {
        offload: " ".join(plan_training(question(framework="megatron", layout={"offload": offload})).assumptions)
        for offload in ("none", "optimizer")
    }
    assert "OMP_NUM_THREADS" in said["optimizer"]
    assert "OMP_NUM_THREADS" not in said["none"]
