"""Training jobs: every field by itself for several stacks, every stack and method, every family, and mixed draws."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from benchmarks.same_answers.candidates.parts import Candidate, Change, changed, each, families, models

STACKS = (
    "any",
    "reference",
    "ddp",
    "fsdp2",
    "deepspeed",
    "megatron",
    "megatron-deepspeed",
    "accelerate",
    "torchtune",
    "litgpt",
    "nanotron",
    "composer",
    "atorch",
)
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-7B-Instruct",
    "mistralai/Mistral-7B-v0.1",
    "meta-llama/Llama-3.2-1B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mixtral-8x7B-v0.1",
    "openai-community/gpt2-xl",
    "meta-llama/Llama-2-13b-hf",
)
GPUS = (
    "h100-sxm-80gb",
    "h100-sxm-80gb",
    "a100-sxm-80gb",
    "a100-sxm-40gb",
    "h200-sxm-141gb",
    "rtx-4090-24gb",
    "l40s-48gb",
    "b200-sxm-180gb",
    "mi300x-192gb",
    "v100-sxm-32gb",
)
BY_HAND = {
    "name": "a card of our own",
    "memory_bytes": 68_719_476_736,
    "memory_bytes_per_second": 1.6e12,
    "peak_flops_per_second": {"bf16": 2.5e14, "fp16": 2.5e14, "fp32": 1e14},
    "link_bytes_per_second": 1e11,
    "pcie_bytes_per_second": 3.2e10,
    "nic_bytes_per_second": 2.5e10,
    "gpus_per_node": 4,
}
ODD_CONFIG = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8200,
    "num_hidden_layers": 61,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "vocab_size": 100_003,
    "max_position_embeddings": 8192,
}
FLEET = [{"gpu": "h100-sxm-80gb", "gpus": 8}, {"gpu": "a100-sxm-80gb", "gpus": 16}, {"gpu": "l40s-48gb", "gpus": 16}]

FIELDS: tuple[Change, ...] = (
    *each(
        "training.optimizer",
        "adamw",
        "adamw-8bit",
        "paged-adamw",
        "paged-adamw-8bit",
        "sgd",
        "sgd-momentum",
        "adafactor",
        "lion",
        "muon",
    ),
    *each("training.precision", "fp32", "tf32", "fp16-mixed", "bf16-mixed", "bf16", "fp8-mixed"),
    *each("training.gradient_dtype", "fp32", "bf16", "fp16"),
    *each("training.optimizer_state_dtype", "fp32", "bf16", "fp8", "int8"),
    *each("training.recompute", "none", "selective", "full", {"full_layers": 3}, {"every": 2}),
    *(
        {"training.recompute": {"modules": modules}}
        for modules in (["core_attn"], ["layernorm", "mlp"], ["moe_act", "moe"], ["shared_experts", "mla_up_proj"])
    ),
    *each("training.activation_offload", True),
    *each("training.fused_cross_entropy", True, False),
    *each("training.attention", "eager"),
    *each("training.expert_imbalance", 1.5),
    *each("training.multi_token_prediction", 1),
    *each("training.gradient_compression", "bf16", "fp16", "powersgd", "1-bit"),
    *each("training.kernels", "eager", "fused", "compiled", "foak"),
    *each(
        "training.evaluation", {}, {"batch_size": 4, "keeps_logits": True}, {"samples": 500, "accumulation_steps": 4}
    ),
    *each(
        "training.companions",
        [{"role": "reference"}],
        [{"role": "reference", "offload": True}],
        [{"role": "reward", "model": "meta-llama/Llama-3.2-1B"}],
        [{"role": "reference"}, {"role": "value", "trainable": True}],
        [{"role": "reference", "precision": "fp32"}, {"role": "reward"}, {"role": "value", "trainable": True}],
    ),
    *each("training.micro_batch_size", 1, 2, 4),
    *each("training.sequence_length", 512, 16_384, 131_072),
    *each("training.tokens", 1e9, 15e12),
    *each("layout.tensor_parallel", 2, 8),
    *each("layout.pipeline_parallel", 2, 4),
    {"layout.pipeline_parallel": 4, "layout.virtual_pipeline": 2},
    *each("layout.context_parallel", 2, 4),
    *({"layout.expert_parallel": degree, "model": "Qwen/Qwen3-30B-A3B"} for degree in (1, 2, 8)),
    *({"layout.tensor_parallel": 2, "layout.sequence_parallel": on} for on in (True, False)),
    *each("layout.zero_stage", 0, 1, 2, 3),
    *({"layout.zero_stage": stage, "layout.shard_group": 4} for stage in (1, 3)),
    *each("layout.offload", "none", "optimizer", "optimizer+parameters"),
    {"layout.offload": "optimizer", "layout.offload_target": "nvme", "hardware.nvme_bytes_per_second": 3e9},
    *(
        {"layout.pipeline_parallel": 4, "layout.pipeline_schedule": schedule}
        for schedule in ("1f1b", "gpipe", "pipedream")
    ),
    *each("objective", "throughput"),
    *(
        {"objective": goal, "hardware.usd_per_gpu_hour": 2.5, "training.tokens": 1e10}
        for goal in ("cost", "fewest_gpus")
    ),
    {
        "objective": "deadline",
        "deadline_seconds": 864_000,
        "training.tokens": 2e10,
        "hardware.gpus": {"min": 1, "max": 64},
    },
    {"objective": "deadline", "deadline_seconds": 3_600, "training.tokens": 2e12},
    *each(
        "resilience",
        {"gpu_failures_per_month": "pessimistic"},
        {"gpu_failures_per_month": 0.0},
        {"restart_seconds": 600, "warm_up_seconds": 60, "checkpoint_bytes_per_second": 5e9},
        {"target_availability": 0.99, "repair_seconds": 86_400},
        {"repair_seconds": 86_400},
    ),
    *each(
        "compare",
        [{"tensor_parallel": 2}],
        [{"zero_stage": 3, "offload": "optimizer"}, {"pipeline_parallel": 3}],
        [{"framework": "megatron"}, {"framework": "fsdp2", "recompute": "full", "micro_batch_size": 1}],
    ),
    *({"hardware": {"gpu": "h100-sxm-80gb", "gpus": 16, "cluster": name}} for name in ("dgx-h100", "a3-megagpu-8g")),
    {"hardware": {"gpu": "a100-sxm-40gb", "gpus": 32, "cluster": "a2-megagpu-16g"}},
    {"hardware": {"gpu": "rtx-4090-24gb", "gpus": 8, "cluster": "pcie-8x-rtx-4090-24gb"}},
    {"hardware": {"fleet": FLEET}},
    {
        "hardware": {
            "fleet": [{"gpu": "h100-sxm-80gb", "usd_per_gpu_hour": 3}, {"gpu": "a10-24gb", "usd_per_gpu_hour": 1}]
        }
    },
    {"hardware": {"gpu": BY_HAND, "gpus": 8}},
    *each(
        "hardware.override", {"memory_bytes": 64_000_000_000}, {"peak_flops_per_second": {"bf16": 6e14}, "name": "x"}
    ),
    *each("hardware.reserve_bytes", 5_000_000_000),
    *each("hardware.used_bytes", 20_000_000_000),
    *each("hardware.network", {"gpus_per_pod": 8, "oversubscription": 4}),
    *each("hardware.host_memory_bytes", 64 * 2**30, 2**41),
    *each("hardware.usd_per_gpu_hour", 1.99),
    *each("hardware.gpus_per_node", 4, 1),
    *each("hardware.gpus", 1, 3, 64, 1000, 1024, {"min": 2, "max": 12}, {"min": 1, "max": 256}),
    *({"hardware": {"gpu": gpu}} for gpu in ("h100-sxm-80gb", "a10-24gb")),
    *({"training.global_batch_size": 15_360, "hardware.gpus": gpus} for gpus in (64, 1000, 2048)),
    *({"model": {"config": ODD_CONFIG}, "hardware.gpus": gpus} for gpus in (8, 61, 48)),
    *each("model", {"parameters": 7e9}, {"parameters": 6.7e11}),
)

ADAPTERS: tuple[Change, ...] = (
    *each(
        "training.lora", None, {"rank": 64}, {"target_modules": "all-linear"}, {"target_modules": ["q_proj", "v_proj"]}
    ),
    *each(
        "training.lora",
        {"modules_to_save": ["lm_head", "embed_tokens"]},
        {"target_modules": ["self_attn.q_proj", "lm_head"]},
    ),
    *each("training.lora", {"base_dtype": "fp32"}, {"base_dtype": "bf16"}, {"double_quantization": False}),
    *each("training.companions", [{"role": "reference"}]),
    *each("training.optimizer", "paged-adamw-8bit", "adamw-8bit"),
    *each("training.recompute", "full", "none"),
    *each("training.precision", "bf16", "fp16-mixed", "fp32"),
    *each("hardware.gpus", 1, {"min": 1, "max": 16}),
    *each("layout.zero_stage", 0, 2, 3),
    *each("layout.offload", "optimizer"),
)


def candidates(random: Random) -> Iterator[Candidate]:
    """Yield training jobs."""
    for field in FIELDS:
        yield from _for_stacks(f"train with {_name(field)}", field, random)
    for method in ("lora", "qlora"):
        for field in ADAPTERS:
            yield from _for_stacks(f"train {method} with {_name(field)}", {"training.method": method, **field}, random)
    for stack in STACKS:
        for method in ("full", "lora", "qlora"):
            for _ in range(6):
                asked = {"framework": stack, "training.method": method}
                yield _candidate(f"train {method} by {stack}", changed(base(random), asked))
        for _ in range(60):
            yield _candidate(f"train a layout of {stack}", changed(base(random), {"framework": stack}, degrees(random)))
        for _ in range(4):
            compare = {"compare": [_compared(random) for _ in range(3)], "hardware.gpus": 16}
            yield _candidate("train, compared", changed(base(random), {"framework": stack}, compare))
    for model in families():
        yield from _of_family(model, random)
    for _ in range(300):
        yield _candidate("train, mixed", mixed(random))


def base(random: Random) -> dict[str, Any]:
    """Return a job that most stacks can run."""
    gpus = random.choice((1, 2, 4, 8, 8, 8, 16, 32, 64))
    return {
        "model": random.choice(MODELS),
        "hardware": {"gpu": random.choice(GPUS), "gpus": gpus},
        "training": {
            "sequence_length": random.choice((1024, 2048, 4096, 8192)),
            "global_batch_size": gpus * random.choice((1, 2, 8, 12)),
        },
    }


def degrees(random: Random) -> Change:
    """Return a layout, fixed in most of its parts."""
    gpus = random.choice((8, 16, 24, 64, 512))
    tensor, pipeline, context = random.choice((1, 1, 2, 4, 8)), random.choice((1, 1, 2, 4)), random.choice((1, 1, 1, 2))
    replicas = max(gpus // (tensor * pipeline * context), 1)
    change: dict[str, Any] = {
        "hardware.gpus": replicas * tensor * pipeline * context,
        "training.global_batch_size": replicas * random.choice((4, 8, 24)),
        "training.micro_batch_size": random.choice((1, 2)),
        "training.recompute": random.choice(("none", "selective", "full", {"full_layers": 2})),
        "layout.data_parallel": replicas,
        "layout.tensor_parallel": tensor,
        "layout.pipeline_parallel": pipeline,
        "layout.context_parallel": context,
        "layout.zero_stage": random.choice((0, 1, 2, 3)),
    }
    left_free = random.sample(sorted(change.keys() - {"hardware.gpus", "training.global_batch_size"}), 2)
    return {name: value for name, value in change.items() if name not in left_free}


def mixed(random: Random) -> dict[str, Any]:
    """Return a job of any model with several fields at once."""
    request = changed(base(random), {"model": random.choice(models())["id"], "framework": random.choice(STACKS)})
    asked = changed(request, {"training.method": random.choice(("full", "full", "lora", "qlora"))})
    return changed(asked, *random.sample(FIELDS, random.choice((2, 3, 4))))


def _for_stacks(kind: str, field: Change, random: Random) -> Iterator[Candidate]:
    for stack in random.sample(STACKS, len(STACKS)):
        yield _candidate(kind, changed(base(random), {"framework": stack}, field))


def _of_family(model: Any, random: Random) -> Iterator[Candidate]:
    family = model["config"]["model_type"]
    for method in ("full", "lora"):
        for stack in ("accelerate", "any", "fsdp2"):
            gpus = 1024 if model.get("published_parameters") and model["published_parameters"] > 1e11 else 32
            request = changed(
                base(random),
                {"model": {"config": model["config"]}, "framework": stack, "training.method": method},
                {"hardware": {"gpu": "h200-sxm-141gb", "gpus": gpus}, "training.global_batch_size": gpus},
                {"training.sequence_length": 512},
            )
            yield _candidate(f"train a config of {family}", request)


def _compared(random: Random) -> dict[str, Any]:
    """Return some degrees of a layout as they stand under `compare`."""
    chosen = degrees(random)
    return {name.removeprefix("layout."): value for name, value in chosen.items() if name.startswith("layout.")}


def _name(field: Change) -> str:
    return " and ".join(f"{name}={value}"[:60] for name, value in field.items())[:100]


def _candidate(kind: str, request: dict[str, Any]) -> Candidate:
    return {"kind": kind, "method": "POST", "path": "/plan/train", "body": request}
