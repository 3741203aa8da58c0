"""Hugging Face accelerate with FSDP2: transformers' own model, peft's adapters.

Source: huggingface/accelerate, utils/fsdp_utils.py (one unit a decoder layer and one for the rest; the loss is the
model's).
"""

from __future__ import annotations

from plimsoll.service.worker.jobs.stack import Stack

STACK = Stack(
    name="accelerate",
    gathers_logits=True,
    loss_in_model=True,
    trains_adapters=True,
    has_gradient_buckets=True,
    takes_liger_kernels=True,
)
