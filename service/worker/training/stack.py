"""What each training stack does that changes a trace, and which code stands in for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from plimsoll.planners.ground.errors import NotYetAvailable


class Replication(StrEnum):
    """How a stack computes in 16 bits where data-parallel ranks keep all parameters.

    `autocast`: fp32 parameters, cast when used (torch.autocast). `master_weights`:
    16-bit parameters, and an fp32 copy in the optimizer.
    """

    AUTOCAST = "autocast"
    MASTER_WEIGHTS = "master_weights"


class SelectiveRecompute(StrEnum):
    """What a stack's selective recomputation throws away.

    `operations`: all but the attention kernel's output, every second matrix
    product and the reduce-scatters (torchtitan's default). `attention`: the
    attention's inner product alone (Korthikanti et al. 2022, arXiv:2205.05198).
    """

    OPERATIONS = "operations"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One training stack as it is traced.

    `gathers_logits`: tensor-parallel ranks each hold the logits of the whole
    vocabulary, and do not split the loss. `loss_in_model`: the logits do not leave
    the model. `is_plain_on_one_rank`: without other ranks the stack adds nothing to
    torch and transformers, whose own code a trace runs; everywhere else parts of the
    stack are stood in for. `trains_adapters`: low-rank adapters are peft's. `wraps_vocabulary` gives the
    embedding, and the last norm with the head, FSDP units of their own.
    `has_gradient_buckets`: DistributedDataParallel copies gradients into buckets.
    `has_fused_kernels`: norms, SwiGLU and the loss are single kernels, Megatron's; `has_liger_kernels`: they, and
    rotations, are Liger's.
    `casts_products`: products in fp8 are torchao's `Float8Linear`, without `torch.compile`.
    `frees_sent_outputs`: a pipeline stage lets go of an output once it is sent.
    `keeps_message_buffers`: a stage has a buffer for everything that it receives in a step.
    `main_gradients_in_fp32`: the 16-bit gradients are added to an fp32 buffer.
    `has_zero_engine`: parameters, gradients and optimizer are DeepSpeed's, at every ZeRO stage.
    """

    gathers_logits: bool
    loss_in_model: bool
    is_plain_on_one_rank: bool = False
    trains_adapters: bool = False
    wraps_vocabulary: bool = False
    selective: SelectiveRecompute = SelectiveRecompute.ATTENTION
    replication: Replication = Replication.AUTOCAST
    has_gradient_buckets: bool = False
    main_gradients_in_fp32: bool = False
    has_fused_kernels: bool = False
    has_liger_kernels: bool = False
    casts_products: bool = False
    frees_sent_outputs: bool = False
    keeps_message_buffers: bool = False
    has_zero_engine: bool = False


# Sources: accelerate (fsdp_utils.py: one unit a decoder layer and one for the rest; loss by the model),
# torchtitan (models/llama3/infra/parallelize.py, distributed/activation_checkpoint.py),
# torch 2.13 (nn/parallel/distributed.py), Megatron-Core (distributed/param_and_grad_buffer.py,
# optimizer/distrib_optimizer.py), DeepSpeed (the package `zero` beside this module).
# `reference` is the textbook's 2 + 2 + 12 bytes a parameter.
STACKS = {
    "accelerate": Stack(gathers_logits=True, loss_in_model=True, trains_adapters=True, has_gradient_buckets=True),
    "ddp": Stack(
        gathers_logits=True,
        loss_in_model=True,
        is_plain_on_one_rank=True,
        trains_adapters=True,
        has_gradient_buckets=True,
    ),
    "fsdp2": Stack(
        gathers_logits=False,
        loss_in_model=False,
        wraps_vocabulary=True,
        selective=SelectiveRecompute.OPERATIONS,
        keeps_message_buffers=True,
        casts_products=True,
    ),
    "reference": Stack(
        gathers_logits=False, loss_in_model=True, trains_adapters=True, replication=Replication.MASTER_WEIGHTS
    ),
    "megatron": Stack(
        gathers_logits=False,
        loss_in_model=False,
        replication=Replication.MASTER_WEIGHTS,
        main_gradients_in_fp32=True,
        has_fused_kernels=True,
        frees_sent_outputs=True,
    ),
    "deepspeed": Stack(
        gathers_logits=True,
        loss_in_model=True,
        trains_adapters=True,
        replication=Replication.MASTER_WEIGHTS,
        has_zero_engine=True,
    ),
}


# Why a stack that shards as a traced one does is not traced: the sharding is torch's, the layers or the loss are not.
NOT_TRACED = {
    "atorch": "its strategies change the model's code by rules of their own",
    "composer": "it trains with FSDP1, whose flat parameters and hooks no trace has",
    "litgpt": "its model keeps one fused query, key and value, and FSDP1 shards it",
    "megatron-deepspeed": "its ZeRO stages are its own engine's, not torch's",
    "nanotron": "its layers and its tensor parallelism are its own",
    "torchtune": "its layers and its loss in chunks are its own",
}


# Stacks on whose transformers' model Liger's kernels are put; torchtitan has none, and what a plan of it means is the
# same kernels put into its model by hand.
STACKS_WITH_LIGER = ("accelerate", "ddp", "fsdp2")


def find_stack(framework: str, kernels: str | None = None) -> Stack:
    """Return how a stack is traced with these kernels; raise `NotYetAvailable` for one that is not."""
    stack = STACKS.get(framework)
    if stack is None:
        raise NotYetAvailable(
            f"Framework {framework!r} is not traced yet{_reason(framework)}; traced are {', '.join(sorted(STACKS))}.",
            pointer="/layout/framework",
        )
    if kernels == "fused" and framework in STACKS_WITH_LIGER:
        return replace(stack, has_liger_kernels=True)
    if kernels is not None and (kernels == "fused") is not stack.has_fused_kernels:
        known = "fused" if stack.has_fused_kernels else "eager"
        raise NotYetAvailable(
            f"{framework} is traced with {known} kernels, not {kernels} ones yet.", pointer="/training/kernels"
        )
    return stack


def _reason(framework: str) -> str:
    return f": {NOT_TRACED[framework]}" if framework in NOT_TRACED else ""
