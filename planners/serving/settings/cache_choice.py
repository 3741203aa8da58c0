"""Which cache an engine keeps: its format, its blocks, and of several implementations the one."""

from __future__ import annotations

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.cache.compressed_rows import BLOCK_TOKENS, is_compressed
from plimsoll.planners.serving.cache.kv_formats import KvFormat, kv_format
from plimsoll.planners.serving.releases.profile import EngineProfile

BLACKWELL_FORMAT, PCIE = "nvfp4", "pcie"


def cache_format(question: ServingQuestion, profile: EngineProfile) -> KvFormat:
    """Return the cache's format; raise where the engine version lacks it, or kernels that read it on this card."""
    found, gpu = kv_format(question.kv_cache, profile), question.hardware.gpu
    reads_nvfp4 = BLACKWELL_FORMAT in gpu.peak_flops_per_second and gpu.link_kind != PCIE
    if found.name == BLACKWELL_FORMAT and profile.nvfp4_cache_needs_nvlink and not reads_nvfp4:
        others = (name for name in profile.kv_dtypes if name != BLACKWELL_FORMAT)
        raise InvalidQuestion(
            f"{profile.engine} reads an nvfp4 cache on Blackwell cards with NVLink alone (compute capability 10.x), "
            f"and {gpu.name} is none; allowed are {', '.join(others)}.",
            pointer="/serving/kv_cache",
        )
    return found


def block_size(question: ServingQuestion, profile: EngineProfile) -> int:
    """Return the tokens of a block of the cache; raise where the engine has none of that size."""
    if is_compressed(question.model) and question.block_size in (None, BLOCK_TOKENS):
        return BLOCK_TOKENS
    is_sparse = profile.sparse_block_size is not None and _is_sparse(question.model)
    if question.block_size is None:
        return profile.sparse_block_size if is_sparse and profile.sparse_block_size else profile.block_size
    if is_compressed(question.model):
        raise InvalidQuestion(
            f"The cache of {question.model.name} has blocks of {BLOCK_TOKENS} tokens, not of {question.block_size}.",
            pointer="/serving/block_size",
        )
    if question.block_size not in profile.block_sizes:
        raise InvalidQuestion(
            f"block_size {question.block_size} is not one of {', '.join(map(str, profile.block_sizes))}.",
            pointer="/serving/block_size",
        )
    return question.block_size


def _is_sparse(model: ModelSpec) -> bool:
    """Return whether latents are read by an index, token by token."""
    states = (block.kv for block in model.layers if block.kv is not None)
    return any(state.latent_width and state.index_width for state in states)


def cache_implementation(question: ServingQuestion, profile: EngineProfile) -> str | None:
    """Return which of its caches an engine uses that has several, None where it has one."""
    asked, known = question.cache_implementation, profile.cache_implementations
    if asked is None:
        return known[0] if known else None
    if asked not in known:
        allowed = f"allowed are {', '.join(known)}" if known else "leave it away"
        raise InvalidQuestion(
            f"{profile.engine} has no cache_implementation {asked[:40]!r}; {allowed}.",
            pointer="/serving/cache_implementation",
        )
    return asked
