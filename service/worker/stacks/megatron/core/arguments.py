"""A job in Megatron-Core's own configs, as the arguments of its launch file make them.

Source: Megatron-LM, training/arguments.py (`core_transformer_config_from_args`, and the defaults), training/training.py
(`get_model`), training/tokenizer/tokenizer.py (`_vocab_size_with_padding`).
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.service.stacks.megatron.pipelines import division_fields
from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.stacks.megatron.core.jobs import MUON, uses_distributed_optimizer
from plimsoll.service.worker.stacks.megatron.core.model_fields import has_latents, model_fields

DTYPES = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16, "fp32": torch.float32}
LEARNING_RATE = 1e-4  # no value is ever computed
MOMENTUM = 0.9
VOCABULARY_MULTIPLE = 128  # --make-vocab-size-divisible-by
# Its names for what says how a pipeline's blocks are divided.
DIVISION_NAMES = {
    "listed_stages": "pipeline_model_parallel_layout",
    "layers_of_first_stage": "num_layers_in_first_pipeline_stage",
    "layers_of_last_stage": "num_layers_in_last_pipeline_stage",
    "counts_embedding": "account_for_embedding_in_pipeline_split",
    "counts_loss": "account_for_loss_in_pipeline_split",
}


def padded_vocabulary(job: TraceJob) -> int:
    """Return the rows of the embedding, of which every rank has as many."""
    multiple = VOCABULARY_MULTIPLE * job.tensor_parallel
    return -(-job.vocabulary_size // multiple) * multiple


def transformer_config(job: TraceJob) -> Any:
    """Return the model's and its layout's config."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    dtype = DTYPES[job.precision]
    kind = MLATransformerConfig if has_latents(job) else TransformerConfig
    return kind(
        **model_fields(job),
        perform_initialization=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        gradient_accumulation_fusion=True,
        deallocate_pipeline_outputs=True,
        batch_p2p_comm=job.virtual_pipeline == 1,
        overlap_p2p_comm=job.virtual_pipeline > 1,
        mtp_num_layers=job.multi_token_prediction or None,
        **_layout(job),
        **_recomputation(job),
        **_offload(job),
    )


def _layout(job: TraceJob) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": job.tensor_parallel,
        "pipeline_model_parallel_size": job.pipeline_parallel,
        "virtual_pipeline_model_parallel_size": job.virtual_pipeline if job.virtual_pipeline > 1 else None,
        "context_parallel_size": job.context_parallel,
        "expert_model_parallel_size": job.expert_parallel,
        "expert_tensor_parallel_size": job.expert_tensor_parallel if job.expert_parallel > 1 else None,
        "overlap_moe_expert_parallel_comm": job.pairs_passes,
        "sequence_parallel": job.sequence_parallel and job.tensor_parallel > 1,
        **{DIVISION_NAMES[field]: value for field, value in division_fields(job.pipeline_layout).items()},
    }


def _recomputation(job: TraceJob) -> dict[str, Any]:
    if job.recompute == "selective":
        modules = list(job.recompute_modules) or None
        return {"recompute_granularity": "selective", "recompute_modules": modules}
    if job.recompute != "full":
        return {}
    if job.recompute_layers is None:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    layers = job.recompute_layers // job.virtual_pipeline
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}


def _offload(job: TraceJob) -> dict[str, Any]:
    if not job.offload_modules:
        return {}
    return {"fine_grained_activation_offloading": True, "offload_modules": list(job.offload_modules)}


def data_parallel_config(job: TraceJob) -> Any:
    """Return the config of its DistributedDataParallel, with fp32 gradients."""
    from megatron.core.distributed import DistributedDataParallelConfig

    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=uses_distributed_optimizer(job),
        num_distributed_optimizer_instances=optimizer_copies(job),
        overlap_grad_reduce=_hides_gradients(job),
        overlap_param_gather=_hides_parameters(job),
    )


def optimizer_copies(job: TraceJob) -> int:
    """Return how many copies of the distributed optimizer there are over the replicas."""
    return job.data_parallel // job.shard_group if uses_distributed_optimizer(job) else 1


def optimizer_config(job: TraceJob) -> Any:
    """Return the optimizer's config; gradients are not clipped, as in no trace."""
    from megatron.core.optimizer import OptimizerConfig

    dtype = DTYPES[job.precision]
    return OptimizerConfig(
        optimizer="sgd" if job.optimizer == "sgd-momentum" else "adam",  # Muon's is Adam's as well
        lr=LEARNING_RATE,
        sgd_momentum=MOMENTUM,
        params_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        fp16=dtype is torch.float16,
        use_distributed_optimizer=uses_distributed_optimizer(job),
        overlap_param_gather=_hides_parameters(job),
        optimizer_cpu_offload=job.states_on_host,
        optimizer_offload_fraction=1.0,
        use_precision_aware_optimizer=job.states_on_host,
        clip_grad=0.0,
    )


def _hides_gradients(job: TraceJob) -> bool:
    is_asked = job.overlap is None or job.overlap.gradients
    return job.data_parallel > 1 and job.optimizer != MUON and is_asked


def _hides_parameters(job: TraceJob) -> bool:
    is_asked = job.overlap is None or job.overlap.parameters
    return job.data_parallel > 1 and uses_distributed_optimizer(job) and is_asked
