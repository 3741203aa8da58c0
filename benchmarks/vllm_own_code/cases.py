"""The deployments that are compared: models of the catalogue, most of them cut to a few layers, some of odd lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import ServingLayoutRequest, ServingQuestion

GPU, GPUS_PER_NODE = "h100-sxm-80gb", 8
VERSION = "0.33"
# Keys of a config that say something of each layer.
OF_EACH_LAYER = ("layer_types", "layers_block_type")
DEFAULTS: Mapping[str, int] = {"max_model_len": 8192, "input_tokens": 1024, "output_tokens": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model with what is changed of its config, so many ranks, and more of the question under `asked`.

    With `runs_layers` its layers run: those whose operations vLLM's Python code makes one by one.
    """

    name: str
    model: str
    layers: int | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    tensor_parallel: int = 1
    expert_parallel: int = 1
    weights: str = "bf16"
    scale_block: int | None = None
    runs_layers: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """Return the checkpoint's config."""
        config = {**catalogue().model(self.model).config, **self.changed}
        if self.layers is not None:
            config["num_hidden_layers"] = self.layers
            config |= {key: config[key][: self.layers] for key in OF_EACH_LAYER if config.get(key)}
        return {key: value for key, value in config.items() if key not in self.without}

    @property
    def engine_options(self) -> dict[str, Any]:
        """Return what vLLM is told beside the model and its ranks."""
        asked = {**DEFAULTS, **self.asked}
        names = ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size")
        told = {name: asked[name] for name in names if name in asked}
        if "kv_cache" in asked:
            told["kv_cache_dtype"] = asked["kv_cache"]
        return {**told, "enable_expert_parallel": self.expert_parallel > 1}

    @property
    def question(self) -> ServingQuestion:
        """Return what the planner is asked."""
        ranks, layout = self.tensor_parallel, {}
        if self.expert_parallel > 1:
            layout["expert_parallel"] = self.expert_parallel
        gpus = GpuCount(minimum=ranks, maximum=ranks)
        return ServingQuestion(
            engine="vllm",
            engine_version=VERSION,
            model=describe_config(self.config, name=self.name),
            hardware=Hardware(gpu=catalogue().gpu(GPU), gpus=gpus, gpus_per_node=GPUS_PER_NODE),
            weights=self.weights,
            scale_block=self.scale_block,
            layout=ServingLayoutRequest(tensor_parallel=ranks, pipeline_parallel=1, data_parallel=1, **layout),
            **{**DEFAULTS, **self.asked},
        )


LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"
# Lengths that divide by little; the 61 layers and the vocabulary are DeepSeek-V3's.
ODD = {"hidden_size": 1152, "intermediate_size": 3104, "head_dim": 96, "num_attention_heads": 12}
LONG = {"max_model_len": 32768, "input_tokens": 16384}

# Quantized checkpoints as their configs tell them: one scale for each matrix, for each output, for each block.
SCALED = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def _by_output(number: str, kept: str) -> dict[str, Any]:
    """Return the config of weights in 8 bits with a scale for each output; inputs are quantized token by token."""
    eight = {"num_bits": 8, "type": number, "symmetric": True}
    weights = {**eight, "strategy": "channel", "dynamic": False}
    inputs = {**eight, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": kept,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


CASES: tuple[Case, ...] = (
    Case(name="Llama 3.1 8B", model=LLAMA, runs_layers=True),
    Case(name="Llama 3.1 8B, 3 layers, tensor 4", model=LLAMA, layers=3, tensor_parallel=4, runs_layers=True),
    Case(
        name="61 layers, 3 key-value heads, tied vocabulary of 129,283",
        model=LLAMA,
        layers=61,
        changed={**ODD, "num_key_value_heads": 3, "vocab_size": 129_283, "tie_word_embeddings": True},
    ),
    Case(
        name="6 key-value heads, vocabulary of 129,280, tensor 2",
        model=LLAMA,
        layers=7,
        changed={**ODD, "num_key_value_heads": 6, "vocab_size": 129_280},
        tensor_parallel=2,
        runs_layers=True,
        asked={"max_num_batched_tokens": 3001, "max_num_seqs": 97, "max_model_len": 5003},
    ),
    Case(
        name="1 key-value head, tied vocabulary of 129,283, tensor 4",
        model=LLAMA,
        layers=7,
        changed={**ODD, "num_key_value_heads": 1, "vocab_size": 129_283, "tie_word_embeddings": True},
        tensor_parallel=4,
    ),
    Case(name="Qwen2.5 7B, 5 layers, tensor 2", model="Qwen/Qwen2.5-7B", layers=5, tensor_parallel=2, runs_layers=True),
    Case(name="Qwen3 32B, 5 layers, tensor 4", model="Qwen/Qwen3-32B", layers=5, tensor_parallel=4, runs_layers=True),
    Case(name="Mistral 7B v0.1, prompts of 16,384", model="mistralai/Mistral-7B-v0.1", asked=LONG),
    Case(name="Mixtral 8x7B, 3 layers, tensor 2", model="mistralai/Mixtral-8x7B-v0.1", layers=3, tensor_parallel=2),
    Case(name="Qwen3 30B-A3B, 5 layers, tensor 4", model="Qwen/Qwen3-30B-A3B", layers=5, tensor_parallel=4),
    Case(
        name="Qwen3 30B-A3B, 5 layers, tensor 4, experts 4",
        model="Qwen/Qwen3-30B-A3B",
        layers=5,
        tensor_parallel=4,
        expert_parallel=4,
    ),
    Case(name="Qwen1.5 MoE A2.7B, 5 layers, tensor 2", model="Qwen/Qwen1.5-MoE-A2.7B", layers=5, tensor_parallel=2),
    Case(name="Gemma 2 9B, 9 layers, tensor 2", model="google/gemma-2-9b-it", layers=9, tensor_parallel=2),
    Case(name="Gemma 3 1B, prompts of 16,384", model="google/gemma-3-1b-it", asked=LONG),
    Case(name="Gemma 2 9B, 9 layers, cache in fp8", model="google/gemma-2-9b-it", layers=9, asked={"kv_cache": "fp8"}),
    Case(name="Olmo 3 7B, 7 layers", model="allenai/Olmo-3-1025-7B", layers=7),
    Case(
        name="Qwen3-Next 80B, 8 layers, tensor 2", model="Qwen/Qwen3-Next-80B-A3B-Instruct", layers=8, tensor_parallel=2
    ),
    Case(name="Granite 4 small, 9 layers", model="ibm-granite/granite-4.0-h-small", layers=9),
    Case(name="Nemotron Nano 9B v2", model="nvidia/NVIDIA-Nemotron-Nano-9B-v2"),
    Case(name="Jamba v0.1, 8 layers", model="ai21labs/Jamba-v0.1", layers=8),
    Case(name="Falcon Mamba 7B, 9 layers", model="tiiuae/falcon-mamba-7b", layers=9),
    Case(name="DeepSeek V2 Lite", model="deepseek-ai/DeepSeek-V2-Lite"),
    Case(
        name="DeepSeek V3 in bf16, 5 layers, tensor 4",
        model=DEEPSEEK,
        layers=5,
        without=("quantization_config",),
        tensor_parallel=4,
    ),
    Case(
        name="Llama 3.1 8B in fp8, 3 layers, tensor 2",
        model=LLAMA,
        layers=3,
        changed={"quantization_config": SCALED},
        tensor_parallel=2,
        weights="fp8",
    ),
    Case(
        name="Llama 3.1 8B in fp8 by output, 3 layers, tensor 2",
        model=LLAMA,
        layers=3,
        changed={"quantization_config": _by_output("float", "float-quantized")},
        tensor_parallel=2,
        weights="fp8",
    ),
    Case(
        name="Llama 3.1 8B in int8, 3 layers, tensor 2",
        model=LLAMA,
        layers=3,
        changed={"quantization_config": _by_output("int", "int-quantized")},
        tensor_parallel=2,
        weights="int8",
    ),
    Case(
        name="Mixtral 8x7B in fp8, 3 layers, tensor 2",
        model="mistralai/Mixtral-8x7B-v0.1",
        layers=3,
        changed={"quantization_config": SCALED},
        tensor_parallel=2,
        weights="fp8",
    ),
    Case(
        name="DeepSeek V3 in fp8 by blocks, 5 layers, tensor 4",
        model=DEEPSEEK,
        layers=5,
        changed={"quantization_config": {**SCALED, "weight_block_size": [128, 128], "fmt": "e4m3"}},
        tensor_parallel=4,
        weights="fp8",
        scale_block=128,
    ),
)
