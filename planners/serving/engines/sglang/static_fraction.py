"""The share of a card that SGLang gives weights and cache where the client states none: mem_fraction_static.

Sources: sglang, server_args.py, _handle_gpu_memory_settings; since 0.5.23
arg_groups/memory_hook.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache

from plimsoll.planners.architecture import KvKind, ModelSpec, Part
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.ground.units import GIB, MIB
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.memory.budget import given_fraction
from plimsoll.planners.serving.releases.rules import Reserve
from plimsoll.planners.serving.settings.settings import Settings

# Tiers of cuda_graph_max_bs differ below tp_size 4.
WIDE_RANKS = 4
# The fraction is rounded to so many digits, and up to so many what a vision tower leaves of it: a command states it.
DIGITS, STATED = 3, 10**4
# Token counts that prefill graphs are captured for, by step: _generate_piecewise_cuda_graph_tokens, later
# generate_prefill_cuda_graph_batch_sizes.
PREFILL_CAPTURES = (
    *range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1280, 4097, 256),
)  # fmt: skip
PREFILL_CAPTURES_BEYOND, PREFILL_CAPTURE_STEP = 4608, 512
# adjust_mem_fraction_for_vlm: what is left where there is a tower like ViT-L/14, a tenth less for each such more.
VISION_FACTOR, VISION_SENSITIVITY = 0.95, 0.1
VISION_LAYERS, VISION_WIDTH = 24, 1024
LEAST_VISION_FACTOR, MOST_VISION_FACTOR = 0.8, 1.05
TOWER_LAYER = re.compile(r"(.+?)\.(\d+)\.")
MOST_KEPT_MODELS = 1024


def static_fraction(model: ModelSpec, settings: Settings, degrees: Degrees, total_bytes: int) -> float:
    """Return the share for weights and cache: the client's, else what the engine derives from the card."""
    reserve = settings.profile.reserve
    if settings.gpu_memory_utilization is not None or reserve is None:
        return given_fraction(settings)
    card_mib = total_bytes / MIB
    kept = _kept_mib(reserve, settings, degrees) + _prefill_graphs_mib(reserve, model, settings, degrees)
    if total_bytes > reserve.large_card_gib * GIB:
        kept = max(kept, reserve.large_card_least)
    fraction = round((card_mib - kept) / card_mib, DIGITS)
    if fraction <= 0:
        raise InvalidQuestion(
            f"{settings.profile.engine} would reserve {kept:,.0f} MiB of a card of {card_mib:,.0f}; "
            "give gpu_memory_utilization.",
            pointer="/serving/gpu_memory_utilization",
        )
    return math.ceil(round(fraction * _vision_factor(ByIdentity(model)) * STATED, DIGITS)) / STATED


def graph_requests(settings: Settings, degrees: Degrees) -> int:
    """Return the largest batch captured: an engine with tiers takes more from 4 tensor ranks on."""
    is_wide = degrees.ranks_per_stage >= WIDE_RANKS
    return settings.graph_requests_wide if is_wide else settings.graph_requests


def graph_reserve_bytes(settings: Settings, degrees: Degrees) -> int:
    """Return what the engine's own rule sets aside for CUDA graphs of decoding."""
    reserve = settings.profile.reserve
    return 0 if reserve is None else round(reserve.per_graph_request * graph_requests(settings, degrees) * MIB)


def _kept_mib(reserve: Reserve, settings: Settings, degrees: Degrees) -> float:
    requests = graph_requests(settings, degrees)
    kept = reserve.constant + reserve.per_graph_request * requests
    kept += reserve.per_batched_token * max(settings.max_num_batched_tokens, reserve.fewest_batched_tokens)
    kept += reserve.per_rank * degrees.gpus
    if degrees.attention_data_parallel > 1:
        per_request = reserve.per_attention_rank_and_graph_request
        if requests > reserve.many_graph_requests:
            per_request += reserve.more_per_attention_rank_and_graph_request
        kept += per_request * requests * degrees.attention_data_parallel
    return kept


def _prefill_graphs_mib(reserve: Reserve, model: ModelSpec, settings: Settings, degrees: Degrees) -> float:
    """Return what is kept for graphs of prefilling, which pipelines, attention ranks and towers go without."""
    if degrees.pipeline_parallel > 1 or degrees.attention_data_parallel > 1 or _tower(ByIdentity(model)) is not None:
        return 0.0
    if any(block.kv is not None and block.kv.kind is KvKind.LATENT for block in model.layers):
        return reserve.latent_prefill_graphs
    most = settings.max_num_batched_tokens
    captured = sum(1 for tokens in PREFILL_CAPTURES if tokens <= most)
    captured += len(range(PREFILL_CAPTURES_BEYOND, most + 1, PREFILL_CAPTURE_STEP))
    return reserve.per_prefill_graph * captured


@lru_cache(maxsize=MOST_KEPT_MODELS)
def _vision_factor(same: ByIdentity[ModelSpec]) -> float:
    """Return what a vision tower leaves of the fraction, by its layers times its width squared."""
    tower = _tower(same)
    if tower is None:
        return 1.0
    layers, width = tower
    more = layers * width**2 / (VISION_LAYERS * VISION_WIDTH**2) - 1
    return VISION_FACTOR * max(LEAST_VISION_FACTOR, min(MOST_VISION_FACTOR, 1 - VISION_SENSITIVITY * more))


@lru_cache(maxsize=MOST_KEPT_MODELS)
def _tower(same: ByIdentity[ModelSpec]) -> tuple[int, int] | None:
    """Return a vision tower's layers and their width, that of most of its vectors; None without one."""
    weights = [weight for block in same.value.blocks for weight in block.weights if weight.part is Part.VISION]
    if not weights:
        return None
    layers = {(found[1], found[2]) for weight in weights if (found := TOWER_LAYER.match(weight.name))}
    stacks = Counter(stack for stack, _ in layers)
    widths = Counter(weight.shape[0] for weight in weights if len(weight.shape) == 1)
    return max(stacks.values(), default=0), max(widths, key=lambda width: widths[width], default=0)
