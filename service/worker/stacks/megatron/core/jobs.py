"""Which jobs Megatron-Core itself makes the steps of, and which a stand-in does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.launch.model_facts import rope_kind, slides
from plimsoll.service.stacks.megatron.model import (
    LATENT_FAMILIES,
    LLAMA_FAMILY,
    SHARED_EXPERT_FAMILIES,
    why_not_plain,
)
from plimsoll.service.worker.jobs.job import TraceJob

# Its products in fp8 are Transformer Engine's, whose formats no other code knows.
PRECISIONS = ("bf16-mixed", "fp16-mixed", "fp32")
# cuDNN's attention, whose values may be of another length than its keys, takes no others.
SIXTEEN_BITS = ("bf16-mixed", "fp16-mixed")
MUON = "muon"
OPTIMIZERS = ("adamw", "sgd-momentum", MUON)
ROTATIONS = ("default", "yarn")


def runs_megatron_core(job: TraceJob) -> bool:
    """Return whether Megatron-Core's own configs describe the job's model and options, and its kernels have shapes."""
    is_described = _is_llama_like(job.config) or has_own_layers(job)
    return is_described and job.precision in PRECISIONS and job.optimizer in OPTIMIZERS


def has_own_layers(job: TraceJob) -> bool:
    """Return whether Megatron-Core runs layers of the model that nothing stands in for."""
    return _is_latent(job) or _shares_experts(job.config)


def _is_llama_like(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in LLAMA_FAMILY and not why_not_plain(config)


def _is_latent(job: TraceJob) -> bool:
    config = job.config
    is_plain = not config.get("attention_bias") and rope_kind(config) in ROTATIONS
    is_whole = job.context_parallel == 1 and job.attention == "flash" and job.precision in SIXTEEN_BITS
    return config.get("model_type") in LATENT_FAMILIES and is_plain and is_whole


def _shares_experts(config: Mapping[str, Any]) -> bool:
    is_every_layer = not config.get("mlp_only_layers") and config.get("decoder_sparse_step", 1) == 1
    is_plain = is_every_layer and not slides(config) and rope_kind(config) == "default"
    return config.get("model_type") in SHARED_EXPERT_FAMILIES and is_plain


def uses_distributed_optimizer(job: TraceJob) -> bool:
    """Return whether states lie in parts of flat buffers; Muon's are dealt out whole by another optimizer."""
    return job.zero_stage > 0 and job.optimizer != MUON


def deals_parameters(job: TraceJob) -> bool:
    """Return whether the layer-wise optimizer deals parameters out whole."""
    return job.zero_stage > 0 and job.optimizer == MUON
