"""Workloads that cannot run are refused with the nearest that works; those that can are let through."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

H100, T4 = "NVIDIA-H100-80GB-HBM3", "Tesla-T4"
VLLM = "vllm/vllm-openai:v0.19.0"
LLAMA_8B, QWEN_7B = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"
MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --micro-batch-size 1 --bf16 "
    "--use-distributed-optimizer"
)
MIXTRAL, BATCH = "mistralai/Mixtral-8x7B-Instruct-v0.1", "--per_device_train_batch_size 1"
TRAINER = f"train.py --model_name_or_path {LLAMA_8B} --per_device_train_batch_size 1 --max_seq_length 512 --bf16"


def a_pod(command: str, *, gpus: int, gpu: str | None = H100, image: str = VLLM) -> dict[str, Any]:
    container = {
        "name": "main", "image": image, "command": command.split(),
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    selector = {} if gpu is None else {"nodeSelector": {"nvidia.com/gpu.product": gpu}}
    return {"metadata": {"name": "w"}, "spec": {"containers": [container], **selector}}


def review(service: httpx.Client, manifest: dict[str, Any], group: str = "", kind: str = "Pod") -> dict[str, Any]:
    request = {
        "uid": "1", "kind": {"group": group, "version": "v1", "kind": kind}, "operation": "CREATE",
        "name": "w", "namespace": "default", "object": manifest,
    }  # fmt: skip
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response = service.post("/admission/validate", json=body)
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()["response"]
    return answer


@pytest.mark.parametrize(
    ("command", "gpus", "gpu", "reason"),
    [
        (f"vllm serve {QWEN_7B} -tp 8", 8, H100, "Possible: 1, 2 or 4"),
        (f"vllm serve {QWEN_7B} --max-model-len 262144", 1, H100, "32768 positions"),
        (f"vllm serve {LLAMA_8B} --gpu-memory-utilization 1.5", 1, H100, "at most 1"),
        (f"vllm serve {LLAMA_8B} --tensor-parallel-size 0", 1, H100, "1 is the least"),
        (f"vllm serve {LLAMA_8B} --tensor-paralel-size 2", 2, H100, "--tensor-parallel-size is the nearest"),
        (
            f"vllm serve {LLAMA_8B} --max-model-len 32768 --no-enable-chunked-prefill --max-num-batched-tokens 2048",
            1, H100, "ask for 32768 batched tokens",
        ),
        ("vllm serve Qwen/Qwen2.5-1.5B-Instruct --dtype bfloat16", 1, T4, "Ask for weights fp16"),
        (
            f"text-generation-launcher --model-id {LLAMA_8B} --max-input-tokens 4096 --max-total-tokens 4096",
            1, H100, "4095 at most",
        ),
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --quantization bitsandbytes", 8, H100, "leave the option out"),
        (f"vllm serve {LLAMA_8B} --max-modle-len 4096", 1, H100, "--max-model-len is the nearest"),
        (f"vllm serve {LLAMA_8B} --enable-lora --max-lora-rank 20", 1, H100, "20 is not one of"),
        (f"vllm serve {LLAMA_8B} --enable-auto-tool-choice", 1, H100, "--tool-call-parser"),
        ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8 --max-model-len 16384", 8, H100, "--enable-expert-parallel"),
        (f"torchrun run_clm.py --model_name_or_path meta-llama/Llama-3.1-70B --bf16 {BATCH}", 1, H100, "GiB per GPU"),
        (f"{MEGATRON} --tensor-model-parallel-size 3", 8, H100, "tensor parallel 1, 2, 4, 8, 16 or 32"),
        (f"{MEGATRON} --pipeline-model-parallel-size 6", 8, H100, "pipeline parallel 1, 2, 4, 8, 16 or 32"),
        (f"torchrun --nproc-per-node 8 {TRAINER} --fsdp full_shard", 4, H100, "start 4"),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused_with_what_can(
    service: httpx.Client, command: str, gpus: int, gpu: str, reason: str
) -> None:
    answer = review(service, a_pod(command, gpus=gpus, gpu=gpu))
    assert not answer["allowed"]
    assert reason in answer["status"]["message"]


@pytest.mark.parametrize(
    ("command", "gpus", "gpu"),
    [
        (f"vllm serve {QWEN_7B} -tp 4", 4, H100),
        (f"vllm serve {LLAMA_8B} --gpu-memory-utilization 1.0 --max-model-len 4096", 1, H100),
        ("vllm serve Qwen/Qwen2.5-1.5B-Instruct --max-model-len 4096", 1, T4),
        (f"{MEGATRON} --tensor-model-parallel-size 8 --global-batch-size 8", 8, H100),
        ("vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8 --enable-expert-parallel --max-model-len 16384", 8, H100),
        (f"vllm serve {MIXTRAL} --max-model-len 4096 -tp 4 --data-parallel-size 2", 8, "NVIDIA-L4"),
        (f"torchrun --nproc-per-node 8 {TRAINER} --fsdp full_shard --gradient_checkpointing", 8, H100),
    ],
)
def test_what_can_run_is_let_through(service: httpx.Client, command: str, gpus: int, gpu: str) -> None:
    assert review(service, a_pod(command, gpus=gpus, gpu=gpu))["allowed"]


def test_workers_without_a_selector_run_on_their_leaders_gpu(service: httpx.Client) -> None:
    command = f"vllm serve {LLAMA_8B} -tp 2 --max-model-len 4096"
    template = {
        "size": 2,
        "leaderTemplate": a_pod(command, gpus=2),
        "workerTemplate": a_pod("sleep 1", gpus=2, gpu=None),
    }
    manifest = {"metadata": {"name": "w"}, "spec": {"replicas": 1, "leaderWorkerTemplate": template}}
    answer = review(service, manifest, "leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert answer["allowed"]
    assert "different GPUs" not in str(answer.get("warnings"))


@pytest.mark.parametrize(
    ("size", "flags", "reason"),
    [
        (2, "-tp 8 -pp 2 --distributed-executor-backend ray", None),
        (2, "-tp 8 -pp 3 --distributed-executor-backend ray", "needs 24 GPUs"),
        (1, "-tp 16 --distributed-executor-backend ray", "needs 16 GPUs"),
        (2, "-tp 8 -pp 4 --nnodes 4 --node-rank 0", "needs 4 nodes"),
        (4, "-tp 4 -dp 8 --data-parallel-size-local 4", "needs 16 GPUs on each node"),
    ],
)
def test_an_engine_of_several_nodes_has_them_in_its_leader_worker_set(
    service: httpx.Client, size: int, flags: str, reason: str | None
) -> None:
    pod = a_pod(f"vllm serve {LLAMA_8B} --max-model-len 8192 {flags}", gpus=8)
    manifest = {"spec": {"leaderWorkerTemplate": {"size": size, "workerTemplate": pod}}}
    answer = review(service, manifest, "leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert answer["allowed"] is (reason is None)
    assert (reason or "") in str(answer.get("status"))


@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_a_batch_that_does_not_divide_is_refused_in_every_kind_of_job(service: httpx.Client, kind: str) -> None:
    # 32 processes in replicas of 8: 66 is no multiple of 4.
    command = f"{MEGATRON} --tensor-model-parallel-size 8 --global-batch-size 66"
    words = command if kind == "PyTorchJob" else command.replace("torchrun", "torchrun --nnodes 4")
    template = a_pod(words, gpus=8)
    spec = {
        "Job": {"parallelism": 4, "template": template},
        "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": 4, "template": template}}},
    }[kind]
    group = {"Job": "batch", "PyTorchJob": "kubeflow.org"}[kind]
    answer = review(service, {"metadata": {"name": "w"}, "spec": spec}, group, kind)
    assert not answer["allowed"]
    assert "64 or 68" in answer["status"]["message"]


def test_a_quantized_checkpoint_is_offered_more_gpus_and_no_second_quantization(service: httpx.Client) -> None:
    answer = review(service, a_pod("vllm serve deepseek-ai/DeepSeek-R1 -tp 8", gpus=8))
    assert not answer["allowed"]
    assert "fits with 16 GPUs" in answer["status"]["message"]
    assert "bitsandbytes" not in answer["status"]["message"]


def test_megatrons_command_has_a_number_of_steps(service: httpx.Client) -> None:
    question = {
        "model": "meta-llama/Llama-3.1-8B",
        "hardware": {"gpu": "h100-sxm-80gb", "gpus": 8},
        "training": {"sequence_length": 4096, "global_batch_size": 64},
        "framework": "megatron",
    }
    artifacts = service.post("/plan/train", json=question).json()["artifacts"]
    assert "--train-iters $TRAIN_ITERS" in artifacts["megatron"]


@pytest.mark.parametrize(
    ("image", "command", "gpus", "gpu", "reason"),
    [
        # 27.5 GiB in 16 bits on a card of 22: weights are made there whole before 0.15.
        (
            "vllm/vllm-openai:v0.11.0", "vllm serve Qwen/Qwen2.5-14B-Instruct --max-model-len 4096 --quantization fp8",
            1, "NVIDIA-A10G", "loads all weights in 16 bits",
        ),
        ("vllm/vllm-openai:v0.6.3", f"vllm serve {LLAMA_8B} -tp 3", 3, H100, "32 attention heads"),
        (
            "lmsysorg/sglang:v0.4.6.post5-cu124",
            "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-405B-Instruct --tp 8", 8, H100,
            "94.5 GiB of weights",
        ),
    ],
)  # fmt: skip
def test_what_no_version_or_this_one_cannot_run_is_refused(
    service: httpx.Client, image: str, command: str, gpus: int, gpu: str, reason: str
) -> None:
    answer = review(service, a_pod(command, gpus=gpus, gpu=gpu, image=image))
    assert not answer["allowed"]
    assert reason in answer["status"]["message"]


def test_a_way_out_is_what_the_engine_takes(service: httpx.Client) -> None:
    # trtllm-serve has no option that quantizes, and sglang's formats of a cache are fp8_e4m3 and fp8_e5m2.
    model = "meta-llama/Llama-3.3-70B-Instruct"
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.0.0"
    message = review(service, a_pod(f"trtllm-serve {model}", gpus=1, image=image))["status"]["message"]
    assert "2 GPUs" not in message
    assert "4 GPUs and --tp_size 4" in message
    command = f"python3 -m sglang.launch_server --model-path {model} --tp 4 --mem-fraction-static 0.3"
    message = review(service, a_pod(command, gpus=4, image="lmsysorg/sglang:v0.5.6"))["status"]["message"]
    assert "--kv-cache-dtype fp8_e4m3" in message
