"""The planner against the trace, over a grid of plans: `python -m benchmarks.trace --grid`.

Each model keeps its own widths and vocabulary and is cut to a few layers, for the
planner and for the trace alike: what a layer adds is the same from the first to
the last, and a grid then takes minutes. What the cut hides is how errors of a
single layer add up in a deep model.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config, traits
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.plans import LiveItems
from plimsoll.planners.questions import Companion, Evaluation, LayoutRequest, Recompute, TrainingQuestion
from plimsoll.planners.training.planning import plan_without_advice
from plimsoll.service.worker.jobs.config_keys import of_layers

SAMPLED_LAYERS = 4
GPU = "h200-sxm-141gb"
# The aims of the comparison: mean and worst distance of the allocated peaks.
MEAN_FRACTION, WORST_FRACTION = 0.03, 0.08

# What of a plan a trace allocates.
ALLOCATED = tuple(item.name for item in dataclasses.fields(LiveItems))

MODELS = (
    "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B",
    "mistralai/Mistral-7B-v0.1", "mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Large-Instruct-2407",
    "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-72B",
    "Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B",
    "microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-medium-4k-instruct", "microsoft/phi-4",
    "bigcode/starcoder2-3b", "bigcode/starcoder2-7b", "bigcode/starcoder2-15b",
    "google/gemma-2b", "google/gemma-7b",
    "allenai/OLMo-2-1124-7B", "allenai/OLMo-2-1124-13B",
    "ibm-granite/granite-3.1-2b-instruct", "ibm-granite/granite-3.1-8b-instruct",
)  # fmt: skip

# Families compared after those of `MODELS`: the same ways but for tensor parallelism.
MORE_MODELS = (
    "google/gemma-2-2b", "google/gemma-3-1b-pt", "CohereLabs/aya-expanse-8b", "CohereLabs/c4ai-command-a-03-2025",
    "HuggingFaceTB/SmolLM3-3B", "ByteDance-Seed/Seed-OSS-36B-Base", "baidu/ERNIE-4.5-0.3B-PT", "allenai/OLMo-7B-hf",
    "allenai/Olmo-3-1025-7B", "microsoft/phi-2", "stabilityai/stablelm-3b-4e1t", "paper/nemotron-4-15b",
    "mistralai/Devstral-2-123B-Instruct-2512",
)  # fmt: skip
# Three recurrent layers of four.
RECURRENT_MODELS = ("Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-9B")
# Mamba-2's layers with attention, feed-forwards and experts between them, each model cut to layers of all its kinds.
STATE_SPACE_MODELS = (
    ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 16), ("ibm-fms/Bamba-9B", 12), ("ibm-granite/granite-4.0-h-tiny", 8),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 8),
)  # fmt: skip
ODD = {"sequence_length": 1536, "micro_batch": 3, "gpus": 7}
STATE_SPACE_WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "accelerate", "recompute": "none", "sequence_length": 4096},
    {"framework": "accelerate", "recompute": "full"} | ODD,
    {"framework": "ddp", "recompute": "full", "zero_stage": 0, "precision": "bf16"} | ODD,
    {"framework": "ddp", "recompute": "none", "zero_stage": 0, "sequence_length": 4096},
    {"framework": "deepspeed", "recompute": "none", "sequence_length": 4096, "zero_stage": 3},
    {"framework": "deepspeed", "recompute": "full", "zero_stage": 2} | ODD,
)
RECURRENT_WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "accelerate", "recompute": "none", "sequence_length": 4096},
    {"framework": "accelerate", "method": "lora", "recompute": "none", "sequence_length": 2048},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 8192},
    {"framework": "fsdp2", "recompute": "selective", "sequence_length": 8192},
    {"framework": "ddp", "recompute": "none", "sequence_length": 2048, "zero_stage": 0},
    {"framework": "deepspeed", "recompute": "none", "sequence_length": 4096, "zero_stage": 3},
)
# Those with fewer positions, or with other names of matrices.
GPT_MODELS = (
    "openai-community/gpt2-xl", "facebook/opt-1.3b", "EleutherAI/pythia-1.4b", "EleutherAI/gpt-neox-20b",
    "bigcode/starcoder",
)  # fmt: skip
SHORT = {"sequence_length": 1024}
GPT_WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "accelerate", "recompute": "none"} | SHORT,
    {"framework": "fsdp2", "recompute": "full"} | SHORT,
    {"framework": "fsdp2", "recompute": "selective"} | SHORT,
    {"framework": "ddp", "recompute": "none", "zero_stage": 0} | SHORT,
)
# Mixtures compared after those of `MIXTURES`: all experts on every rank.
MORE_MIXTURES = (
    "openai/gpt-oss-20b", "zai-org/GLM-4.5-Air", "microsoft/Phi-3.5-MoE-instruct", "MiniMaxAI/MiniMax-M2",
    "rednote-hilab/dots.llm1.base", "Qwen/Qwen3-Next-80B-A3B-Instruct",
)  # fmt: skip
# Experts with biases over several ranks.
BIASED_MIXTURE = "openai/gpt-oss-20b"
BIASED_WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "expert_parallel": 4},
    {"framework": "fsdp2", "recompute": "selective", "sequence_length": 8192, "expert_parallel": 4},
    {"framework": "fsdp2", "recompute": "full", "expert_parallel": 2} | ODD | {"gpus": 6},
)
TENSOR_PARALLEL = {"framework": "fsdp2", "tensor_parallel": 2, "recompute": "full"}
MEGATRON = {"framework": "megatron", "zero_stage": 1, "sequence_parallel": False, "recompute": "none"}
FEW_MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-72B", "Qwen/Qwen3-8B")
PIPELINE_MICRO_BATCHES = 4
# Run for `FEW_MODELS` alone: sequence parallelism without recomputation, kept products, a part of the layers,
# accumulation, whole weights and hybrid sharding.
LAYOUTS: tuple[dict[str, Any], ...] = (
    TENSOR_PARALLEL | {"recompute": "none", "sequence_length": 4096},
    TENSOR_PARALLEL | {"recompute": "selective", "sequence_length": 8192},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 8192},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "micro_batches": 4},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "zero_stage": 2},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "shard_group": 4},
    {"framework": "ddp", "recompute": "none", "sequence_length": 4096, "zero_stage": 0},
)
LONG = {"framework": "fsdp2", "sequence_length": 32768, "context_parallel": 2}
LONG_MEGATRON = MEGATRON | {"sequence_length": 32768, "context_parallel": 2}
# Run for `FEW_MODELS` alone: every second layer, parts of layers, and sequences over several ranks.
PARTS: tuple[dict[str, Any], ...] = (
    {"framework": "fsdp2", "recompute": {"every": 2}, "sequence_length": 8192},
    MEGATRON | {"recompute": {"modules": ("layernorm",)}, "sequence_length": 8192},
    MEGATRON | {"recompute": {"modules": ("core_attn", "mlp", "layernorm")}, "sequence_length": 8192},
    LONG | {"recompute": "full"},
    LONG | {"recompute": "none", "sequence_length": 16384, "context_parallel": 4},
    LONG | {"recompute": "full", "tensor_parallel": 2},
    LONG_MEGATRON | {"recompute": "none"},
    LONG_MEGATRON | {"recompute": "full"},
)
ON_HOST = {"framework": "accelerate", "recompute": "none", "sequence_length": 4096}
# Run for `FEW_MODELS` alone: what waits on the host, GPipe, and optimizers other than AdamW.
ELSEWHERE: tuple[dict[str, Any], ...] = (
    ON_HOST | {"activation_offload": True},
    ON_HOST | {"activation_offload": True, "recompute": "full"},
    ON_HOST | {"activation_offload": True, "framework": "ddp", "zero_stage": 0},
    ON_HOST | {"offload": "optimizer+parameters"},
    ON_HOST | {"offload": "optimizer+parameters", "framework": "fsdp2", "recompute": "full", "sequence_length": 512},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "pipeline_parallel": 2}
    | {"pipeline_schedule": "gpipe"},
    *(ON_HOST | {"optimizer": name} for name in ("adamw-8bit", "paged-adamw", "lion")),
    ON_HOST
    | {"framework": "ddp", "recompute": "full", "sequence_length": 512, "zero_stage": 0}
    | {"optimizer": "adafactor"},
)
FP8 = {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "precision": "fp8-mixed"}
# Run for `FEW_MODELS` alone.
FP8_WAYS: tuple[dict[str, Any], ...] = (
    FP8,
    FP8 | {"recompute": "full", "sequence_length": 8192},
    FP8 | {"recompute": "full", "sequence_length": 512},
    FP8 | {"recompute": "selective", "sequence_length": 8192},
    *(FP8 | {"recompute": mode, "sequence_length": 8192, "tensor_parallel": 2} for mode in RECOMPUTE_MODES),
)
MIXTURES = (
    "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x22B-v0.1", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B",
    "Qwen/Qwen1.5-MoE-A2.7B", "allenai/OLMoE-1B-7B-0924",
)  # fmt: skip
# Run for `MIXTURES`: all experts on every rank, and then dealt out.
MIXTURE_WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "accelerate", "recompute": "none", "sequence_length": 4096},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 8192, "expert_parallel": 1},
    {"framework": "fsdp2", "recompute": "selective", "sequence_length": 8192, "expert_parallel": 1},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "expert_parallel": 4},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 4096, "expert_parallel": 2},
    {"framework": "fsdp2", "recompute": "selective", "sequence_length": 8192, "expert_parallel": 4},
)
LATENT = "deepseek-ai/DeepSeek-V3"
LATENT_MIXTURE = "deepseek-ai/DeepSeek-V2-Lite"
LATENT_WAY = {"framework": "fsdp2", "sequence_length": 4096, "expert_parallel": 1}
LATENT_SPLIT = LATENT_WAY | {"tensor_parallel": 2, "sequence_parallel": True}
# Of DeepSeek V3 three layers are dense and the fourth is the first mixture.
LATENT_CASES: tuple[tuple[str, dict[str, Any], int], ...] = (
    (LATENT, LATENT_WAY | {"recompute": "full"}, 4),
    (LATENT, {"framework": "accelerate", "recompute": "none", "sequence_length": 4096}, 4),
    (LATENT, LATENT_WAY | {"recompute": "none", "expert_parallel": 8}, 4),
    (LATENT, LATENT_WAY | {"recompute": "full", "expert_parallel": 8}, 4),
    *((LATENT, LATENT_SPLIT | {"recompute": mode}, 3) for mode in ("none", "full", "selective")),
    (LATENT, LATENT_WAY | {"recompute": "selective"}, 3),
    *((LATENT_MIXTURE, LATENT_SPLIT | {"recompute": mode}, 4) for mode in ("none", "full", "selective")),
    (LATENT_MIXTURE, LATENT_WAY | {"recompute": "selective", "sequence_length": 8192}, 4),
    (LATENT_MIXTURE, LATENT_WAY | {"recompute": "selective", "sequence_length": 8192, "expert_parallel": 4}, 4),
)
MEGATRON_MIXTURES = ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B")
SPLIT_SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}
# Run for `MEGATRON_MIXTURES`: Megatron-Core's experts, and torchtitan's in a pipeline.
GROUPED_WAYS: tuple[dict[str, Any], ...] = (
    MEGATRON | {"sequence_length": 4096, "expert_parallel": 4},
    MEGATRON | {"recompute": "full", "sequence_length": 16384, "expert_parallel": 8},
    MEGATRON | {"recompute": "full", "sequence_length": 16384, "expert_parallel": 4} | SPLIT_SEQUENCE,
    MEGATRON | {"recompute": "selective", "sequence_length": 8192, "expert_parallel": 8} | SPLIT_SEQUENCE,
    MEGATRON | {"sequence_length": 8192, "expert_parallel": 4, "pipeline_parallel": 2},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "expert_parallel": 2, "pipeline_parallel": 2},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 4096, "expert_parallel": 4, "pipeline_parallel": 2},
)
PARTS_OF_LATENTS = {"modules": ("mla_up_proj", "layernorm", "moe_act")}
FOUR_STAGES = MEGATRON | {"sequence_length": 4096, "pipeline_parallel": 4, "micro_batches": 24}
# Run by Megatron-Core's own latent attention, shared experts and routers that a bias balances.
GROUPED_LATENT_CASES: tuple[tuple[str, dict[str, Any], int], ...] = (
    (LATENT, MEGATRON | {"sequence_length": 4096, "expert_parallel": 8}, 5),
    (LATENT, MEGATRON | {"sequence_length": 4096, "expert_parallel": 8, "recompute": PARTS_OF_LATENTS}, 5),
    (
        LATENT,
        FOUR_STAGES | {"expert_parallel": 8, "gpus": 32, "recompute": "full", "pipeline_layout": "first=4,last=3"},
        13,
    ),
    (
        LATENT,
        FOUR_STAGES
        | {"expert_parallel": 8, "gpus": 64, "recompute": "selective", "pipeline_layout": "first=4,last=3"}
        | SPLIT_SEQUENCE,
        13,
    ),
    (
        "moonshotai/Kimi-K2-Instruct",
        FOUR_STAGES | {"expert_parallel": 16, "gpus": 64, "recompute": {"modules": ("mla_up_proj", "shared_experts")}},
        8,
    ),
    (
        "moonshotai/Moonlight-16B-A3B",
        MEGATRON | {"sequence_length": 8192, "expert_parallel": 8, "recompute": "full", "gpus": 16} | SPLIT_SEQUENCE,
        5,
    ),
    (
        "moonshotai/Moonlight-16B-A3B",
        MEGATRON | {"sequence_length": 4096, "expert_parallel": 4, "pipeline_parallel": 2, "micro_batches": 12},
        8,
    ),
    (LATENT_MIXTURE, MEGATRON | {"sequence_length": 4096, "expert_parallel": 4, "micro_batch": 2}, 5),
    (LATENT_MIXTURE, MEGATRON | {"sequence_length": 4096, "expert_parallel": 8, "recompute": {"modules": ("moe",)}}, 7),
    ("zai-org/GLM-4.5-Air", MEGATRON | {"sequence_length": 4096, "expert_parallel": 4} | SPLIT_SEQUENCE, 4),
    ("zai-org/GLM-4.5-Air", MEGATRON | {"sequence_length": 4096, "expert_parallel": 8, "recompute": "full"}, 6),
    ("Qwen/Qwen1.5-MoE-A2.7B", MEGATRON | {"sequence_length": 4096, "expert_parallel": 4}, 4),
    ("Qwen/Qwen1.5-MoE-A2.7B", MEGATRON | {"sequence_length": 8192, "expert_parallel": 4, "recompute": "full"}, 8),
)
INTERLEAVED = {"pipeline_parallel": 2, "virtual_pipeline": 2}
# Run for `FEW_MODELS` alone: each of them traces two stages or three.
PIPELINES: tuple[dict[str, Any], ...] = (
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, "pipeline_parallel": 2},
    {"framework": "fsdp2", "recompute": "full", "sequence_length": 8192, "pipeline_parallel": 4},
    MEGATRON | {"sequence_length": 4096, "pipeline_parallel": 2},
    MEGATRON | {"sequence_length": 4096, "pipeline_parallel": 4},
    MEGATRON | {"sequence_length": 4096, **INTERLEAVED},
    MEGATRON | {"recompute": "full", "sequence_length": 4096, **INTERLEAVED},
    {"framework": "fsdp2", "recompute": "none", "sequence_length": 4096, **INTERLEAVED},
    MEGATRON | {"sequence_length": 4096},
    MEGATRON | {"sequence_length": 4096, "gpus": 8, "shard_group": 2},
    MEGATRON | {"sequence_length": 8192, "gpus": 8, "shard_group": 2, "context_parallel": 2, "micro_batches": 3},
    MEGATRON | {"sequence_length": 8192, **SPLIT_SEQUENCE},
    MEGATRON | {"recompute": "full", "sequence_length": 8192, **SPLIT_SEQUENCE},
    MEGATRON | {"recompute": "selective", "sequence_length": 8192, "pipeline_parallel": 2, **SPLIT_SEQUENCE},
)
UNLIKE = MEGATRON | {"sequence_length": 8192, "tensor_parallel": 8, "sequence_parallel": True}
FOR_BOTH = {"pipeline_layout": "account-for-embedding-and-loss"}
# Pipelines whose stages are not alike, of whole depth: the way that Llama 3.1 405B was trained in, and others.
UNLIKE_CASES: tuple[tuple[str, dict[str, Any], int], ...] = (
    (
        "meta-llama/Llama-3.1-405B",
        UNLIKE | FOR_BOTH | {"pipeline_parallel": 16, "virtual_pipeline": 8, "micro_batches": 64, "gpus": 1024},
        126,
    ),
    (
        "meta-llama/Llama-3.1-70B",
        UNLIKE | {"pipeline_parallel": 16, "micro_batches": 64, "gpus": 256, "pipeline_layout": "first=3,last=2"},
        61,
    ),
    (
        "meta-llama/Llama-3.1-70B",
        UNLIKE
        | {"pipeline_parallel": 12, "micro_batches": 48, "gpus": 192, "recompute": "full"}
        | {"pipeline_layout": "Et*5|(t*6|)*10t*5L"},
        70,
    ),
    (
        "meta-llama/Llama-3.1-405B",
        UNLIKE | FOR_BOTH | {"pipeline_parallel": 8, "micro_batches": 32, "gpus": 128, "recompute": "selective"},
        94,
    ),
    (
        "meta-llama/Llama-3.1-405B",
        {"framework": "fsdp2", "recompute": "full", "sequence_length": 8192, "tensor_parallel": 8}
        | FOR_BOTH
        | {"pipeline_parallel": 16, "micro_batches": 32, "gpus": 512},
        126,
    ),
    (
        "meta-llama/Llama-3.1-70B",
        {"framework": "fsdp2", "recompute": "selective", "sequence_length": 4096, "pipeline_parallel": 8}
        | {"micro_batches": 16, "gpus": 64, "pipeline_layout": "first=7,last=6", "offload": "none"},
        61,
    ),
    (
        "deepseek-ai/DeepSeek-V3",
        {"framework": "fsdp2", "recompute": "full", "sequence_length": 4096, "expert_parallel": 32}
        | {
            "pipeline_parallel": 8,
            "micro_batches": 16,
            "gpus": 256,
            "pipeline_layout": "behind-first",
            "offload": "none",
        },
        61,
    ),
)
LIGER = {"framework": "accelerate", "recompute": "none", "sequence_length": 4096, "kernels": "fused"}
REPLICATED = {"framework": "ddp", "zero_stage": 0}
LIGER_MODELS = (
    *FEW_MODELS, "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.1", "google/gemma-7b", "microsoft/phi-4",
    "allenai/OLMo-2-1124-7B", "ibm-granite/granite-3.1-8b-instruct",
)  # fmt: skip
# Run for `LIGER_MODELS`: Liger's kernels, alone and with the loss that is fused with the head.
LIGER_WAYS: tuple[dict[str, Any], ...] = (
    LIGER,
    LIGER | {"recompute": "full", "sequence_length": 8192, "fused_cross_entropy": True},
    LIGER | {"method": "lora", "sequence_length": 2048},
    LIGER | {"framework": "fsdp2", "sequence_length": 8192},
)
# Run for `FEW_MODELS` alone.
MORE_LIGER_WAYS: tuple[dict[str, Any], ...] = (
    LIGER | {"fused_cross_entropy": True},
    LIGER | {"fused_cross_entropy": True, "method": "qlora", "recompute": "full"},
    LIGER | REPLICATED,
    LIGER | REPLICATED | {"fused_cross_entropy": True},
    LIGER | {"framework": "fsdp2", "recompute": "full"},
)
ZERO = {"framework": "deepspeed"}
# A second copy of the weights in smaller groups (ZeRO++).
TWICE = ZERO | {"zero_stage": 3, "gpus": 8}
# Run for `ZERO_MODELS`: every stage of DeepSpeed's ZeRO, whole sequences and short ones, adapters and accumulation.
ZERO_MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-7B")
ZERO_WAYS: tuple[dict[str, Any], ...] = (
    *(ZERO | {"recompute": "none", "sequence_length": 4096, "zero_stage": stage} for stage in range(4)),
    ZERO | {"recompute": "full", "sequence_length": 8192, "zero_stage": 3},
    ZERO | {"recompute": "none", "sequence_length": 512, "zero_stage": 2},
    ZERO | {"recompute": "none", "sequence_length": 512, "zero_stage": 3, "micro_batches": 2},
    ZERO | {"recompute": "none", "sequence_length": 2048, "zero_stage": 3, "method": "lora"},
    TWICE | {"recompute": "none", "sequence_length": 4096, "secondary_shard_group": 4},
    TWICE | {"recompute": "full", "sequence_length": 8192, "secondary_shard_group": 2},
    TWICE | {"recompute": "none", "sequence_length": 512, "secondary_shard_group": 4, "micro_batches": 2},
    TWICE | {"recompute": "none", "sequence_length": 2048, "secondary_shard_group": 4, "method": "lora"},
)
MOVED = ZERO | {"recompute": "none", "sequence_length": 4096, "offload": "optimizer"}
EVERY_STATE = {"zero_stage": 3, "offload": "optimizer+parameters"}
# Run for `OFFLOAD_MODELS`: DeepSpeed's states on the host and on drives, over even and odd numbers of ranks.
OFFLOAD_MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B")
OFFLOAD_WAYS: tuple[dict[str, Any], ...] = (
    MOVED | {"zero_stage": 1},
    MOVED | {"zero_stage": 2, "micro_batches": 3},
    MOVED | {"zero_stage": 3, "gpus": 7},
    MOVED | EVERY_STATE | {"micro_batches": 3},
    MOVED | EVERY_STATE | {"offload_target": "nvme", "gpus": 6},
    MOVED | {"zero_stage": 2, "method": "lora", "sequence_length": 2048},
    MOVED | {"zero_stage": 2, "recompute": "full", "sequence_length": 512, "gpus": 6},
)
TUNE = {"framework": "torchtune", "precision": "bf16", "shard_group": 8}
ONE_CARD = {"framework": "torchtune", "precision": "bf16", "zero_stage": 0, "gpus": 1}
# Run for `TUNE_MODELS`: torchtune's full recipes and its adapters', over ranks and on one card.
TUNE_MODELS = (
    "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "mistralai/Mistral-7B-v0.1", "Qwen/Qwen2.5-7B",
    "google/gemma-2b",
)  # fmt: skip
TUNE_WAYS: tuple[dict[str, Any], ...] = (
    TUNE | {"recompute": "none", "sequence_length": 4096},
    TUNE | {"recompute": "full", "sequence_length": 8192},
    TUNE | {"recompute": {"every": 2}, "sequence_length": 2048, "micro_batch": 3},
    TUNE | {"recompute": "none", "sequence_length": 512, "micro_batches": 2, "gpus": 6, "shard_group": 6},
    TUNE | {"recompute": "none", "sequence_length": 4096, "zero_stage": 2},
    TUNE | {"recompute": "full", "sequence_length": 4096, "activation_offload": True},
    TUNE | {"recompute": "none", "sequence_length": 2048, "offload": "optimizer+parameters"},
    TUNE
    | {"recompute": "full", "sequence_length": 4096, "offload": "optimizer+parameters"}
    | {"micro_batches": 3, "gpus": 6, "shard_group": 6},
    TUNE | {"recompute": "full", "sequence_length": 2048, "method": "lora", "offload": "optimizer+parameters"},
    TUNE | {"recompute": "none", "sequence_length": 2048, "method": "lora"},
    TUNE | {"recompute": "full", "sequence_length": 8192, "method": "lora", "gpus": 2, "shard_group": 2},
    TUNE | {"recompute": "full", "sequence_length": 4096, "method": "qlora"},
    ONE_CARD | {"recompute": "full", "sequence_length": 2048, "micro_batch": 6},
    ONE_CARD | {"recompute": "none", "sequence_length": 1024, "method": "lora", "micro_batches": 4},
    ONE_CARD | {"recompute": "none", "sequence_length": 2048, "method": "qlora"},
)
WHOLE_ADAPTERS = {"framework": "accelerate", "method": "lora", "sequence_length": 2048, "zero_stage": 0}
# Run for `FEW_MODELS` alone: adapters beside whole weights, under autocast and under DeepSpeed, which has none.
ADAPTER_WAYS: tuple[dict[str, Any], ...] = (
    WHOLE_ADAPTERS | {"recompute": "full"},
    WHOLE_ADAPTERS | {"recompute": "none", "framework": "ddp"},
    WHOLE_ADAPTERS | {"recompute": "none", "method": "qlora"},
    *(WHOLE_ADAPTERS | {"recompute": "none", "framework": "deepspeed", "zero_stage": stage} for stage in range(3)),
)
BESIDE_A_REFERENCE = {"framework": "accelerate", "recompute": "none", "sequence_length": 1536, "micro_batch": 2} | {
    "companions": ({"role": "reference", "precision": "bf16"},)
}
# Run for `PREFERENCE_MODELS`: a policy beside its reference, which FSDP2 gathers whole or every rank has.
PREFERENCE_MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-72B", "Qwen/Qwen3-8B")
PREFERENCE_WAYS: tuple[dict[str, Any], ...] = (
    BESIDE_A_REFERENCE,
    BESIDE_A_REFERENCE | {"recompute": "full", "sequence_length": 4096},
    BESIDE_A_REFERENCE | {"zero_stage": 2, "micro_batches": 2},
    BESIDE_A_REFERENCE | {"zero_stage": 0},
    BESIDE_A_REFERENCE | {"zero_stage": 0, "recompute": "full", "sequence_length": 512, "micro_batches": 3, "gpus": 1},
    BESIDE_A_REFERENCE | {"method": "lora", "sequence_length": 2048},
    BESIDE_A_REFERENCE | {"method": "qlora", "recompute": "full", "zero_stage": 0, "micro_batch": 6},
)
EVALUATING = {"framework": "accelerate", "recompute": "full", "sequence_length": 1536}
KEEPING = {"samples": 48, "keeps_logits": True}
KEEPING_TWO = {"batch_size": 3, "samples": 480, "keeps_logits": True, "accumulation_steps": 2}
# Run for `EVALUATED_MODELS`: evaluations between steps, most of which need more than the steps do by the logits kept.
EVALUATED_MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B")
EVALUATION_WAYS: tuple[dict[str, Any], ...] = (
    EVALUATING | {"evaluation": {"batch_size": 16, "samples": 256}},
    EVALUATING | {"evaluation": KEEPING | {"batch_size": 2}},
    EVALUATING | {"evaluation": KEEPING_TWO, "zero_stage": 2},
    EVALUATING | {"evaluation": KEEPING_TWO, "zero_stage": 0, "optimizer": "sgd"},
    EVALUATING | {"evaluation": KEEPING | {"batch_size": 2}, "method": "lora", "sequence_length": 512},
    EVALUATING | {"evaluation": KEEPING_TWO, "zero_stage": 0, "gpus": 1, "method": "qlora"},
)
WAYS: tuple[dict[str, Any], ...] = (
    {"framework": "accelerate", "recompute": "none", "sequence_length": 4096},
    {"framework": "accelerate", "method": "lora", "recompute": "none", "sequence_length": 2048},
    WHOLE_ADAPTERS | {"recompute": "none"},
    {"framework": "accelerate", "method": "qlora", "recompute": "full", "sequence_length": 8192},
    {"framework": "fsdp2", "recompute": "selective", "sequence_length": 8192},
    TENSOR_PARALLEL | {"sequence_length": 4096},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan of the grid; `way` names the framework and what else is fixed."""

    model: str
    way: Mapping[str, Any]
    layers: int | None = SAMPLED_LAYERS

    @property
    def name(self) -> str:
        """Return the model and the way, in words."""
        said = {"framework": "", "method": "", "recompute": "", "sequence_length": "", "tensor_parallel": "tensor "}
        said |= {"pipeline_parallel": "pipeline ", "virtual_pipeline": "chunks ", "shard_group": "shards "}
        said |= {
            "micro_batches": "micro-batches ",
            "micro_batch": "sequences ",
            "zero_stage": "stage ",
            "secondary_shard_group": "second copy over ",
            "context_parallel": "context ",
            "expert_parallel": "experts ",
            "pipeline_schedule": "",
            "pipeline_layout": "divided ",
            "activation_offload": "activations on the host ",
            "offload": "on the host ",
            "offload_target": "on ",
            "gpus": "ranks ",
            "optimizer": "",
            "precision": "",
            "kernels": "kernels ",
            "fused_cross_entropy": "fused loss ",
            "companions": "beside a ",
            "evaluation": "evaluations ",
        }
        ways = (f"{said[key]}{_in_words(value)}" for key, value in self.way.items() if key in said)
        return " ".join((self.model, *(way.strip() for way in ways)))


def _in_words(value: Any) -> str:
    """Return a setting's value, nothing of a plain yes; of recomputation every so-manieth layer or parts of layers."""
    if value is True:
        return ""
    if isinstance(value, tuple):
        return " and a ".join(each["role"] for each in value)
    if not isinstance(value, Mapping):
        return str(value)
    if "batch_size" in value:
        kept = " keeping logits" if value.get("keeps_logits") else ""
        return f"of {value['samples']} by {value['batch_size']}{kept}"
    return f"every {value['every']}" if "every" in value else "+".join(value["modules"])


def grid() -> Iterator[Case]:
    """Yield every plan of the comparison."""
    for model in MODELS:
        tracing = traits(catalogue().model(model).config["model_type"]).tracing
        for way in WAYS:
            if "tensor_parallel" not in way or (tracing and tracing.has_llama_matrices):
                yield Case(model=model, way=way)
    for model in FEW_MODELS:
        ways = (*PIPELINES, *LAYOUTS, *PARTS, *ELSEWHERE, *ADAPTER_WAYS, *FP8_WAYS)
        yield from (Case(model=model, way=way) for way in ways)
    for model in LIGER_MODELS:
        yield from (Case(model=model, way=way) for way in LIGER_WAYS)
    for model in FEW_MODELS:
        yield from (Case(model=model, way=way) for way in MORE_LIGER_WAYS)
    for model in PREFERENCE_MODELS:
        yield from (Case(model=model, way=way) for way in PREFERENCE_WAYS)
    for model in EVALUATED_MODELS:
        yield from (Case(model=model, way=way) for way in EVALUATION_WAYS)
    for model in MORE_MODELS:
        yield from (Case(model=model, way=way) for way in WAYS if "tensor_parallel" not in way)
    for model in GPT_MODELS:
        yield from (Case(model=model, way=way) for way in GPT_WAYS)
    for model in RECURRENT_MODELS:
        yield from (Case(model=model, way=way) for way in RECURRENT_WAYS)
    for model, layers in STATE_SPACE_MODELS:
        yield from (Case(model=model, way=way, layers=layers) for way in STATE_SPACE_WAYS)
    for model in MORE_MIXTURES:
        yield from (Case(model=model, way=way) for way in MIXTURE_WAYS[:3])
    yield from (Case(model=BIASED_MIXTURE, way=way) for way in BIASED_WAYS)
    for model in ZERO_MODELS:
        yield from (Case(model=model, way=way) for way in ZERO_WAYS)
    for model in OFFLOAD_MODELS:
        yield from (Case(model=model, way=way) for way in OFFLOAD_WAYS)
    for model in TUNE_MODELS:
        yield from (Case(model=model, way=way) for way in TUNE_WAYS)
    for model in MIXTURES:
        yield from (Case(model=model, way=way) for way in MIXTURE_WAYS)
    yield from (Case(model=model, way=way, layers=layers) for model, way, layers in LATENT_CASES)
    yield from (Case(model=model, way=way, layers=layers) for model, way, layers in UNLIKE_CASES)
    yield from (Case(model=model, way=way, layers=layers) for model, way, layers in GROUPED_LATENT_CASES)
    for model in MEGATRON_MIXTURES:
        yield from (Case(model=model, way=way) for way in GROUPED_WAYS)


def planned(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a plan's validation request, and the memory it predicts."""
    config = dict(catalogue().model(case.model).config)
    config = dict(config.get("text_config", config))  # a tower is not traced
    if case.layers is not None:
        config = of_layers(config, range(case.layers))
    way = dict(case.way)
    recompute, length = way.pop("recompute"), way.pop("sequence_length")
    asked = dict(recompute) if isinstance(recompute, Mapping) else {"mode": recompute}
    asked.setdefault("mode", "full" if "every" in asked else "selective")
    asked["modules"] = tuple(asked.get("modules", ()))
    offload = way.pop("activation_offload", False)
    training = {
        "method": way.pop("method", "full"),
        "precision": way.pop("precision", "bf16-mixed"),
        "optimizer": way.pop("optimizer", "adamw"),
        "kernels": way.pop("kernels", None),
    }
    companions, evaluation = way.pop("companions", ()), way.pop("evaluation", None)
    framework, tensor, pipeline = way.pop("framework"), way.pop("tensor_parallel", 1), way.pop("pipeline_parallel", 1)
    context = way.pop("context_parallel", 1)
    micro_batches = way.pop("micro_batches", PIPELINE_MICRO_BATCHES if pipeline > 1 else 1)
    gpus, micro_batch = way.pop("gpus", 8), way.pop("micro_batch", 1)
    hardware = Hardware(gpu=catalogue().gpu(GPU), gpus=GpuCount(minimum=gpus, maximum=gpus), gpus_per_node=8)
    question = TrainingQuestion(
        model=describe_config(config, name=case.model),
        hardware=hardware,
        sequence_length=length,
        global_batch_size=gpus // tensor // pipeline // context * micro_batches * micro_batch,
        micro_batch_size=micro_batch,
        recompute=Recompute(**asked),
        fused_cross_entropy=way.pop("fused_cross_entropy", False),
        activation_offload=bool(offload),
        offload_modules=offload if isinstance(offload, tuple) else (),
        framework=framework,
        companions=tuple(Companion(**each) for each in companions),
        evaluation=Evaluation(**evaluation) if evaluation else None,
        layout=LayoutRequest(
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            virtual_pipeline=way.pop("virtual_pipeline", 1),
            context_parallel=context,
            zero_stage=way.pop("zero_stage", 3),
            secondary_shard_group=way.pop("secondary_shard_group", 1),
            **way,
        ),
        **training,
    )
    plan = plan_without_advice(question).plan
    request = {
        "level": "trace",
        "model": {"name": case.model, "config": config},
        "request": {
            "training": training
            | {"sequence_length": length, "attention": "flash", "recompute": recompute, "companions": companions}
            | {"evaluation": evaluation}
        },
        "plan": {"layout": dataclasses.asdict(plan.layout), "memory": dataclasses.asdict(plan.memory)},
    }
    return request, dataclasses.asdict(plan.memory)


def compare(case: Case) -> dict[str, Any]:
    """Return a plan's predicted and traced peaks, item by item and stage by stage, and whose code ran."""
    from plimsoll.service.worker.proofs.refusals.every import proved_job
    from plimsoll.service.worker.proofs.trace.notes import traced_with
    from plimsoll.service.worker.recording.curve import phase_at
    from plimsoll.service.worker.training.step import trace_steps

    request, memory = planned(case)
    job, stack = proved_job(request)
    started = time.monotonic()
    stages = job.deciding_stages
    ledgers = [trace_steps(job, stack, lambda *_progress: None, stage) for stage in stages]
    ledger = max(ledgers, key=lambda ledger: ledger.peak().allocated_bytes)
    peak = ledger.peak()
    return {
        "case": case.name,
        "family": job.config["model_type"],
        "predicted_bytes": memory["allocated_bytes"],
        "traced_bytes": peak.allocated_bytes,
        "relative_error": memory["allocated_bytes"] / peak.allocated_bytes - 1,
        "predicted_phase": memory["phase"],
        "traced_phase": phase_at(ledger, peak.event)[1],
        "predicted_items": {name: held for name, held in memory["items"].items() if name in peak.bytes_by_item()},
        "traced_items": peak.bytes_by_item(),
        "predicted_host_bytes": memory["host_bytes"] if job.states_on_host else 0,
        "traced_host_bytes": ledger.peak(on_host=True).allocated_bytes if job.states_on_host else 0,
        "stages": [
            {
                "stage": stage.number,
                "layers": [part.last_layer - part.first_layer + 1 for part in job.chunks_of(stage)],
                "predicted_bytes": sum(memory["stages"][stage.number]["items"][name] for name in ALLOCATED),
                "traced_bytes": of_stage.peak().allocated_bytes,
            }
            for stage, of_stage in zip(stages, ledgers, strict=True)
        ],
        "ran": traced_with(job, stack, on_device=False),
        "seconds": time.monotonic() - started,
    }


def run_grid(show: Callable[[str], None], *, only: str = "", every: int = 1, first: int = 0) -> list[dict[str, Any]]:
    """Compare plans of the grid, a line each, and the summary last; say which are not traced.

    They are those whose name holds `only`, of them every so-manieth from the one with number `first` on.
    """
    rows = []
    for case in itertools.islice((case for case in grid() if only in case.name), first, None, every):
        try:
            rows.append(compare(case))
        except NotYetAvailable as refusal:
            show(f"{case.name:62} {refusal}")
            continue
        show(_line(rows[-1]))
    show(summary(rows))
    return rows


def _line(row: Mapping[str, Any]) -> str:
    gib = 2**30
    apart = ", ".join(
        f"{name} {(held - row['traced_items'][name]) / row['traced_bytes']:+.1%}"
        for name, held in row["predicted_items"].items()
        if abs(held - row["traced_items"][name]) > row["traced_bytes"] / 100
    )
    if row["traced_host_bytes"]:
        host, traced = row["predicted_host_bytes"] / gib, row["traced_host_bytes"] / gib
        apart = f"host {host:.3f} {traced:.3f}  {apart}"
    return (
        f"{row['case']:62} {row['predicted_bytes'] / gib:7.3f} {row['traced_bytes'] / gib:7.3f} GiB "
        f"{row['relative_error']:+7.2%}  {row['predicted_phase']} / {row['traced_phase']}  {apart}"
    )


def summary(rows: list[dict[str, Any]]) -> str:
    """Return mean and worst distance, over all rows and by family."""
    lines = []
    for family in ("all", *sorted({row["family"] for row in rows})):
        errors = [abs(row["relative_error"]) for row in rows if family in ("all", row["family"])]
        lines.append(f"{family:12} {len(errors):3} plans, mean {statistics.mean(errors):.2%}, worst {max(errors):.2%}")
    near = statistics.mean(abs(row["relative_error"]) for row in rows) <= MEAN_FRACTION
    near = near and all(abs(row["relative_error"]) <= WORST_FRACTION for row in rows)
    lines.append(f"mean within {MEAN_FRACTION:.0%} and worst within {WORST_FRACTION:.0%}: {'yes' if near else 'no'}")
    return "\n".join(lines)
