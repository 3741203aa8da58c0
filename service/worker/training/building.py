"""transformers' own model from a config, on fake or meta tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.training.adapters import adapt
from plimsoll.service.worker.training.kernels.attention import TRACED_ATTENTION, register_traced_attention
from plimsoll.service.worker.training.precision import adapter_dtype, parameter_dtype


def causal_model(config: Mapping[str, Any], *, dtype: torch.dtype, attention: str | None = None) -> nn.Module:
    """Return a `transformers` causal language model on the ambient device.

    Needs no network: the config's own values are all it reads. Raises
    `InvalidModelConfig` for a config transformers cannot build.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    try:
        settings = AutoConfig.for_model(config["model_type"], **values)
        settings.use_cache = False
        if attention is not None:
            settings._attn_implementation = attention
        _keep_padding_within(settings)
        model: nn.Module = AutoModelForCausalLM.from_config(settings, dtype=dtype)  # type: ignore[no-untyped-call]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidModelConfig(f"transformers cannot build this config: {error}", pointer="/model/config") from error
    return model


def _keep_padding_within(settings: Any) -> None:
    """Name no padding token beyond the vocabulary, as a class does by default that knows a larger one.

    Torch takes none such, and a padding token changes neither the table's size nor that of its gradient.
    """
    padding = getattr(settings, "pad_token_id", None)
    if padding is not None and padding >= settings.vocab_size:
        settings.pad_token_id = None


def traced_model(job: TraceJob, stack: Stack) -> Any:
    """Return the whole model for training, with attention as the job asks; call it in fake mode."""
    register_traced_attention()
    model: Any = causal_model(
        job.config,
        dtype=parameter_dtype(job, stack),
        attention=TRACED_ATTENTION if job.attention == "flash" else "eager",
    )
    # Longer than the config's own limit is only a matter of the rotary angles.
    longest = getattr(model.config, "max_position_embeddings", job.sequence_length)
    model.config.max_position_embeddings = max(longest, job.sequence_length)
    model.train()
    if job.trains_adapters:
        adapt(model, job, adapter_dtype(job, stack))
    return model
