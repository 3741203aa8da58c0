"""States on the host, as Megatron-Core's own hybrid optimizer has them, and plans held to it."""

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.service.worker.recording.ledger import Kind
from tests.planners.training_cases import asked
from tests.service.worker.cases import config, requested_bytes, traced_once

LLAMA = config(vocab_size=256)
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 12, "num_experts_per_tok": 2}
SMALL_BYTES = 64  # step counters


def traced(model=LLAMA, *, offload="optimizer", **layout):
    degrees = {"data_parallel": 1, "zero_stage": 1, **layout}
    sizes = {"sequence_length": 64, "micro_batch_size": 1}
    return traced_once(framework="megatron", config=model, offload=offload, **degrees, **sizes)


def planned(model, **layout):
    ranks = layout.get("data_parallel", 1)
    degrees = {"zero_stage": 1, "offload": 1, "shard_group": ranks, **layout}
    spec = describe_config(model, name="small")
    return asked("megatron", layout=degrees, model=spec, sequence_length=64, gpus=ranks).held


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (LLAMA, {}),
        (LLAMA, {"data_parallel": 3}),
        (MIXTRAL, {"data_parallel": 6, "expert_parallel": 2}),
    ],
    ids=["alone", "three ranks", "experts"],
)
def test_the_host_has_as_much_as_is_planned(model, layout):
    peak = traced(model, **layout).peak(on_host=True)
    held = sum(piece.requested_bytes for piece in peak.live)
    # A buffer's last part is filled up to 64 elements for each rank; a tensor's own part is not.
    assert held == pytest.approx(float(planned(model, **layout).host.max()), rel=0.004)


def test_it_has_gradients_copies_and_two_moments_in_fp32():
    kinds = traced().peak(on_host=True).bytes_by_kind()
    # Embedding and head of 256 rows of 64, two layers of 46,208, the last norm.
    elements = 2 * 256 * 64 + 2 * 46_208 + 64
    assert kinds["gradient"] == 4 * elements
    assert kinds["optimizer_state"] == pytest.approx(12 * elements, abs=SMALL_BYTES)


def test_the_device_has_parameters_and_gradients_as_without_and_no_states():
    there, here = traced(), traced(offload="none")
    for kind in (Kind.PARAMETER, Kind.GRADIENT):
        assert requested_bytes(there, kind) == requested_bytes(here, kind)
    assert requested_bytes(there, Kind.OPTIMIZER_STATE) == 0
    assert requested_bytes(there, Kind.OPTIMIZER_TEMPORARY) < SMALL_BYTES
