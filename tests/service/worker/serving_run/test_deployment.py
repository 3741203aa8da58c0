"""Reading the deployment to prove, and what is refused."""

import pytest

from planners.errors import InvalidQuestion, NotYetAvailable
from service.worker.serving_run.deployment import read_deployment
from tests.service.worker.dry_run.cases import config
from tests.service.worker.serving_run.cases import deployment, request


def test_a_deployment_takes_its_batch_from_the_plan_s_speed():
    read = deployment()
    assert (read.batch, read.profile_tokens, read.sampled_rows) == (5, 64, 8)
    # 32 + 16 tokens fill three blocks of 16.
    assert (read.sequence_tokens, read.blocks_per_request) == (48, 3)


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


def test_heads_are_divided_over_the_ranks():
    read = deployment(layout={"tensor_parallel": 2})
    assert (read.key_value_heads, read.head_dim) == (1, 16)
    assert deployment(model={k: v for k, v in config().items() if k != "head_dim"}).head_dim == 16


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [
        ({"layout": {"pipeline_parallel": 2}}, "/layout/pipeline_parallel"),
        ({"layout": {"expert_parallel": 2}}, "/layout/expert_parallel"),
        ({"layout": {"tensor_parallel": 4}}, "/layout/tensor_parallel"),  # two key-value heads
        ({"layout": {"tensor_parallel": 2}, "settings": {"weights": "fp8"}}, "/serving/weights"),
        ({"layout": {"tensor_parallel": 2}, "model": config(model_type="gemma")}, "/layout/tensor_parallel"),
        ({"kv": {"groups": [{"kind": "sliding_window"}, {"kind": "full_attention"}]}}, "/model"),
        ({"settings": {"engine": "sglang"}}, "/serving/engine"),
        ({"settings": {"weights": "nf4"}}, "/serving/weights"),
        ({"settings": {"kv_cache": "int8"}}, "/serving/kv_cache"),
        ({"model": config(model_type="gpt2")}, "/model/config/model_type"),
        ({"model": config(model_type="deepseek_v3")}, "/model/config/model_type"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(parts, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        deployment(**parts)
    assert refusal.value.pointer == pointer


def test_a_plan_without_its_cache_is_no_question():
    incomplete = request()
    del incomplete["plan"]["kv"]
    with pytest.raises(InvalidQuestion, match="kv"):
        read_deployment(incomplete)
