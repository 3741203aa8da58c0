"""What of a training request is not traced, whichever stack runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from plimsoll.planners.families import model_types_with, traits
from plimsoll.planners.ground.terms import (
    ATTENTION_KINDS,
    GPIPE,
    METHODS,
    ONE_FORWARD_ONE_BACKWARD,
    RECOMPUTE_MODES,
    ZERO_STAGES,
)
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION
from plimsoll.service.worker.jobs.job import EVERY_STATE, FEED_FORWARD, FP8_MIXED, LAYER_NORM, TraceJob
from plimsoll.service.worker.jobs.rule import Asked, Rule

PRECISIONS = ("fp32", "tf32", "fp16-mixed", "bf16-mixed", FP8_MIXED, "bf16")
OPTIMIZERS = (
    "adamw", "adamw-8bit", "paged-adamw", "paged-adamw-8bit", "sgd", "sgd-momentum", "lion", "adafactor", "muon",
)  # fmt: skip
KERNELS = (None, "eager", "fused")
# torch's schedules; PipeDream, which updates after every micro-batch, no stack of these has.
SCHEDULES = (ONE_FORWARD_ONE_BACKWARD, GPIPE)
RECOMPUTE_MODULES = (CORE_ATTENTION, LAYER_NORM, FEED_FORWARD)
MIXTURE_MODULES = ("moe", "moe_act", "shared_experts")
LATENT_MODULES = ("mla_up_proj",)
# What of a training request a job is read from or, as a choice of the planner's, its plan's layout has. A part
# that is not among them changes the job in a way that no trace knows of.
READ_TRAINING_PARTS = frozenset(
    {
        "method", "lora", "precision", "optimizer", "sequence_length", "global_batch_size", "tokens", "gradient_dtype",
        "optimizer_state_dtype", "micro_batch_size", "recompute", "activation_offload", "fused_cross_entropy",
        "attention", "kernels", "expert_imbalance", "gradient_compression", "evaluation", "companions",
        "multi_token_prediction",
    }
)  # fmt: skip
# The lengths that torch's tensor parallelism divides.
KEY_VALUE_HEADS = "num_key_value_heads"
DIVIDED_LENGTHS = ("num_attention_heads", KEY_VALUE_HEADS, "intermediate_size")


def _adapters_without(part: str) -> Rule:
    return Rule(
        broken=lambda asked: bool((asked.training.get("lora") or {}).get(part)),
        pointer=f"/training/lora/{part}",
        words=f"Adapters with {part} are not traced yet.",
    )


def _unread_part(asked: Asked) -> str | None:
    """Return the first part of the request that no trace reads."""
    named = (name for name, value in asked.training.items() if value is not None)
    return next((name for name in named if name not in READ_TRAINING_PARTS), None)


EVERY_PART_IS_READ = Rule(
    broken=lambda asked: _unread_part(asked) is not None,
    pointer=lambda asked: f"/training/{_unread_part(asked)}",
    words=lambda asked: f"A job with {_unread_part(asked)!r} is not traced yet.",
)


def _moves_some_states(asked: Asked) -> bool:
    is_own = asked.stack.has_own_engine or asked.stack.runs_own_model(asked.job)
    return not is_own and asked.job.offload not in ("none", EVERY_STATE)


OFFLOAD_MOVES_EVERY_STATE = Rule(
    broken=_moves_some_states,
    pointer="/layout/offload",
    words=lambda asked: f"Offload of {asked.job.offload} alone is not traced: FSDP2's policy moves every state.",
)
EXPERTS_GET_EQUAL_SHARES = Rule(
    broken=lambda asked: asked.training.get("expert_imbalance", 1.0) != 1.0,
    pointer="/training/expert_imbalance",
    words="expert_imbalance is not traced yet.",
)
GRADIENTS_ARE_NOT_COMPRESSED = Rule(
    broken=lambda asked: asked.training.get("gradient_compression", "none") != "none",
    pointer="/training/gradient_compression",
    words="compressed gradients are not traced yet.",
)


def _without(part: str) -> Rule:
    return Rule(
        broken=lambda asked: bool(asked.training.get(part)),
        pointer=f"/training/{part}",
        words=f"{part} is not traced yet.",
    )


GRADIENTS_HAVE_THE_STACKS_FORMAT = Rule(
    broken=lambda asked: asked.job.gradient_dtype is not None and not asked.stack.has_own_engine,
    pointer="/training/gradient_dtype",
    words=lambda asked: f"gradient_dtype is not traced of {asked.job.framework} yet.",
)


def _untraced_family(asked: Asked) -> str:
    """Return the words on a family, with the reason where one is known."""
    model_type = asked.job.config.get("model_type")
    untraced = traits(model_type).untraced
    reason = f": {untraced}" if untraced else ""
    traced = model_types_with(lambda other: other.tracing is not None)
    return f"{model_type!r} is not traced yet{reason}; traced are {', '.join(traced)}."


FAMILY_IS_TRACED = Rule(
    broken=lambda asked: (
        traits(asked.job.config.get("model_type")).tracing is None and not asked.stack.runs_own_model(asked.job)
    ),
    pointer="/model/config/model_type",
    words=_untraced_family,
)


def _one_of(known: Collection[object], value: Callable[[TraceJob], object], pointer: str) -> Rule:
    return Rule(
        broken=lambda asked: value(asked.job) not in known,
        pointer=pointer,
        words=lambda asked: f"{value(asked.job)!r} is not traced yet; traced are {known}.",
    )


GPIPE_HAS_ONE_CHUNK = Rule(
    broken=lambda asked: asked.job.pipeline_schedule == GPIPE and asked.job.virtual_pipeline > 1,
    pointer="/layout/virtual_pipeline",
    words="GPipe is traced with one chunk a rank.",
)


def _recomputed_modules(asked: Asked) -> tuple[str, ...]:
    """Return the parts of a layer that are recomputed in a trace; a stack's own model knows those of mixtures."""
    is_own_mixture = asked.job.has_experts and asked.stack.runs_own_model(asked.job)
    is_own_latent = "kv_lora_rank" in asked.job.config and asked.stack.runs_own_model(asked.job)
    return (
        *RECOMPUTE_MODULES,
        *(MIXTURE_MODULES if is_own_mixture else ()),
        *(LATENT_MODULES if is_own_latent else ()),
    )


def _untraced_module(asked: Asked) -> str | None:
    """Return the first part of a layer that is asked to be recomputed and is not traced so."""
    known = _recomputed_modules(asked)
    return next((module for module in asked.job.recompute_modules if module not in known), None)


MODULES_ARE_RECOMPUTED = Rule(
    broken=lambda asked: _untraced_module(asked) is not None,
    pointer="/training/recompute/modules",
    words=lambda asked: (
        f"Recomputing {_untraced_module(asked)!r} is not traced yet; traced are {_recomputed_modules(asked)}."
    ),
)
PIPELINE_HAS_ITS_OWN_HEAD = Rule(
    broken=lambda asked: (
        asked.job.pipeline_parallel > 1
        and bool(asked.job.config.get("tie_word_embeddings"))
        and not asked.stack.runs_own_model(asked.job)
    ),
    pointer="/layout/pipeline_parallel",
    words="A pipeline with a head tied to the embedding is not traced yet.",
)


def _uneven_length(asked: Asked) -> tuple[str, int] | None:
    """Return the first length, and its name in the config, that does not divide over tensor-parallel ranks.

    A stack's own model may let several ranks share a key-value head.
    """
    job = asked.job
    for key in DIVIDED_LENGTHS:
        length = job.config.get(key) or job.config.get("num_attention_heads", job.tensor_parallel)
        is_shared = key == KEY_VALUE_HEADS and asked.stack.runs_own_model(job) and job.tensor_parallel % length == 0
        if length % job.tensor_parallel and not is_shared:
            return key, length
    return None


def _uneven(asked: Asked) -> str:
    key, length = _uneven_length(asked) or ("", 0)
    return f"torch's tensor parallelism needs {key} ({length}) divisible by {asked.job.tensor_parallel}."


LENGTHS_DIVIDE = Rule(
    broken=lambda asked: _uneven_length(asked) is not None, pointer="/layout/tensor_parallel", words=_uneven
)
SEQUENCE_DIVIDES = Rule(
    broken=lambda asked: asked.job.sequence_parallel and asked.job.sequence_length % asked.job.tensor_parallel != 0,
    pointer="/layout/sequence_parallel",
    words=lambda asked: (
        f"A sequence of {asked.job.sequence_length} tokens uneven over {asked.job.tensor_parallel} ranks is not "
        "traced yet."
    ),
)
RULES: tuple[Rule, ...] = (
    _adapters_without("modules_to_save"),
    _adapters_without("base_dtype"),
    EVERY_PART_IS_READ,
    OFFLOAD_MOVES_EVERY_STATE,
    EXPERTS_GET_EQUAL_SHARES,
    GRADIENTS_ARE_NOT_COMPRESSED,
    GRADIENTS_HAVE_THE_STACKS_FORMAT,
    _without("optimizer_state_dtype"),
    FAMILY_IS_TRACED,
    _one_of(METHODS, lambda job: job.method, "/training/method"),
    _one_of(PRECISIONS, lambda job: job.precision, "/training/precision"),
    _one_of(OPTIMIZERS, lambda job: job.optimizer, "/training/optimizer"),
    _one_of(ATTENTION_KINDS, lambda job: job.attention, "/training/attention"),
    _one_of(KERNELS, lambda job: job.kernels, "/training/kernels"),
    _one_of(RECOMPUTE_MODES, lambda job: job.recompute, "/layout/recompute"),
    _one_of(SCHEDULES, lambda job: job.pipeline_schedule, "/layout/pipeline_schedule"),
    _one_of(ZERO_STAGES, lambda job: job.zero_stage, "/layout/zero_stage"),
    GPIPE_HAS_ONE_CHUNK,
    MODULES_ARE_RECOMPUTED,
    PIPELINE_HAS_ITS_OWN_HEAD,
    LENGTHS_DIVIDE,
    SEQUENCE_DIVIDES,
)
