"""Admission reviews: the manifests and reviews that the tests keep as files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.same_answers.candidates.parts import Candidate

MANIFESTS = Path("tests/service/admission/manifests")
RECORDED = Path("tests/service/admission/recorded")
REVIEWS = Path("tests/api/admission_reviews")
TRAINER = "train.py --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 4096 --per_device_train_batch_size 2"
# What reads the files of `surroundings`.
COMMANDS = (
    *(
        f"deepspeed {TRAINER} --deepspeed /c/{name}"
        for name in ("ds-zero3.json", "ds-zero2.json", "ds-odd.json", "ds.json")
    ),
    *(
        f"accelerate launch --config_file /c/accelerate-{name}.yaml {TRAINER}"
        for name in ("fsdp1", "fsdp2", "deepspeed", "zero2", "ddp", "tpu", "none")
    ),
    *(f"vllm serve --config /c/{name}.yaml" for name in ("vllm", "vllm-large", "broken", "none")),
    "vllm serve --config /c/vllm.yaml --tensor-parallel-size 3",
    "python3 -m sglang.launch_server --config /c/sglang.yaml",
    "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --tp_size 8 --extra_llm_api_options /c/trtllm.yaml",
    "bash /c/serve.sh",
    "MODEL=Qwen/Qwen2.5-72B-Instruct source /c/serve.sh",
    (
        "cat > /tmp/o.yaml <<EOF\nkv_cache_config:\n  dtype: fp8\nEOF\n"
        "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --extra_llm_api_options /tmp/o.yaml"
    ),
)
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def candidates() -> Iterator[Candidate]:
    """Yield reviews."""
    for file in sorted(MANIFESTS.glob("*.yaml")):
        for text in file.read_text(encoding="utf-8").split("\n---\n"):
            manifest = yaml.safe_load(text.split("\n===\n")[-1])
            yield _review(f"review of {file.stem}: {manifest['metadata']['name']}", manifest)
    yield from _with_files()
    yield from _annotated()
    for file in sorted(RECORDED.glob("*.json")):
        yield {**_sent(f"review as recorded: {file.stem}"), "text": file.read_text(encoding="utf-8")}


def _with_files() -> Iterator[Candidate]:
    """Yield jobs whose options lie in a ConfigMap, jobs of a training runtime, and jobs under every policy."""
    for command in COMMANDS:
        yield _review(f"review of a file: {command}"[:100], _job(command))
    for command in ("vllm serve $MODEL --tensor-parallel-size $TP --max-model-len 8192", "vllm serve $MODEL -tp $NONE"):
        manifest = _job(command)
        manifest["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "files"}}]
        yield _review(f"review of variables: {command}", manifest)
    for name in ("no-object", "nowhere"):
        yield _review(f"review of a ConfigMap {name}", _job("bash /c/serve.sh", config_map=name))
    for kind, name in (
        ("ClusterTrainingRuntime", "our-torch"),
        ("TrainingRuntime", "team-torch"),
        ("", "none"),
        ("x", "y"),
    ):
        yield _review(f"review of runtime {name}", _train_job({"kind": kind, "name": name}))
    for namespace in ("research", "unwatched", "strict", "Any", "serving"):
        for command in (
            "vllm serve Qwen/Qwen2.5-72B-Instruct -tp 2",
            "vllm serve meta-llama/Llama-3.1-8B -tp 2",
            "vllm serve m -tp 3",
        ):
            review = _review(f"review in {namespace}: {command}", _job(command, selector=False))
            review["body"]["request"]["namespace"] = namespace
            yield review


def _annotated() -> Iterator[Candidate]:
    """Yield jobs whose plan is asked for in an annotation, for the GPUs they have, for others, and unreadably."""
    training = {"sequence_length": 2048, "global_batch_size": 64}
    for kind, request in (
        ("plan for 8", {"hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}, "training": training}),
        ("plan for 16", {"hardware": {"gpu": "h100-sxm-80gb", "gpus": 16}, "training": training}),
        ("plan for another GPU", {"hardware": {"gpu": "a100-sxm-80gb", "gpus": 8}, "training": training}),
        ("deployment for 8", {"hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}, "serving": {"max_model_len": 4096}}),
        ("plan of no field", {"hardware": {"gpu": "h100-sxm-80gb", "gpus": 8}, "trainig": training}),
        ("plan without GPUs", {"training": training}),
    ):
        text = json.dumps({"model": "meta-llama/Llama-3.1-8B", **request})
        yield _review(f"review of an annotated {kind}", _job("train", annotation=("plan", text)))
    for text in ("{", "[]", "7"):
        yield _review(f"review of an annotated {text}", _job("train", annotation=("plan", text)))
    yield _review("review of an annotated id", _job("train", annotation=("plan-id", "f" * 40)))


def _job(
    command: str, *, config_map: str = "files", selector: bool = True, annotation: tuple[str, str] | None = None
) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "vllm/vllm-openai:v0.19.0",
        "command": ["/bin/bash", "-c", command],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "volumeMounts": [{"name": "v", "mountPath": "/c"}],
    }
    pod: dict[str, Any] = {"containers": [container], "volumes": [{"name": "v", "configMap": {"name": config_map}}]}
    if selector:
        pod["nodeSelector"] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    metadata: dict[str, Any] = {"name": "a"}
    if annotation is not None:
        metadata["annotations"] = {f"plimsoll.dev/{annotation[0]}": annotation[1]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}


def _train_job(runtime: dict[str, str]) -> dict[str, Any]:
    command = ["torchrun", "train.py", "--model_name_or_path", "meta-llama/Llama-3.1-8B", "--max_seq_length", "4096"]
    spec = {"runtimeRef": runtime, "trainer": {"command": [*command, "--fsdp", "full_shard", "--bf16"]}}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "a"}, "spec": spec}


def of_plan(plan: Candidate) -> Iterator[Candidate]:
    """Yield workloads that name a stored plan, whose answer comes first."""
    for gpus in (1, 8):
        container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        manifest = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "planned", "annotations": {"plimsoll.dev/plan-id": "{plan_id}"}},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
        yield {**_review("review of a stored plan", manifest), "after": plan}


def _review(kind: str, manifest: dict[str, Any]) -> Candidate:
    group, _, version = manifest["apiVersion"].rpartition("/")
    request = {
        "uid": UID,
        "kind": {"group": group, "version": version, "kind": manifest["kind"]},
        "operation": "CREATE",
        "name": manifest["metadata"].get("name", ""),
        "namespace": "default",
        "object": manifest,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return {**_sent(kind), "body": body}


def _sent(kind: str) -> Candidate:
    return {"kind": kind, "method": "POST", "path": "/admission/validate"}
