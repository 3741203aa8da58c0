"""What a quantization is refused for before it is queued, and what its estimate counts."""

import pytest
import torch

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.service.ground.errors import InvalidCheckpoint, PathNotAllowed
from plimsoll.service.ground.settings import Settings
from plimsoll.service.jobs.quantizations import QuantizationService
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.requests.jobs import QuantizeRequest
from tests.service.worker.quantization.small_llama import CONFIG, weights, write_checkpoint


class NoJobs:
    """Stands for the queue, which an estimate does not need."""


@pytest.fixture
def service(tmp_path):
    (tmp_path / "outputs").mkdir()
    write_checkpoint(tmp_path / "models" / "source")
    settings = Settings(model_roots=(tmp_path / "models",), output_roots=(tmp_path / "outputs",))
    return QuantizationService(ModelResolver(catalogue(), settings), NoJobs(), settings)


def request(**changes):
    question = {"model": {"config": CONFIG}, "scheme": "nf4", "weights": {"path": "source"}, **changes}
    return QuantizeRequest.model_validate(question)


def estimate(service, **changes):
    return service.estimated(request(**changes))[1]


def test_the_estimate_is_in_the_checkpoints_own_dtype(service, tmp_path):
    in_bf16 = estimate(service)
    write_checkpoint(tmp_path / "models" / "wide", weights(torch.float32))
    in_fp32 = estimate(service, weights={"path": "wide"})
    assert (in_bf16.original_dtype, in_fp32.original_dtype) == ("bf16", "fp32")
    assert in_fp32.original_bytes == 2 * in_bf16.original_bytes


def test_an_output_that_is_free_is_accepted(service):
    assert estimate(service, output="made").scheme == "nf4"


@pytest.mark.parametrize(
    ("changes", "error", "pointer", "reason"),
    [
        ({"weights": {"path": "../elsewhere"}}, PathNotAllowed, "/weights/path", "model root"),
        ({"weights": {"path": "absent"}}, InvalidCheckpoint, "/weights/path", "no safetensors"),
        ({"output": "../elsewhere"}, PathNotAllowed, "/output", "output root"),
        ({"output": "."}, InvalidQuestion, "/output", "exists"),
        ({"output": "a/b"}, InvalidQuestion, "/output", "does not exist"),
    ],
)
def test_paths_that_cannot_work_are_refused_with_their_field(service, changes, error, pointer, reason):
    with pytest.raises(error, match=reason) as caught:
        estimate(service, **changes)
    assert caught.value.pointer == pointer


def test_an_output_that_no_loader_would_read_is_refused_before_it_is_queued(service):
    assert estimate(service, scheme="int4").scheme == "int4"
    with pytest.raises(NotYetAvailable, match="no whole groups") as caught:
        estimate(service, scheme="int4", output="made")
    assert caught.value.pointer == "/output"


def test_without_roots_no_path_is_read_or_written(tmp_path):
    settings = Settings()
    bare = QuantizationService(ModelResolver(catalogue(), settings), NoJobs(), settings)
    with pytest.raises(PathNotAllowed, match="PLIMSOLL_MODEL_ROOTS"):
        estimate(bare)
    with pytest.raises(PathNotAllowed, match="PLIMSOLL_OUTPUT_ROOTS"):
        estimate(bare, weights="random", output="made")


def test_a_checkpoint_of_another_model_is_refused(service):
    with pytest.raises(InvalidCheckpoint, match="not of this model"):
        estimate(service, model="llama-3.2-1b")


def test_a_checkpoint_in_a_dtype_that_is_not_read_is_refused(service, tmp_path):
    write_checkpoint(tmp_path / "models" / "double", weights(torch.float64))
    with pytest.raises(InvalidCheckpoint, match="F64"):
        estimate(service, weights={"path": "double"})


@pytest.mark.parametrize("scheme", ["int8", "int8-channel", "fp8"])
def test_settings_that_a_scheme_does_not_have_are_named(service, scheme):
    assumptions = estimate(service, scheme=scheme, double_quantization=True, block_size=64).assumptions
    assert f"double_quantization has no effect on {scheme}." in assumptions
    assert f"block_size has no effect on {scheme}, which has no blocks." in assumptions
