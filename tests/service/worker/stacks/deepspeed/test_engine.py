import os
import sys
from importlib.metadata import version

import pytest
import torch

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.every import refuse
from plimsoll.service.worker.proofs.trace.notes import traced_with
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import LLAMA, asked, job, requested_bytes, traced, traced_once

# Embedding and head 101 x 64 each, two layers of 46,208 (12,288, 33,792, and norms of 128), a norm of 64.
ELEMENTS = 105_408
# Over four ranks; a multiple of 2 x 4 as it is.
PART = 26_352
# Norms, flags and counts of a few bytes each.
SCALARS_BYTES = 64
# 5 x 10^8 elements in bf16.
BUCKET_BYTES = 1_000_000_000


def zero(stage, run=traced_once, **changes):
    return run(framework="deepspeed", zero_stage=stage, **changes)


def test_without_zero_every_gradient_is_made_fp32_twice_in_the_update():
    assert requested_bytes(zero(0), Kind.OPTIMIZER_TEMPORARY) == 8 * ELEMENTS


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_rank_has_the_fp32_copy_and_both_moments_of_its_part(stage):
    assert requested_bytes(zero(stage), Kind.OPTIMIZER_STATE) == 12 * PART


def test_the_update_lays_gradients_end_to_end_and_then_makes_them_fp32():
    made = requested_bytes(zero(2), Kind.OPTIMIZER_TEMPORARY)
    assert (2 + 4) * PART <= made <= (2 + 4) * PART + SCALARS_BYTES


def test_a_rank_of_stage_2_keeps_whole_gradients_of_what_its_part_touches():
    # The last part reaches into the last layer: head 6,464, norm 64, and of the layer norms, down, up: 128 + 22,528.
    assert requested_bytes(zero(2), Kind.GRADIENT) == 2 * (6464 + 64 + 128 + 2 * 11264)


def test_parts_of_gradients_stand_for_good_at_stage_3():
    assert requested_bytes(zero(3), Kind.GRADIENT) == 2 * PART


def test_small_parameters_stay_gathered_from_the_update_on():
    assert requested_bytes(zero(3), Kind.GATHERED_PARAMETER, phase="forward") == 2 * ELEMENTS


def test_one_rank_gathers_nothing():
    ledger = zero(3, data_parallel=1)
    assert requested_bytes(ledger, Kind.GATHERED_PARAMETER, phase="forward") == 0


def test_the_bucket_stands_at_stage_3_and_at_stage_2_in_the_backward_pass_alone():
    assert requested_bytes(zero(3), Kind.COMMUNICATION) == BUCKET_BYTES
    assert requested_bytes(zero(2), Kind.COMMUNICATION) == 0
    assert requested_bytes(zero(2), Kind.COMMUNICATION, phase="backward") >= BUCKET_BYTES


def test_gradients_of_stage_1_wait_whole_for_the_last_micro_batch():
    ledger = zero(1, accumulation_steps=2)
    assert requested_bytes(ledger, Kind.GRADIENT, phase="forward") == 2 * ELEMENTS


def test_adapters_are_traced_with_recomputation_over_parts():
    ledger = zero(3, method="lora", recompute="full")
    # Parts of all that is frozen, and of the adapters beside it.
    assert requested_bytes(ledger, Kind.PARAMETER) > 2 * PART


def test_a_result_names_the_engine_that_ran_and_its_version():
    wanted, stack = job(framework="deepspeed", zero_stage=2), find_stack("deepspeed")
    assert f"DeepSpeed {version('deepspeed')}'s own engine, ZeRO stage 2" in traced_with(wanted, stack, on_device=False)


def test_a_worker_without_deepspeed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(NotYetAvailable, match=r"install plimsoll\[deepspeed\]"):
        zero(2, traced)


def test_without_zero_an_optimizer_that_is_not_adam_updates_one_gradient_after_the_other():
    # FP16_UnfusedOptimizer: the fp32 gradient of each, and no flat copy of all.
    assert requested_bytes(zero(0, optimizer="lion"), Kind.OPTIMIZER_TEMPORARY) < 8 * ELEMENTS


def test_muon_has_one_momentum_of_the_layers_matrices_and_adam_two_of_the_rest():
    matrices = 2 * (12_288 + 33_792)
    rest = ELEMENTS - matrices
    states = requested_bytes(zero(0, optimizer="muon"), Kind.OPTIMIZER_STATE)
    assert states == 4 * ELEMENTS + 4 * matrices + 8 * rest


@pytest.mark.parametrize("stage", [1, 2])
def test_divided_muon_stages_its_momentum_in_16_bits_beside_the_one_that_it_keeps(stage):
    # Muon sorts matrices by their shapes, the largest first: a part of 23,040 touches three of 176 x 64.
    matrices, touched = 92_160, 3 * 11_264
    rest = ELEMENTS - matrices
    states = requested_bytes(zero(stage, optimizer="muon"), Kind.OPTIMIZER_STATE)
    assert states == 4 * PART + 2 * 2 * touched + 8 * rest // 4


def test_muon_runs_over_parts_of_parameters():
    assert requested_bytes(zero(3, optimizer="muon"), Kind.OPTIMIZER_TEMPORARY) > 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_deepspeed_is_given_to_run_is_taken_back(stage):
    before = dict(os.environ), torch.nn.functional.linear
    zero(stage, traced, optimizer="sgd-momentum")
    assert (dict(os.environ), torch.nn.functional.linear) == before
    assert sys.modules["deepspeed.comm.comm"].cdb is None
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"precision": "fp32"}, "/training/precision"),
        ({"activation_offload": True}, "/layout/activation_offload"),
        ({"optimizer": "adafactor"}, "/training/optimizer"),
    ],
)
def test_what_is_not_traced_of_deepspeed_says_so(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        refuse(asked(framework="deepspeed", **changes), on_device=False)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_of_fp32_stand_as_a_part(stage):
    assert requested_bytes(zero(stage, gradient_dtype="fp32"), Kind.GRADIENT) >= 4 * PART


def test_gradients_of_fp32_stand_whole_at_stage_1():
    assert requested_bytes(zero(1, gradient_dtype="fp32"), Kind.GRADIENT) >= 4 * ELEMENTS


def test_deepspeed_prints_nothing_of_the_worker_s_memory(capsys):
    zero(1, traced, gradient_dtype="fp32", accumulation_steps=1)
    assert capsys.readouterr().out == ""


def on_host(ledger, *kinds):
    """Return the host's unrounded bytes of some kinds at its peak in the last update."""
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "optimizer"]
    return sum(piece.requested_bytes for piece in ledger.peak(*ranges[-1], on_host=True).live if piece.kind in kinds)


@pytest.mark.parametrize("stage", [1, 2])
def test_an_offloaded_optimizer_has_its_states_and_its_gradients_in_fp32_on_the_host(stage):
    ledger = zero(stage, offload="optimizer")
    assert on_host(ledger, Kind.OPTIMIZER_STATE) == 12 * PART
    assert on_host(ledger, Kind.GRADIENT) == 4 * PART
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 0


@pytest.mark.parametrize("stage", [1, 2])
def test_an_offloaded_optimizer_has_pinned_buffers_of_its_part_and_of_the_largest_gradient(stage):
    # The part in 16 bits on its way back, and a gradient of up to 176 x 64 elements.
    assert on_host(zero(stage, offload="optimizer"), Kind.COMMUNICATION) == 2 * PART + 2 * 176 * 64


def test_gradients_of_stage_2_wait_whole_on_the_host_between_micro_batches():
    ledger = zero(2, offload="optimizer", accumulation_steps=2)
    # Of every tensor that the last part touches: head, norm, and of the last layer its norms, down and up.
    assert on_host(ledger, Kind.GRADIENT) == 4 * PART + 2 * (6464 + 64 + 128 + 2 * 11264)


def test_stage_3_has_gradients_in_both_formats_on_the_host():
    assert on_host(zero(3, offload="optimizer"), Kind.GRADIENT) == (2 + 4) * PART


def test_offloaded_parameters_leave_their_parts_on_the_host():
    ledger = zero(3, offload="optimizer+parameters")
    assert on_host(ledger, Kind.PARAMETER) == 2 * PART
    assert requested_bytes(ledger, Kind.PARAMETER) == 0


def test_a_second_copy_of_the_weights_is_cut_over_its_own_group():
    # In bf16, of every tensor a half as well as a quarter.
    twice, once = (requested_bytes(zero(3, secondary_shard_group=group), Kind.PARAMETER) for group in (2, 1))
    assert twice - once == 2 * ELEMENTS // 2


def test_an_optimizer_on_drives_leaves_four_buffers_of_its_part_on_the_host():
    # Less than a mebibyte is not swapped: 4 x 10^5 elements a rank are.
    config = LLAMA | {"vocab_size": 20_000}
    ledger = zero(3, offload="optimizer", offload_target="nvme", config=config)
    assert on_host(ledger, Kind.OPTIMIZER_STATE) == 0
    part = 26_352 + 2 * (20_000 - 101) * 64 // 4
    assert on_host(ledger, Kind.BUFFER) == pytest.approx(4 * 4 * part, rel=0.01)
