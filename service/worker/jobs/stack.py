"""What a training stack does that changes a trace; each folder of `stacks` has one, as STACK in its module `stack`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.rule import Rule, Subject


def _none(_job: TraceJob) -> bool:
    return False


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
class Notes:
    """What a proof says of the code that ran, or stood in: a stack's engine, offload, model, kernels and experts."""

    engine: str = ""
    offload: str = ""
    model: str = ""
    kernels: str = ""
    kernels_on_device: str = ""
    experts: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One training stack by the name that plans call it; `program` is what sentences call its code.

    One that is not traced says why in `untraced`, and nothing else; None means that it is.

    `gathers_logits`: tensor-parallel ranks each hold the logits of the whole
    vocabulary, and do not split the loss. `loss_in_model`: the logits do not leave
    the model. `is_plain_on_one_rank`: without other ranks the stack adds nothing to
    torch and transformers, whose own code a trace runs; everywhere else parts of the
    stack are stood in for. `trains_adapters`: low-rank adapters are peft's. `wraps_vocabulary` gives the
    embedding, and the last norm with the head, FSDP units of their own.
    `recomputes_to_the_end`: a layer's second run goes on after the last tensor that its backward pass needs.
    `has_gradient_buckets`: DistributedDataParallel copies gradients into buckets.
    `has_fused_kernels`: norms, SwiGLU and the loss are single kernels of its own.
    `takes_liger_kernels`: Liger's can be put on its model; `has_liger_kernels`: they are.
    `casts_products`: products in fp8 are torchao's `Float8Linear`, without `torch.compile`.
    `groups_experts`: a mixture's experts work in one grouped product, between permutations of its own.
    `deals_experts`: whole experts lie on other data-parallel ranks, to which tokens are sent.
    `splits_latents`: latent attention is split over tensor-parallel ranks by head.
    `frees_sent_outputs`: a pipeline stage lets go of an output once it is sent.
    `keeps_message_buffers`: a stage has a buffer for everything that it receives in a step.
    `main_gradients_in_fp32`: the 16-bit gradients are added to an fp32 buffer.
    `always_reduces_in_fp32`: gradients are reduced in fp32 in pure bf16 too.
    `reduces_as_it_computes`: in mixed precision too they are reduced in the format of the products.
    `own_engine` is the installed package whose engine has parameters, gradients and optimizer, at every ZeRO stage.
    `own_model` is the installed package that makes whole steps of the jobs of which `runs_own_model` holds.

    `own_wrapper` is the installed package that shards or replicates whole models by torch's own ways, of the jobs of
    which `runs_own_wrapper` holds. `own_trainer` is the installed package whose trainers run over that, with models
    beside the one that learns; `evaluates` says that transformers' Trainer evaluates over it too.

    `own_code` is the module that has OWN_CODE, which stands in for the stack's own (`training/own_code.py`): named and
    not imported, for torch comes with it. `rules` are those that its jobs break
    beside every stack's, after those of the same subject.
    """

    name: str
    program: str = ""
    untraced: str | None = None
    gathers_logits: bool = False
    loss_in_model: bool = False
    is_plain_on_one_rank: bool = False
    trains_adapters: bool = False
    wraps_vocabulary: bool = False
    selective: SelectiveRecompute = SelectiveRecompute.ATTENTION
    recomputes_to_the_end: bool = False
    replication: Replication = Replication.AUTOCAST
    has_gradient_buckets: bool = False
    main_gradients_in_fp32: bool = False
    has_fused_kernels: bool = False
    takes_liger_kernels: bool = False
    has_liger_kernels: bool = False
    casts_products: bool = False
    groups_experts: bool = False
    deals_experts: bool = False
    splits_latents: bool = False
    frees_sent_outputs: bool = False
    keeps_message_buffers: bool = False
    always_reduces_in_fp32: bool = False
    reduces_as_it_computes: bool = False
    own_engine: str = ""
    own_model: str = ""
    runs_own_model: Callable[[TraceJob], bool] = _none
    own_wrapper: str = ""
    runs_own_wrapper: Callable[[TraceJob], bool] = _none
    own_trainer: str = ""
    evaluates: bool = False
    notes: Notes = Notes()
    rules: Mapping[Subject, tuple[Rule, ...]] = field(default_factory=dict)
    own_code: str = ""

    @property
    def has_own_engine(self) -> bool:
        """Return whether a trace runs the stack's own engine."""
        return bool(self.own_engine)
