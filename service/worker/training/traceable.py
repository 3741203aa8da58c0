"""Which shardings of which stacks are traced; free of torch, so that a request can be refused before it is queued."""

from __future__ import annotations

from plimsoll.planners.families import traits
from plimsoll.planners.families.family import LLAMA_PARTS
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.job import (
    LAYER_NORM,
    SHAPED_OPTIMIZERS,
    TraceJob,
)
from plimsoll.service.worker.training.kernels.eight_bit_jobs import FP8_MIXED, refuse_eight_bit_products
from plimsoll.service.worker.training.kernels.liger_jobs import refuse_liger_kernels
from plimsoll.service.worker.training.stack import Replication, Stack

# Matrices of experts, which transformers holds as two tensors and no linear layers (Mixtral's checkpoints: w1 to w3).
EXPERT_MATRICES = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
OUTSIDE_LAYERS = frozenset({"lm_head", "embed_tokens", "embed_in", "embed_out", "wte", "word_embeddings"})
# The ring cuts each rank's tokens into two halves, to balance a causal mask (torch, `context_parallel`).
RING_HALVES = 2
MIXED_PRECISIONS = ("bf16-mixed", "fp16-mixed", FP8_MIXED)
FULL_SHARDING_STAGES = (2, 3)  # parameters, or gradients at least, are FSDP2's
ZERO_FRAMEWORKS = ("deepspeed",)  # whose own engine does what FSDP2 does elsewhere
# torch, distributed/pipelining/schedules.py, `_add_unshard_reshard`: of more chunks some are gathered anew.
MOST_GATHERED_CHUNKS = 3


def is_fully_sharded(job: TraceJob) -> bool:
    """Return whether FSDP2 holds the parameters, rather than each rank a whole copy."""
    return job.zero_stage in FULL_SHARDING_STAGES and job.framework not in ZERO_FRAMEWORKS


def keeps_master_weights(job: TraceJob, stack: Stack) -> bool:
    """Return whether the optimizer keeps an fp32 copy of 16-bit parameters."""
    return (
        job.precision in MIXED_PRECISIONS
        and not is_fully_sharded(job)
        and stack.replication is Replication.MASTER_WEIGHTS
    )


def runs_own_code(job: TraceJob, stack: Stack) -> bool:
    """Return whether all that the stack would run is what a trace runs."""
    is_plain = stack.is_plain_on_one_rank and not stack.has_liger_kernels
    return is_plain and job.world_size == 1 and not job.trains_adapters


def refuse_untraced_sharding(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable`, naming it, for a sharding that is not traced of this stack."""
    if is_fully_sharded(job) and stack.main_gradients_in_fp32:
        raise NotYetAvailable(
            f"{job.framework} with zero_stage {job.zero_stage} is not traced yet.", pointer="/layout/zero_stage"
        )
    shards_optimizer = job.zero_stage == 1 and job.data_parallel > 1
    if shards_optimizer and not keeps_master_weights(job, stack):
        raise NotYetAvailable(
            f"{job.framework} with zero_stage 1 in {job.precision} is not traced yet.", pointer="/layout/zero_stage"
        )
    is_divided = is_fully_sharded(job) or keeps_master_weights(job, stack) or job.tensor_parallel > 1
    if job.optimizer in SHAPED_OPTIMIZERS and is_divided:
        raise NotYetAvailable(
            f"{job.optimizer} is traced over whole parameters: neither transformers' Adafactor nor torch's Muon is "
            "traced over shards or an optimizer's flat copies.",
            pointer="/training/optimizer",
        )
    splits_sequence = job.tensor_parallel > 1 and job.sequence_parallel
    if stack.has_fused_kernels and splits_sequence and LAYER_NORM in job.recompute_modules:
        raise NotYetAvailable(
            f"{job.framework}'s norms are not recomputed over a split sequence in a trace yet.",
            pointer="/layout/sequence_parallel",
        )
    if is_fully_sharded(job) and job.virtual_pipeline > MOST_GATHERED_CHUNKS:
        raise NotYetAvailable(
            f"FSDP2 is traced with {MOST_GATHERED_CHUNKS} chunks of a pipeline a rank at most.",
            pointer="/layout/virtual_pipeline",
        )
    if stack.has_zero_engine:
        _refuse_untraced_zero(job)
    model_type, family = job.config["model_type"], job.tracing
    is_known = family.has_llama_matrices or (stack.has_fused_kernels and family.groups_experts)
    if family.has_latent_attention:
        _refuse_untraced_latents(job, stack)
    elif not is_known and (job.tensor_parallel > 1 or stack.has_fused_kernels):
        raise NotYetAvailable(
            f"{model_type!r} is traced without tensor parallelism and fused kernels only.",
            pointer="/layout/tensor_parallel" if job.tensor_parallel > 1 else "/layout/framework",
        )
    if job.states_on_host:
        _refuse_untraced_offload(job)
    if job.trains_adapters and not stack.trains_adapters:
        raise NotYetAvailable(f"{job.framework} with {job.method} is not traced yet.", pointer="/training/method")
    if job.method == "qlora" and job.tensor_parallel > 1:
        raise NotYetAvailable(
            "bitsandbytes' packed matrices are not split over tensor-parallel ranks: use lora, or tensor_parallel 1.",
            pointer="/layout/tensor_parallel",
        )
    _refuse_untraced_experts(job, stack)
    refuse_liger_kernels(job, stack)
    refuse_eight_bit_products(job, stack)
    _refuse_untraced_family(job, stack)
    if job.context_parallel > 1:
        _refuse_untraced_context(job, stack)


def _refuse_untraced_zero(job: TraceJob) -> None:
    if job.precision not in MIXED_PRECISIONS:
        raise NotYetAvailable(
            f"DeepSpeed is traced over 16-bit parameters with an fp32 copy, not in {job.precision}.",
            pointer="/training/precision",
        )
    if job.states_on_host or job.activation_offload:
        raise NotYetAvailable("DeepSpeed's offload is not traced yet.", pointer="/layout/offload")


def _refuse_untraced_latents(job: TraceJob, stack: Stack) -> None:
    """Raise `NotYetAvailable` for latent attention that no stand-in runs."""
    if stack.has_fused_kernels:
        raise NotYetAvailable(
            f"{job.config['model_type']!r} is traced without fused kernels only.", pointer="/layout/framework"
        )
    is_torchtitan_s = stack.wraps_vocabulary and job.sequence_parallel and job.context_parallel == 1
    if job.tensor_parallel > 1 and not is_torchtitan_s:
        raise NotYetAvailable(
            "Latent attention over tensor-parallel ranks is traced as torchtitan does it: fsdp2, a split sequence.",
            pointer="/layout/tensor_parallel",
        )
    if job.tensor_parallel > 1 and job.expert_parallel > 1:
        raise NotYetAvailable(
            "Experts over other ranks are not traced beside tensor parallelism yet.", pointer="/layout/expert_parallel"
        )


def _refuse_untraced_offload(job: TraceJob) -> None:
    is_plain = job.expert_parallel == job.pipeline_parallel == job.context_parallel == 1 and job.method != "qlora"
    if not (is_fully_sharded(job) and is_plain):
        raise NotYetAvailable(
            "States on the host are traced as FSDP2's CPUOffloadPolicy has them, without pipelines, experts or "
            "sequences over several ranks and without 4-bit weights.",
            pointer="/layout/offload",
        )


def _refuse_untraced_experts(job: TraceJob, stack: Stack) -> None:
    names = {name.rsplit(".", 1)[-1] for name in job.lora.target_modules}
    if job.trains_adapters and names & OUTSIDE_LAYERS:
        raise NotYetAvailable(
            "Adapters of the embedding and the head are not traced yet.", pointer="/training/lora/target_modules"
        )
    has_expert_adapters = job.lora.targets_all_linear or EXPERT_MATRICES & names
    if job.has_experts and job.trains_adapters and has_expert_adapters:
        raise NotYetAvailable(
            "Adapters of experts are not traced yet: name attention's matrices alone.",
            pointer="/training/lora/target_modules",
        )
    if job.has_experts and stack.has_fused_kernels:
        _refuse_untraced_groups(job, stack)
        return
    if job.expert_parallel == 1:
        return
    is_plain = job.shard_group == job.data_parallel and job.context_parallel == job.tensor_parallel == 1
    whole_groups = job.data_parallel % job.expert_parallel == 0
    if not (job.has_experts and is_fully_sharded(job) and stack.wraps_vocabulary and is_plain and whole_groups):
        raise NotYetAvailable(
            "Expert parallelism is traced as torchtitan does it, over full sharding's data-parallel ranks alone.",
            pointer="/layout/expert_parallel",
        )


def _refuse_untraced_groups(job: TraceJob, stack: Stack) -> None:
    """Refuse what of Megatron's experts is not traced."""
    if not keeps_master_weights(job, stack):
        raise NotYetAvailable(
            f"{job.framework}'s experts are traced in {' and '.join(MIXED_PRECISIONS)}.", pointer="/training/precision"
        )
    if job.tensor_parallel > 1 and not job.sequence_parallel:
        raise NotYetAvailable(
            f"{job.framework}'s experts are not trained with tensor_parallel but without sequence_parallel "
            "(Megatron-Core, core/transformer/moe/moe_layer.py, refuses it).",
            pointer="/layout/sequence_parallel",
        )
    ranks = job.data_parallel * job.context_parallel * job.tensor_parallel
    if ranks % (job.expert_parallel * job.expert_tensor_parallel):
        raise NotYetAvailable(
            f"{ranks} ranks of a stage do not form groups of {job.expert_parallel} with different experts.",
            pointer="/layout/expert_parallel",
        )


def _refuse_untraced_family(job: TraceJob, stack: Stack) -> None:
    """Raise for what is traced of other families and not of this one."""
    model_type = job.config["model_type"]
    if traits(model_type).parts != LLAMA_PARTS and (job.pipeline_parallel > 1 or job.context_parallel > 1):
        raise NotYetAvailable(
            f"{model_type!r} is traced without pipelines and with whole sequences only.",
            pointer="/layout/pipeline_parallel" if job.pipeline_parallel > 1 else "/layout/context_parallel",
        )
    if job.tracing.has_transposed_matrices and job.method == "qlora":
        raise NotYetAvailable(
            f"The matrices of {model_type!r}, whose first dimension is the input's, are not traced in four bits yet.",
            pointer="/training/method",
        )
    if job.tracing.has_biased_experts and job.expert_parallel > 1:
        raise NotYetAvailable(
            f"The experts of {model_type!r}, which have biases, are traced on every rank only.",
            pointer="/layout/expert_parallel",
        )
    if not job.has_experts:
        return
    if not is_fully_sharded(job) and stack.replication is Replication.AUTOCAST and job.precision in MIXED_PRECISIONS:
        raise NotYetAvailable(
            "Experts held in fp32 are not traced: torch's grouped product is not cast by autocast.",
            pointer="/layout/zero_stage",
        )


def _refuse_untraced_context(job: TraceJob, stack: Stack) -> None:
    is_ring = (is_fully_sharded(job) or stack.has_fused_kernels) and job.attention == "flash"
    has_kernel = job.precision in (*MIXED_PRECISIONS, "bf16")
    is_even = job.sequence_length % (RING_HALVES * job.context_parallel * job.tensor_parallel) == 0
    if not (is_ring and has_kernel and is_even) or job.recompute == "selective":
        raise NotYetAvailable(
            "Context parallelism is traced as a ring of flash attention under FSDP2 or Megatron, over equal halves of "
            "a sequence, without selective recomputation.",
            pointer="/layout/context_parallel",
        )
