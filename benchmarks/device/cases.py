"""The plans that are compared: whole models, as large as one rank of them fits a card of 80 GiB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["train", "infer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan to make; `question` is the request without its hardware's GPU."""

    name: str
    kind: Kind
    question: dict[str, Any]

    def on(self, gpu: str) -> dict[str, Any]:
        """Return the request for a GPU of the catalogue."""
        return {**self.question, "hardware": {**self.question["hardware"], "gpu": gpu}}


def _train(name: str, model: str, *, gpus: int, framework: str, training: dict[str, Any], **layout: Any) -> Case:
    fixed = {"tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 3, **layout}
    question = {
        "model": model,
        "hardware": {"gpus": gpus, "gpus_per_node": 8},
        "framework": framework,
        # One micro-batch a rank and step: more find the memory as the first did.
        "training": {"global_batch_size": gpus, "micro_batch_size": 1, "fused_cross_entropy": False, **training},
        "layout": fixed,
    }
    return Case(name=name, kind="train", question=question)


def _infer(name: str, model: str, *, gpus: int, concurrency: int, **serving: Any) -> Case:
    question = {
        "model": model,
        "hardware": {"gpus": gpus},
        "serving": {
            "engine": "vllm", "max_model_len": 8192, "input_tokens": 2048, "output_tokens": 256,
            "concurrency": concurrency, **serving,
        },
        "layout": {"tensor_parallel": gpus},
    }  # fmt: skip
    return Case(name=name, kind="infer", question=question)


def _none(tokens: int) -> dict[str, Any]:
    return {"sequence_length": tokens, "recompute": "none"}


def _full(tokens: int) -> dict[str, Any]:
    return {"sequence_length": tokens, "recompute": "full"}


# Each step from one to the next changes one thing that decides memory: depth, sharding, recomputation, tensor
# parallelism, adapters, the model's shape, the pipeline, and how it is served.
CASES = (
    _train("1B whole on one card", "llama-3.2-1b", gpus=1, framework="ddp", training=_none(2048), zero_stage=0),
    _train("1B of 8, full sharding", "llama-3.2-1b", gpus=8, framework="accelerate", training=_none(4096)),
    _train("8B of 8, full recomputation", "llama-3.1-8b", gpus=8, framework="fsdp2", training=_full(8192)),
    _train("8B of 8, kept activations", "llama-3.1-8b", gpus=8, framework="fsdp2", training=_none(2048)),
    _train("8B of 8, gathered once", "llama-3.1-8b", gpus=8, framework="fsdp2", training=_full(4096), zero_stage=2),
    _train("8B of 64, full recomputation", "llama-3.1-8b", gpus=64, framework="accelerate", training=_full(8192)),
    _train("8B of 16, hybrid 8", "llama-3.1-8b", gpus=16, framework="fsdp2", training=_full(4096), shard_group=8),
    _train(
        "8B of 8, some products kept", "llama-3.1-8b", gpus=8, framework="fsdp2",
        training={"sequence_length": 4096, "recompute": "selective"},
    ),
    _train(
        "8B tensor 2 of 8", "llama-3.1-8b", gpus=8, framework="fsdp2", training=_full(8192),
        tensor_parallel=2, sequence_parallel=True,
    ),
    _train(
        "8B with adapters", "llama-3.1-8b", gpus=8, framework="accelerate", training={**_full(4096), "method": "lora"},
    ),
    _train("7B of Qwen 2.5 of 8", "qwen2.5-7b", gpus=8, framework="accelerate", training=_full(4096)),
    _train("8B of Qwen 3 of 8", "qwen3-8b", gpus=8, framework="fsdp2", training=_full(4096)),
    _train(
        "70B tensor 8 of 64", "llama-3.1-70b", gpus=64, framework="fsdp2", training=_full(4096),
        tensor_parallel=8, sequence_parallel=True,
    ),
    _infer("8B served", "llama-3.1-8b", gpus=1, concurrency=32),
    _infer("8B served in fp8", "llama-3.1-8b", gpus=1, concurrency=32, weights="fp8", kv_cache="fp8"),
    _infer("70B served on 4", "llama-3.3-70b", gpus=4, concurrency=32),
)  # fmt: skip
