"""What of a request is refused whichever stack runs it."""

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.every import proved_job
from tests.service.worker.cases import config, request


@pytest.mark.parametrize(
    "layout",
    [
        {"offload": "optimizer"},
        {"pipeline_schedule": "pipedream"},
        {"pipeline_schedule": "gpipe", "virtual_pipeline": 2},
        {"recompute": "sometimes"},
        {"tensor_parallel": 4},  # two key-value heads
        {"tensor_parallel": 3},
    ],
)
def test_a_layout_that_is_not_traced_is_refused_by_name(layout):
    with pytest.raises(NotYetAvailable) as refusal:
        proved_job(request(layout=layout))
    assert refusal.value.pointer.startswith("/layout/")


@pytest.mark.parametrize(
    "training",
    [
        {"method": "prefix-tuning"},
        {"companions": [{"role": "reward"}]},
        {"precision": "int8-mixed"},
        {"optimizer": "sophia"},
        {"attention": "linear"},
        {"kernels": "compiled"},
        {"gradient_dtype": "bf16"},
        {"optimizer_state_dtype": "bf16"},
        {"evaluation": {"batch_size": 8}, "companions": [{"role": "reference"}]},
        {"expert_imbalance": 1.5},
        {"gradient_compression": "bf16"},
        {"recompute": {"modules": ["moe"]}},
    ],
)
def test_training_that_is_not_traced_is_refused_by_name(training):
    with pytest.raises(NotYetAvailable) as refusal:
        proved_job(request(training=training))
    assert refusal.value.pointer.startswith("/training/")


def test_a_sequence_that_does_not_divide_over_the_ranks_is_refused():
    with pytest.raises(NotYetAvailable, match="33 tokens"):
        proved_job(request(training={"sequence_length": 33}, layout={"tensor_parallel": 2, "sequence_parallel": True}))


def test_a_family_that_is_not_traced_is_refused():
    with pytest.raises(NotYetAvailable, match="'t5' is not traced yet; traced are"):
        proved_job(request(model=config(model_type="t5")))


def test_a_family_whose_code_cannot_be_traced_is_refused_with_the_reason():
    with pytest.raises(NotYetAvailable, match="every token to every expert"):
        proved_job(request(model=config(model_type="llama4")))


def test_a_pipeline_with_a_tied_head_is_refused():
    with pytest.raises(NotYetAvailable, match="tied"):
        proved_job(request(layout={"pipeline_parallel": 2}, model=config(tie_word_embeddings=True), stages=[]))
