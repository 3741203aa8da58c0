"""Reading the deployment to prove."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.serving.deployment import read_deployment
from tests.service.worker.serving.cases import deployment, request


def test_a_deployment_takes_its_batch_from_the_plan_s_speed():
    read = deployment()
    assert (read.batch, read.profile_tokens, read.sampled_rows) == (5, 64, 8)
    # 32 + 16 tokens, of which the prompt's are read at once.
    assert (read.sequence_tokens, read.pass_tokens) == (48, 32)


@pytest.mark.parametrize(
    ("parts", "batch"),
    [
        ({"kv": {"requests_held": 3}}, 3),
        ({"settings": {"max_num_seqs": 4}}, 4),
        ({"layout": {"data_parallel": 2}}, 3),  # 5 requests over two replicas
        ({"performance": None}, 8),
        ({"kv": {"requests_held": 0}, "performance": None}, 0),
    ],
)
def test_no_more_requests_run_than_have_a_place(parts, batch):
    assert deployment(**parts).batch == batch


def test_a_plan_without_its_cache_is_no_question():
    incomplete = request()
    del incomplete["plan"]["kv"]
    with pytest.raises(InvalidQuestion, match="kv"):
        read_deployment(incomplete)
