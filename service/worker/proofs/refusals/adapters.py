"""Which adapters are traced."""

from __future__ import annotations

from plimsoll.service.worker.jobs.rule import Asked, Rule

# Matrices of experts, which transformers holds as two tensors and no linear layers (Mixtral's checkpoints: w1 to w3).
EXPERT_MATRICES = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
OUTSIDE_LAYERS = frozenset({"lm_head", "embed_tokens", "embed_in", "embed_out", "wte", "word_embeddings"})

STACK_TRAINS_ADAPTERS = Rule(
    broken=lambda asked: asked.job.trains_adapters and not asked.stack.trains_adapters,
    pointer="/training/method",
    words=lambda asked: f"{asked.job.framework} with {asked.job.method} is not traced yet.",
)
PACKED_MATRICES_ARE_NOT_SPLIT = Rule(
    broken=lambda asked: asked.job.method == "qlora" and asked.job.tensor_parallel > 1,
    pointer="/layout/tensor_parallel",
    words="bitsandbytes' packed matrices are not split over tensor-parallel ranks: use lora, or tensor_parallel 1.",
)


def _targets(asked: Asked) -> set[str]:
    """Return the last names of the matrices that adapters stand beside."""
    return {name.rsplit(".", 1)[-1] for name in asked.job.lora.target_modules}


ADAPTERS_ARE_IN_LAYERS = Rule(
    broken=lambda asked: asked.job.trains_adapters and not OUTSIDE_LAYERS.isdisjoint(_targets(asked)),
    pointer="/training/lora/target_modules",
    words="Adapters of the embedding and the head are not traced yet.",
)


def _adapts_experts(asked: Asked) -> bool:
    job = asked.job
    names_experts = job.lora.targets_all_linear or not EXPERT_MATRICES.isdisjoint(_targets(asked))
    return job.has_experts and job.trains_adapters and names_experts


EXPERTS_HAVE_NO_ADAPTERS = Rule(
    broken=_adapts_experts,
    pointer="/training/lora/target_modules",
    words="Adapters of experts are not traced yet: name attention's matrices alone.",
)
RULES = (
    STACK_TRAINS_ADAPTERS,
    PACKED_MATRICES_ARE_NOT_SPLIT,
    ADAPTERS_ARE_IN_LAYERS,
    EXPERTS_HAVE_NO_ADAPTERS,
)
