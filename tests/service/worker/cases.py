"""Small models, jobs and plans for the proofs' tests."""

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.jobs.rule import Asked
from plimsoll.service.worker.stacks.found import find_stack
from plimsoll.service.worker.training.step import trace_steps, trace_steps_on_transformers

# 101 rows over 4 ranks are 26 a rank: 104 with FSDP's padding.
LLAMA = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def config(**changes):
    return LLAMA | changes


# Latent attention: queries and keys of 16 + 8 a head, values of 16.
LATENT = config(
    model_type="deepseek_v3",
    num_key_value_heads=4,
    head_dim=8,
    q_lora_rank=32,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    first_k_dense_replace=0,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=48,
    n_group=1,
    topk_group=1,
)


def job(**changes):
    values = {
        "model_name": "small",
        "config": LLAMA,
        "framework": "accelerate",
        "sequence_length": 32,
        "micro_batch_size": 2,
        "accumulation_steps": 1,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "attention": "flash",
        "recompute": "none",
        "recompute_layers": None,
        "fused_cross_entropy": False,
        "data_parallel": 4,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "sequence_parallel": False,
        "zero_stage": 3,
    } | changes
    return TraceJob(**({"shard_group": values["data_parallel"]} | values))


def asked(*, training=None, layout=None, **changes):
    """Return a job with its stack, and what of a request and a layout no job holds."""
    wanted = job(**changes)
    stack = find_stack(wanted.framework, wanted.kernels)
    return Asked(job=wanted, stack=stack, training=training or {}, layout=layout or {})


def traced(stage=None, **changes):
    wanted = job(**changes)
    return trace_steps(wanted, find_stack(wanted.framework), lambda *_progress: None, stage)


_TRACED = {}


def traced_once(stage=None, **changes):
    """Return the ledger of a job, which all tests of a process read and none changes."""
    key = repr((stage, sorted(changes.items())))
    if key not in _TRACED:
        _TRACED[key] = traced(stage, **changes)
    return _TRACED[key]


def traced_on_transformers(stage=None, **changes):
    """Trace what stands in for a stack's own model, where a trace would run that."""
    wanted = job(**changes)
    stage = stage or wanted.deciding_stages[0]
    return trace_steps_on_transformers(wanted, find_stack(wanted.framework), lambda *_progress: None, stage)


def requested_bytes(ledger, kind, *, phase="optimizer"):
    """Return the unrounded bytes of a kind that are alive at the peak of the last such phase."""
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == phase]
    return sum(piece.requested_bytes for piece in ledger.peak(*ranges[-1]).live if piece.kind == kind)


def request(level="trace", *, allocated_bytes=1, training=None, layout=None, kind="train", model=None, stages=()):
    return {
        "level": level,
        "kind": kind,
        "gpu": "h100-sxm-80gb",
        "device": {"on": "any", "any_gpu_kind": False},
        "plan_id": "p",
        "model": {"name": "small", "config": model or LLAMA},
        "request": {
            "training": {
                "method": "full",
                "precision": "bf16-mixed",
                "optimizer": "adamw",
                "sequence_length": 32,
                "attention": "flash",
                **(training or {}),
            }
        },
        "plan": {
            "layout": {
                "framework": "accelerate",
                "gpus": 4,
                "data_parallel": 4,
                "tensor_parallel": 1,
                "pipeline_parallel": 1,
                "virtual_pipeline": 1,
                "context_parallel": 1,
                "expert_parallel": 1,
                "sequence_parallel": False,
                "zero_stage": 3,
                "shard_group": 4,
                "offload": "none",
                "micro_batch_size": 2,
                "gradient_accumulation_steps": 3,
                "recompute": "none",
                "recompute_layers": None,
                "activation_offload": False,
                "fused_cross_entropy": False,
                **(layout or {}),
            },
            "memory": {
                "peak_bytes": allocated_bytes,
                "limit_bytes": 80 * 10**9,
                "allocated_bytes": allocated_bytes,
                "items": {"parameters": allocated_bytes, "runtime": 0},
                "stages": list(stages),
            },
        },
    }
