"""One rank's step for real, on the CPU, against the same step on fake tensors."""

import pytest

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.worker.devices.device import find_device
from plimsoll.service.worker.proofs.device.running import held_bytes, kept_bytes, run_rank
from plimsoll.service.worker.stacks.found import find_stack
from plimsoll.service.worker.training.rank import process_group_of
from tests.service.worker.cases import config, job, traced_on_transformers

# What the CUDA kernel of flash attention keeps and the CPU's does not: a seed and an offset, 16 and 8 bytes, a layer.
RANDOM_STATE_BYTES = 2 * 24


def ran(**changes):
    wanted = job(**changes)
    device = find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)
    (stage,) = wanted.deciding_stages
    with process_group_of(wanted.world_size):
        return run_rank(wanted, find_stack(wanted.framework), stage, device, rank=0, report=lambda *_progress: None)


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"recompute": "full"},
        {"framework": "fsdp2", "data_parallel": 2, "tensor_parallel": 2, "recompute": "selective"},
        {"framework": "ddp", "zero_stage": 0},
        {"framework": "reference", "zero_stage": 1},
        {"framework": "megatron", "zero_stage": 1},
        {"method": "lora"},
        {"fused_cross_entropy": True},
    ],
)
def test_a_real_rank_holds_and_keeps_what_the_traced_one_does(case):
    account, ledger = ran(**case), traced_on_transformers(**case)
    assert account["held"] == held_bytes(ledger)
    seeds = 0 if case.get("recompute") == "full" else RANDOM_STATE_BYTES
    assert account["kept_for_backward_bytes"] == kept_bytes(ledger) - seeds
    # Each seed and offset is rounded up to 512 bytes, and at most both of both layers are alive at the peak; accelerate
    # divides the loss by its own number of micro-batches besides, which is another number.
    assert 0 <= ledger.peak().allocated_bytes - account["peak_bytes"] <= 5 * 512
    assert set(account["phase_seconds"]) == {"forward", "backward", "optimizer"}


def test_an_account_has_the_peak_in_parts():
    account = ran(config=config(tie_word_embeddings=True))
    assert sum(account["items"].values()) == account["peak_bytes"] <= account["reserved_bytes"]
    assert account["out_of_memory"] is None


def test_any_other_error_is_no_result():
    with pytest.raises(InvalidModelConfig):
        ran(config=config(hidden_act="nothing"))
