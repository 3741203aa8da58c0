"""States on the host, as Megatron-Core's own hybrid optimizer has them, and plans held to it."""

import pytest

from benchmarks.random_plans.planning import chosen_layout, planned_memory, proof_request, read_request
from plimsoll.planners.families import describe_config
from plimsoll.service.worker.proofs.task import run
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


def proved(layout, **training):
    """Return the proof of a plan with states on the host, asked as the service asks a worker."""
    body = {
        "model": {"config": config(vocab_size=2000, hidden_size=256, intermediate_size=704, num_hidden_layers=4)},
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 4},
        "training": {"sequence_length": 128, "global_batch_size": 8, "micro_batch_size": 1, **training},
        "framework": "megatron",
        "layout": {"offload": "optimizer", **layout},
    }
    question = read_request(body)
    chosen = chosen_layout(question)
    memory = planned_memory(question, chosen)
    return run(proof_request(question, chosen, memory) | {"device": {"on": "any"}}, lambda *_progress: None)


@pytest.mark.parametrize(
    ("layout", "training"),
    [
        ({"data_parallel": 4}, {"recompute": "none"}),
        ({"data_parallel": 2, "pipeline_parallel": 2}, {"recompute": "full"}),
    ],
    ids=["four ranks", "two stages, recomputed"],
)
def test_a_plan_agrees(layout, training):
    result = proved(layout, **training)
    assert result["verdict"] == "consistent"  # shapes stand in for kernels
    assert abs(result["relative_error"]) < 0.01
    assert result["measured"]["items"]["optimizer"] == 0


def test_copies_that_are_made_before_the_first_step_are_never_the_device_s():
    ledger = traced(data_parallel=4)
    first, *_others, last = ledger.phase_ranges()
    assert ledger.peak(*first[1:]).allocated_bytes < ledger.peak(*last[1:]).allocated_bytes
    assert first[0].phase == "states"
