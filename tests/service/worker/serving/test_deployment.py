"""Reading the deployment to prove, and what is refused."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.service.worker.serving.deployment import read_deployment
from plimsoll.service.worker.serving.servable import refuse_on_device
from tests.service.worker.cases import config
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


@pytest.mark.parametrize(
    ("parts", "pointer"),
    [
        ({"layout": {"attention_data_parallel": 2}}, "/layout/attention_data_parallel"),
        ({"layout": {"decode_context_parallel": 2}}, "/layout/decode_context_parallel"),
        ({"layout": {"tensor_parallel": 2}, "model": config(model_type="olmo2")}, "/layout/tensor_parallel"),
        ({"kv": {"groups": [{"kind": "chunked_local"}, {"kind": "full_attention"}]}}, "/model"),
        ({"kv": {"groups": [{"kind": "sliding_window"}]}, "settings": {"engine": "transformers"}}, "/model"),
        ({"settings": {"engine": "sglang"}}, "/serving/engine"),
        ({"settings": {"weights": "nvfp4"}}, "/serving/weights"),
        ({"settings": {"weights": "mxfp4"}}, "/serving/weights"),  # not gpt-oss
        ({"settings": {"engine": "transformers", "weights": "nf4"}}, "/serving/engine"),
        ({"settings": {"engine": "transformers"}, "model": config(model_type="mixtral")}, "/serving/engine"),
        ({"settings": {"kv_cache": "int8"}}, "/serving/kv_cache"),
        ({"model": config(model_type="gpt2")}, "/model/config/model_type"),
        ({"model": config(model_type="qwen3_next")}, "/model/config/model_type"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(parts, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        deployment(**parts)
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("weights", ["int4", "nf4"])
def test_packed_weights_are_refused_on_a_device(weights):
    with pytest.raises(NotYetAvailable) as refusal:
        refuse_on_device(deployment(settings={"weights": weights}))
    assert refusal.value.pointer == "/level"
    refuse_on_device(deployment(settings={"weights": "int8"}))


def test_a_plan_without_its_cache_is_no_question():
    incomplete = request()
    del incomplete["plan"]["kv"]
    with pytest.raises(InvalidQuestion, match="kv"):
        read_deployment(incomplete)
