"""Which deployments are refused, and by which rule."""

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.served import RULES, RULES_OF_DEVICES, Served, proved_deployment
from tests.service.worker.cases import config
from tests.service.worker.serving.cases import deployment, request

REFUSED = [
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
]
ODD = [parts for parts, _ in REFUSED] + [{"settings": {"weights": "nf4"}}]


def served(**parts):
    """Return such a deployment with its layout and cache."""
    plan = request(**parts)["plan"]
    return Served(deployment=deployment(**parts), layout=plan["layout"], cache=plan["kv"])


@pytest.mark.parametrize(
    ("parts", "pointer"),
    REFUSED,
)
def test_what_cannot_be_run_is_refused_by_name(parts, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        proved_deployment(request(**parts))
    assert refusal.value.pointer == pointer


@pytest.mark.parametrize("weights", ["int4", "nf4"])
def test_packed_weights_are_refused_on_a_device(weights):
    with pytest.raises(NotYetAvailable) as refusal:
        proved_deployment(request("device", settings={"weights": weights}))
    assert refusal.value.pointer == "/level"
    proved_deployment(request("device", settings={"weights": "int8"}))


def test_packed_weights_are_traced():
    assert proved_deployment(request("trace", settings={"weights": "nf4"})).weights == "nf4"


def test_every_rule_is_broken_by_some_deployment_and_none_by_the_plain_one():
    plain = served()
    odd = [served(**parts) for parts in ODD]
    for rule in (*RULES, *RULES_OF_DEVICES):
        assert not rule.broken(plain)
        assert any(rule.broken(each) for each in odd), rule
