"""Every enumeration of the planners, once, in the field's own names and in the order in which they are offered.

Each is a `Literal` type, by which requests are checked, and the tuple of its values.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

# What learns: every weight, low-rank adapters, or adapters over a base packed in four bits.
Method: TypeAlias = Literal["full", "lora", "qlora"]
METHODS: tuple[Method, ...] = get_args(Method)

# What is made the least, or the most, of everything that fits.
TrainingObjective: TypeAlias = Literal["throughput", "fewest_gpus", "cost", "deadline"]
TRAINING_OBJECTIVES: tuple[TrainingObjective, ...] = get_args(TrainingObjective)
# Rates of failures by their name: those of `planners/catalogue/failure_rates.toml`, and one by no source on record.
FailureRateName: TypeAlias = Literal[
    "llama-3", "rsc-1", "rsc-2", "opt-175b", "jean-zay", "b200-504", "tpu-v4", "pessimistic"
]
FAILURE_RATE_NAMES: tuple[FailureRateName, ...] = get_args(FailureRateName)
ServingObjective: TypeAlias = Literal["throughput", "fewest_gpus", "cost", "latency"]
SERVING_OBJECTIVES: tuple[ServingObjective, ...] = get_args(ServingObjective)

# The ZeRO stage says which states are divided among replicas: none, the optimizer's, gradients too, parameters too.
ZERO_STAGES = (0, 1, 2, 3)
HIGHEST_ZERO_STAGE = ZERO_STAGES[-1]

# What of each layer is computed again in the backward pass; layouts have its place in the tuple.
RecomputeMode: TypeAlias = Literal["none", "selective", "full"]
RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)

# Which states lie off the device; layouts have its place in the tuple.
Offload: TypeAlias = Literal["none", "optimizer", "optimizer+parameters"]
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
# Where they lie instead: in the host's memory, or on its NVMe.
OffloadTarget: TypeAlias = Literal["cpu", "nvme"]
CPU, NVME = OFFLOAD_TARGETS = get_args(OffloadTarget)

# In which order a pipeline's stages work through a step's micro-batches.
PipelineSchedule: TypeAlias = Literal["1f1b", "gpipe", "pipedream"]
ONE_FORWARD_ONE_BACKWARD, GPIPE, PIPEDREAM = PIPELINE_SCHEDULES = get_args(PipelineSchedule)

# Whether attention's scores are ever written down.
AttentionKind: TypeAlias = Literal["flash", "eager"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)

# How a model's operations are run: one by one, by hand-written kernels, by torch.compile, by fms-acceleration's.
KernelKind: TypeAlias = Literal["eager", "fused", "compiled", "foak"]
KERNEL_KINDS: tuple[KernelKind, ...] = get_args(KernelKind)

# In what form replicas send each other gradients.
GradientCompression: TypeAlias = Literal["none", "bf16", "fp16", "powersgd", "1-bit"]
*_, POWERSGD, ONE_BIT = get_args(GradientCompression)

# What a model beside the one that learns is for.
CompanionRole: TypeAlias = Literal["reference", "reward", "value"]
COMPANION_ROLES: tuple[CompanionRole, ...] = get_args(CompanionRole)
REFERENCE: CompanionRole = "reference"
