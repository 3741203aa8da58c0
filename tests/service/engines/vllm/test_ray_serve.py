from __future__ import annotations

from typing import Any

import pytest
import yaml

from plimsoll.service.engines.vllm.ray_serve import MOST_CONFIG_CHARACTERS, MOST_MODELS, ray_service
from plimsoll.service.workloads.objects.object_parts import UnreadableObject

LLM_APP = "ray.serve.llm:build_openai_app"
MODEL = {"model_loading_config": {"model_id": "chat", "model_source": "Qwen/Qwen3-8B"}}


def a_service(config: Any) -> dict[str, Any]:
    head = {"template": {"spec": {"containers": [{"name": "head"}]}}}
    worker = {"replicas": 2, "template": {"spec": {"containers": [{"name": "worker"}]}}}
    text = config if isinstance(config, str) else yaml.safe_dump(config)
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [worker]}
    return {"spec": {"serveConfigV2": text, "rayClusterConfig": cluster}}


def an_application(path: str = LLM_APP, **args: Any) -> dict[str, Any]:
    return {"applications": [{"import_path": path, "args": args}]}


def test_each_model_is_a_command_of_vllm_on_the_whole_cluster():
    options = {"tensor_parallel_size": 2, "enable_lora": True, "trust_remote_code": False, "hf_overrides": {"a": 1}}
    second = {"model_loading_config": {"model_id": "Qwen/Qwen3-4B"}, "engine_kwargs": options}
    one, two = ray_service(a_service(an_application(llm_configs=[MODEL, second])))
    assert (one.pods, two.pods) == (3, 3)
    assert one.containers[1].command == ("vllm", "serve", "Qwen/Qwen3-8B")
    assert two.containers[1].command == (
        "vllm", "serve", "Qwen/Qwen3-4B", "--enable-lora", "--hf-overrides", "--tensor-parallel-size=2",
    )  # fmt: skip


def test_prefill_and_decode_are_a_model_each():
    made = an_application("ray.serve.llm:build_pd_openai_app", prefill_config=MODEL, decode_config=MODEL)
    assert len(ray_service(a_service(made))) == 2


def test_a_cluster_without_an_application_is_its_pods():
    (group,) = ray_service(a_service(""))
    assert [container.name for container in group.containers] == ["head", "worker"]


@pytest.mark.parametrize(
    ("scaling", "pods"),
    [({}, 1), ({"replicas": 0}, 0), ({"replicas": 1, "maxReplicas": 4}, 4), ({"maxReplicas": 2**31 - 1}, 1000)],
)
def test_a_cluster_that_ray_scales_has_all_that_it_may_have(scaling: dict[str, int], pods: int):
    manifest = a_service("")
    cluster = manifest["spec"]["rayClusterConfig"]
    cluster["enableInTreeAutoscaling"] = "maxReplicas" in scaling
    del cluster["workerGroupSpecs"][0]["replicas"]
    cluster["workerGroupSpecs"][0] |= scaling
    (group,) = ray_service(manifest)
    # The head, too.
    assert group.pods == pods + 1


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{", "is no YAML"),
        ("5", "names no application"),
        ("a: &x {}\nb:\n  <<: *x", "merges parts of itself"),
        ("#" * (MOST_CONFIG_CHARACTERS + 1), "larger than a config"),
        (an_application("our.module:app"), "starts our.module:app, which is code"),
        (an_application(), "is given no model"),
        (an_application(llm_configs=[{}]), "takes a model from where"),
        (an_application(llm_configs=[{"model_loading_config": {"model_source": {"bucket_uri": "s3://x"}}}]), "takes a"),
        (an_application(llm_configs=[{**MODEL, "engine_kwargs": {str(n): n for n in range(201)}}]), "engine options"),
        (an_application(llm_configs=[MODEL] * (MOST_MODELS + 1)), "more than 16 models"),
    ],
)
def test_what_cannot_be_read_of_a_config_is_told(config: Any, told: str):
    with pytest.raises(UnreadableObject, match=told):
        ray_service(a_service(config))
