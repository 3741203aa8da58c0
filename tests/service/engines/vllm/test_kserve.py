from __future__ import annotations

from typing import Any

import pytest

from plimsoll.service.engines.vllm.kserve import llm_inference_service
from plimsoll.service.workloads.commands.shell import programs
from plimsoll.service.workloads.objects.object_parts import UnreadableObject


def a_service(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "main", **(container or {})}]}
    return {"spec": {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "template": pod, **spec}}


def words(manifest: dict[str, Any]) -> tuple[str, ...]:
    (group,) = llm_inference_service(manifest)
    (program,) = programs(group.containers[0])
    return program.words


def test_what_kserve_starts_takes_the_variable_and_the_arguments_after_its_own():
    env = [{"name": "VLLM_ADDITIONAL_ARGS", "value": "--max-model-len 8192"}]
    made = a_service({"env": env, "args": ["--dtype=half"]}, parallelism={"tensor": 2, "data": 1, "expert": True})
    assert words(made) == (
        "vllm", "serve", "Qwen/Qwen3-8B", "--tensor-parallel-size", "2", "--enable-expert-parallel",
        "--max-model-len", "8192", "--dtype=half",
    )  # fmt: skip


def test_adapters_are_told_to_the_engine():
    model = {"uri": "hf://Qwen/Qwen3-8B", "lora": {"adapters": [{"name": "a"}]}}
    assert words(a_service(model=model))[-1] == "--enable-lora"


def test_an_own_command_is_left_as_it_is():
    assert words(a_service({"command": ["vllm", "serve", "m"]}, baseRefs=[{"name": "x"}])) == ("vllm", "serve", "m")


@pytest.mark.parametrize(
    ("parallelism", "pods"),
    [({"data": 16, "dataLocal": 8}, 2), ({"pipeline": 3, "tensor": 8}, 3), ({}, 1), ({"data": 4}, 4)],
)
def test_a_replica_with_workers_has_the_nodes_of_its_degrees(parallelism: dict[str, int], pods: int):
    worker = {"containers": [{"name": "main"}]}
    (group,) = llm_inference_service(a_service(parallelism=parallelism, worker=worker))
    assert group.pods == pods


def test_those_that_prefill_are_replicas_of_their_own():
    prefill = {"replicas": 2, "template": {"containers": [{"name": "main"}]}}
    decode, other = llm_inference_service(a_service(replicas=3, prefill=prefill))
    assert (decode.replicas, other.replicas) == (3, 2)


def test_replicas_that_something_scales_are_not_counted():
    (group,) = llm_inference_service(a_service(scaling={"minReplicas": 1}))
    assert group.replicas is None


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        ({"spec": {"model": {}}}, "/spec has no template"),
        (a_service(baseRefs=[{"name": "x"}]), "/spec/baseRefs names configs"),
        (a_service(model={"uri": "pvc://x"}), "pvc://x does not say which model"),
        (a_service(model={}), "does not say which model"),
        (a_service(parallelism={"tensor": "2"}), "/spec/parallelism/tensor must be a whole number"),
        (a_service(parallelism=[]), None),
        (a_service(parallelism=[1]), "/spec/parallelism must be an object"),
        (a_service(prefill={}), "/spec/prefill has no template"),
        ({"spec": {"template": {"containers": [5]}}}, "/spec/template/containers/0 must be an object"),
    ],
)
def test_what_is_left_to_kserve_is_told(manifest: dict[str, Any], told: str | None):
    if told is None:
        assert llm_inference_service(manifest)
        return
    with pytest.raises(UnreadableObject, match=told):
        llm_inference_service(manifest)
