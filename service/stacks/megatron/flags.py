"""Megatron-LM's arguments by our names for what they say: read from commands, and written in launch files.

Source: megatron/training/arguments.py. Those of Megatron-DeepSpeed and Pai-Megatron-Patch have the same names.
"""

from __future__ import annotations

from plimsoll.service.workloads.commands.flags import Flag

FLAGS = (
    Flag(names=("num-layers",), field="layers", form="whole"),
    Flag(names=("hidden-size",), field="hidden", form="whole"),
    Flag(names=("ffn-hidden-size",), field="intermediate", form="whole"),
    Flag(names=("num-attention-heads",), field="heads", form="whole"),
    Flag(names=("group-query-attention",), field="groups_queries", form="switch"),
    Flag(names=("num-query-groups",), field="query_groups", form="whole"),
    Flag(names=("kv-channels",), field="head_dim", form="whole"),
    Flag(names=("max-position-embeddings",), field="positions", form="whole"),
    Flag(names=("vocab-size", "padded-vocab-size"), field="vocabulary", form="whole"),
    Flag(names=("swiglu",), field="is_gated", form="switch"),
    Flag(names=("untie-embeddings-and-output-weights",), field="is_untied", form="switch"),
    Flag(names=("num-experts",), field="experts", form="whole"),
    Flag(names=("moe-router-topk",), field="experts_per_token", form="whole"),
    Flag(names=("moe-ffn-hidden-size",), field="expert_intermediate", form="whole"),
    Flag(names=("mtp-num-layers",), field="multi_token_prediction", form="whole"),
    Flag(names=("seq-length",), field="sequence_length", form="whole"),
    Flag(names=("micro-batch-size",), field="micro_batch_size", form="whole"),
    Flag(names=("global-batch-size",), field="global_batch_size", form="whole"),
    Flag(names=("tensor-model-parallel-size",), field="tensor_parallel", form="whole"),
    Flag(names=("pipeline-model-parallel-size",), field="pipeline_parallel", form="whole"),
    Flag(names=("context-parallel-size",), field="context_parallel", form="whole"),
    Flag(names=("expert-model-parallel-size",), field="expert_parallel", form="whole"),
    Flag(names=("num-layers-per-virtual-pipeline-stage",), field="virtual_stage_layers", form="whole"),
    Flag(names=("num-virtual-stages-per-pipeline-rank",), field="virtual_stages", form="whole"),
    Flag(names=("account-for-embedding-in-pipeline-split",), field="counts_embedding", form="switch"),
    Flag(names=("account-for-loss-in-pipeline-split",), field="counts_loss", form="switch"),
    Flag(
        names=("decoder-first-pipeline-num-layers", "num-layers-in-first-pipeline-stage"),
        field="layers_of_first_stage",
        form="whole",
    ),
    Flag(
        names=("decoder-last-pipeline-num-layers", "num-layers-in-last-pipeline-stage"),
        field="layers_of_last_stage",
        form="whole",
    ),
    Flag(names=("pipeline-model-parallel-layout",), field="listed_stages", form="text"),
    Flag(names=("sequence-parallel",), field="sequence_parallel", form="switch"),
    Flag(names=("use-distributed-optimizer",), field="distributed_optimizer", form="switch"),
    Flag(names=("overlap-grad-reduce",), field="overlap_gradients", form="switch"),
    Flag(names=("overlap-param-gather",), field="overlap_parameters", form="switch"),
    Flag(names=("tp-comm-overlap",), field="overlap_tensor_parallel", form="switch"),
    Flag(names=("overlap-moe-expert-parallel-comm",), field="overlap_expert_parallel", form="switch"),
    Flag(names=("recompute-activations",), field="recompute_selective", form="switch"),
    Flag(names=("recompute-granularity",), field="recompute", form="text"),
    Flag(names=("recompute-method",), field="recompute_method", form="text"),
    Flag(names=("recompute-num-layers",), field="recompute_layers", form="whole"),
    Flag(names=("bf16",), field="bf16", form="switch"),
    Flag(names=("fp16",), field="fp16", form="switch"),
    Flag(names=("fp8-format",), field="fp8", form="text"),
    Flag(names=("optimizer",), field="optimizer", form="text"),
    Flag(names=("muon-tp-mode",), field="muon_blocks", form="text"),
    Flag(names=("use-flash-attn",), field="flash", form="switch"),
    Flag(names=("transformer-impl",), field="implementation", form="text"),
)
