"""What is not traced of Megatron's products in fp8, of its norms over a split sequence, and of its experts."""

from __future__ import annotations

from plimsoll.service.worker.jobs.job import FP8_MIXED, LAYER_NORM, MIXED_PRECISIONS
from plimsoll.service.worker.jobs.rule import Asked, Rule
from plimsoll.service.worker.jobs.states import keeps_master_weights
from plimsoll.service.worker.stacks.megatron.core.jobs import has_own_layers

PRODUCTS_IN_FP8_ARE_TRANSFORMER_ENGINE_S = Rule(
    broken=lambda asked: asked.job.precision == FP8_MIXED,
    pointer="/training/precision",
    words=(
        "Megatron's products in fp8 are Transformer Engine's. Without it Megatron-Core 0.16.1 multiplies in 16 bits, "
        "and says nothing (core/fp8_utils.py, get_fp8_context); with it they are CUDA functions behind torch's "
        "dispatcher, which fake tensors do not pass (pytorch/cpp_extensions/gemm.py). Trace bf16-mixed, or fp8-mixed "
        "under fsdp2, or send a measured peak."
    ),
)


def _recomputes_split_norms(asked: Asked) -> bool:
    job = asked.job
    is_split = job.tensor_parallel > 1 and job.sequence_parallel
    return is_split and LAYER_NORM in job.recompute_modules and not asked.stack.runs_own_model(job)


NORMS_ARE_NOT_RECOMPUTED_SPLIT = Rule(
    broken=_recomputes_split_norms,
    pointer="/layout/sequence_parallel",
    words=lambda asked: f"{asked.job.framework}'s norms are not recomputed over a split sequence in a trace yet.",
)
DIVIDED_STATES_ARE_ADAM_S = Rule(
    broken=lambda asked: asked.job.zero_stage == 1 and asked.job.optimizer not in ("adamw", "muon"),
    pointer="/training/optimizer",
    words=lambda asked: (
        f"{asked.job.framework}'s distributed optimizer (zero_stage 1) takes Adam alone (Megatron-Core, "
        f"core/optimizer/distrib_optimizer.py, refuses {asked.job.optimizer})."
    ),
)
MUON_IS_MEGATRON_CORES = Rule(
    broken=lambda asked: asked.job.optimizer == "muon" and not asked.stack.runs_own_model(asked.job),
    pointer="/training/optimizer",
    words=lambda asked: (
        f"{asked.job.framework}'s Muon is traced by Megatron-Core's own code, which does not run this job of "
        f"{asked.job.config.get('model_type')!r} in {asked.job.precision}; its plan is held to that code by models "
        "that it runs."
    ),
)
MUON_IS_TRACED = Rule(
    broken=lambda asked: asked.job.optimizer == "muon",
    pointer="/training/optimizer",
    words="Megatron's Muon runs in a trace and not on a device yet.",
)
STATES_ON_THE_HOST_ARE_COPIES = Rule(
    broken=lambda asked: asked.job.states_on_host and not keeps_master_weights(asked.job, asked.stack),
    pointer="/training/precision",
    words=lambda asked: (
        f"{asked.job.framework}'s states on the host are traced in {' and '.join(MIXED_PRECISIONS)}: by their fp32 the "
        "trace tells them from the device's."
    ),
)
EXPERTS_KEEP_MASTER_WEIGHTS = Rule(
    broken=lambda asked: asked.job.has_experts and not keeps_master_weights(asked.job, asked.stack),
    pointer="/training/precision",
    words=lambda asked: f"{asked.job.framework}'s experts are traced in {' and '.join(MIXED_PRECISIONS)}.",
)


def _splits_experts_alone(asked: Asked) -> bool:
    return asked.job.has_experts and asked.job.tensor_parallel > 1 and not asked.job.sequence_parallel


EXPERTS_NEED_A_SPLIT_SEQUENCE = Rule(
    broken=_splits_experts_alone,
    pointer="/layout/sequence_parallel",
    words=lambda asked: (
        f"{asked.job.framework}'s experts are not trained with tensor_parallel but without sequence_parallel "
        "(Megatron-Core, core/transformer/moe/moe_layer.py, refuses it)."
    ),
)


def _ranks_of_a_stage(asked: Asked) -> int:
    return asked.job.data_parallel * asked.job.context_parallel * asked.job.tensor_parallel


def _forms_no_groups(asked: Asked) -> bool:
    job = asked.job
    return job.has_experts and _ranks_of_a_stage(asked) % (job.expert_parallel * job.expert_tensor_parallel) != 0


EXPERTS_LIE_IN_WHOLE_GROUPS = Rule(
    broken=_forms_no_groups,
    pointer="/layout/expert_parallel",
    words=lambda asked: (
        f"{_ranks_of_a_stage(asked)} ranks of a stage do not form groups of {asked.job.expert_parallel} with different "
        "experts."
    ),
)


def _predicts_more(asked: Asked) -> bool:
    return asked.job.multi_token_prediction > 0


MULTI_TOKEN_PREDICTION_IS_MEGATRON_CORES = Rule(
    broken=lambda asked: _predicts_more(asked) and not asked.stack.runs_own_model(asked.job),
    pointer="/training/multi_token_prediction",
    words=lambda asked: (
        "Multi-token prediction is traced by Megatron-Core's own code, which does not run this job of "
        f"{asked.job.config.get('model_type')!r}; its plan is held to that code by models that it runs."
    ),
)


def _predicts_apart_in_chunks(asked: Asked) -> bool:
    """Return whether further layers stand on another stage than the head, of a pipeline that is interleaved."""
    job = asked.job
    if not _predicts_more(asked) or job.virtual_pipeline == 1:
        return False
    division = job.pipeline.division
    return division.multi_token != division.head


MULTI_TOKEN_PREDICTION_STANDS_BY_THE_HEAD = Rule(
    broken=_predicts_apart_in_chunks,
    pointer="/layout/pipeline_layout",
    words=(
        "Where stages are interleaved, layers for multi-token prediction are traced on the head's own virtual stage "
        "only: elsewhere a stage's messages are of two lengths."
    ),
)
MULTI_TOKEN_PREDICTION_IS_TRACED = Rule(
    broken=_predicts_more,
    pointer="/training/multi_token_prediction",
    words="Layers for multi-token prediction run in a trace and not on a device yet.",
)
PAIRED_PASSES_ARE_MEGATRON_CORES = Rule(
    broken=lambda asked: asked.job.pairs_passes and not asked.stack.runs_own_model(asked.job),
    pointer="/layout/overlap/expert_parallel",
    words=lambda asked: (
        "Passes of two micro-batches side by side are traced by Megatron-Core's own schedule, which does not run this "
        f"job of {asked.job.config.get('model_type')!r}; plan with overlap.expert_parallel false."
    ),
)


def _gives_away_tokens(asked: Asked) -> bool:
    job = asked.job
    experts = job.config.get("num_local_experts") or job.config.get("num_experts") or 0
    return job.pairs_passes and job.expert_tensor_parallel == 1 and experts == job.expert_parallel


PAIRED_EXPERTS_ARE_SEVERAL = Rule(
    broken=_gives_away_tokens,
    pointer="/layout/overlap/expert_parallel",
    words=(
        "With one expert on each rank Megatron-Core 0.16.1 does not run overlap.expert_parallel: it frees the tokens "
        "sent to the expert (core/models/gpt/fine_grained_callables.py, should_free_input), which sorts none and needs "
        "them in its backward pass. Plan with expert_parallel below the number of experts, or overlap.expert_parallel "
        "false."
    ),
)
PAIRED_PASSES_ARE_TRACED = Rule(
    broken=lambda asked: asked.job.pairs_passes,
    pointer="/layout/overlap/expert_parallel",
    words="Passes of two micro-batches side by side run in a trace and not on a device yet.",
)
DESCRIBED_MODELS_ARE_TRACED = Rule(
    broken=lambda asked: has_own_layers(asked.job),
    pointer="/model/config/model_type",
    words=lambda asked: (
        f"Megatron-Core's layers of {asked.job.config.get('model_type')!r} run in a trace and not on a device yet."
    ),
)
OFFLOADED_PARTS_ARE_MEGATRON_CORES = Rule(
    broken=lambda asked: bool(asked.job.offload_modules) and not asked.stack.runs_own_model(asked.job),
    pointer="/layout/activation_offload",
    words=lambda asked: (
        "Parts of layers on the host are traced by Megatron-Core's own code, which does not run this job of "
        f"{asked.job.config.get('model_type')!r}; its plan is held to that code by models that it runs."
    ),
)
SHARED_BUFFERS_ARE_TRANSFORMER_ENGINE_S = Rule(
    broken=lambda asked: asked.job.asks_tensor_overlap and asked.job.tensor_parallel > 1,
    pointer="/layout/overlap/tensor_parallel",
    words=(
        "The buffers of --tp-comm-overlap, and the products that work in them, are Transformer Engine's, which needs a "
        "GPU. Leave overlap.tensor_parallel out, or send a measured peak."
    ),
)
EXCHANGED_HEADS_ARE_TRANSFORMER_ENGINE_S = Rule(
    broken=lambda asked: asked.job.context_all_to_all > 1,
    pointer="/layout/context_all_to_all",
    words=(
        "The exchange of heads for tokens before attention (--cp-comm-type a2a, a2a+p2p) is Transformer Engine's, "
        "which needs a GPU. Plan with context_all_to_all 1, or send a measured peak."
    ),
)
OFFLOADED_LAYERS_ARE_TRANSFORMER_ENGINE_S = Rule(
    broken=lambda asked: asked.job.offload_layers is not None,
    pointer="/layout/activation_offload",
    words=(
        "Layers that send all they keep to the host (--cpu-offloading-num-layers) do it by Transformer Engine's code, "
        "which skips fake tensors and needs a GPU. Name modules in place of layers, or send a measured peak."
    ),
)
RULES_OF_EXPERTS = (
    EXPERTS_KEEP_MASTER_WEIGHTS,
    EXPERTS_NEED_A_SPLIT_SEQUENCE,
    EXPERTS_LIE_IN_WHOLE_GROUPS,
    PAIRED_EXPERTS_ARE_SEVERAL,
)
