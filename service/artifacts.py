"""Launch files: what a person types to run a plan.

Only what can be made true is made: a command with every degree the plan fixed,
and nothing where a program has no option for what was planned.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from planners.hardware import Hardware
from planners.plans import Layout
from planners.serving.answer import ServingPlan

RENDEZVOUS_PORT = 29_500  # torch.distributed.run's own default

# What `vllm serve --help` calls them. A format that needs a checkpoint made for
# it beforehand has no option, and so no command.
VLLM_WEIGHT_OPTIONS = {
    "fp32": ("--dtype", "float32"),
    "bf16": ("--dtype", "bfloat16"),
    "fp16": ("--dtype", "float16"),
    "fp8": ("--dtype", "bfloat16", "--quantization", "fp8"),
    "nf4": ("--dtype", "bfloat16", "--quantization", "bitsandbytes"),
}
# The cache has the type of the activations unless told otherwise.
VLLM_CACHE_OPTIONS = {
    ("bf16", "bf16"): (),
    ("fp16", "fp16"): (),
    ("fp8", "bf16"): (),
    ("nf4", "bf16"): (),
    ("bf16", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("fp16", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("fp8", "fp8"): ("--kv-cache-dtype", "fp8"),
    ("nf4", "fp8"): ("--kv-cache-dtype", "fp8"),
}


def training_artifacts(layout: Layout, hardware: Hardware) -> dict[str, str]:
    """Return the launch files of a training plan: `torchrun`, starting one process for each GPU.

    The training script is the reader's own. On several nodes `HEAD_NODE` names
    the one where the processes meet.
    """
    processes = min(layout.gpus, hardware.gpus_per_node)
    if layout.gpus % processes:
        return {}
    nodes = layout.gpus // processes
    words = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={processes}"]
    if nodes == 1:
        words.append("--standalone")
    else:
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=$HEAD_NODE:{RENDEZVOUS_PORT}"]
    return {"torchrun": " ".join([*words, "train.py"])}


def serving_artifacts(model_name: str, plan: ServingPlan) -> dict[str, str]:
    """Return the launch files of a serving plan: `vllm`, starting one replica; none for other engines."""
    layout, settings = plan.layout, plan.settings
    options = _vllm_format_options(settings.weights, settings.kv_cache)
    if settings.engine != "vllm" or options is None:
        return {}
    words = ["vllm", "serve", model_name, *options]
    for option, value in (
        ("--tensor-parallel-size", layout.tensor_parallel),
        ("--pipeline-parallel-size", layout.pipeline_parallel),
        ("--data-parallel-size", layout.attention_data_parallel),
        ("--decode-context-parallel-size", layout.decode_context_parallel),
    ):
        if value > 1:
            words += [option, str(value)]
    if layout.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    for option, setting in (
        ("--max-model-len", settings.max_model_len),
        ("--gpu-memory-utilization", settings.gpu_memory_utilization),
        ("--block-size", settings.block_size),
        ("--max-num-batched-tokens", settings.max_num_batched_tokens),
        ("--max-num-seqs", settings.max_num_seqs),
    ):
        words += [option, str(setting)]
    return {"vllm": shlex.join(words)}


def _vllm_format_options(weights: str, kv_cache: str) -> Sequence[str] | None:
    weight_options = VLLM_WEIGHT_OPTIONS.get(weights)
    cache_options = VLLM_CACHE_OPTIONS.get((weights, kv_cache))
    if weight_options is None or cache_options is None:
        return None
    return (*weight_options, *cache_options)
