"""What one layer and the head save for each token, before any layout divides it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.adapters import adapters_by_input
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.recompute_modules import CORE_ATTENTION
from plimsoll.planners.layouts.candidates import IntArray
from plimsoll.planners.layouts.distinct import distinct
from plimsoll.planners.memory.activations import (
    NO_CASTS,
    NOTHING_SAVED,
    SavedBytes,
    checkpoint_width,
    meeting_gradients,
    norm_backward_bytes,
    saved_bytes,
)
from plimsoll.planners.memory.eager_attention import attentions_of, mask_bytes, returned_score_bytes
from plimsoll.planners.memory.holdings import adapter_activation_bytes
from plimsoll.planners.memory.latents import weight_bytes
from plimsoll.planners.memory.layer_events import (
    adapter_cast_bytes,
    beside_second_run,
    copied_halves_bytes,
    keeps_input,
    live_at_attention,
    live_at_first_products,
    live_at_last_norm,
    live_at_plain_softmax,
    live_at_second_norm,
    sums_beside_kept,
)
from plimsoll.planners.memory.mixture_backward import (
    beside_combined_tokens,
    beside_weighed_outputs,
    grouped_sent_bytes,
    live_at_combine,
    live_at_expert_reduction,
    live_at_experts_first_product,
    live_at_experts_last_product,
)
from plimsoll.planners.memory.recurrent import scan_workspace_bytes
from plimsoll.planners.memory.repeated_saves import RepeatedSaves, repeated_saves
from plimsoll.planners.memory.routing import latest_routing_bytes, score_bytes
from plimsoll.planners.memory.selective import (
    ThrownAway,
    exchanged_bytes,
    not_recomputed_bytes,
    scattered_bytes,
    selective_input_bytes,
    selectively_saved_bytes,
    thrown_away,
)
from plimsoll.planners.memory.sequence_first import copied_output_bytes, unrotated_bytes
from plimsoll.planners.memory.state_space import StateSpaceScan, state_space_scan
from plimsoll.planners.memory.unfused_attention import (
    beside_plain_softmax_bytes,
    is_unfused,
    kept_besides_bytes,
    recomputed_inputs_bytes,
)
from plimsoll.planners.stacks.profile import Profile
from plimsoll.planners.stacks.records import Kernels

# The kinds of layers of some hundred models, on a dozen stacks each.
MOST_KEPT_LAYERS = 4096
FP8_BYTES = 1
SAVED_NAMES = tuple(entry.name for entry in fields(SavedBytes))
NOTHING_THROWN = ThrownAway(
    until_attention=NOTHING_SAVED, at_attention=NOTHING_SAVED, within_feed_forward=NOTHING_SAVED
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProducts:
    """What of a layer is otherwise where products cast to fp8 what tensor-parallel ranks gather, and keep that."""

    whole: SavedBytes
    at_second_norm: SavedBytes
    attention_gradients: SavedBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedScores:
    """What depends on the layout of an unfused attention of so many heads, or of several (`unfused_attention.py`).

    `besides_bytes` are kept of each pair of positions where the softmax is torch's, `plain_gradients` are live as it is
    differentiated. `recomputed_inputs_bytes` of each token are there as well where the attention is recomputed, and
    `beside_plain_bytes` then; selective recomputation may name other modules alone, and `runs_again` is false.
    """

    heads: int
    runs_again: bool
    besides_bytes: int
    plain_gradients: SavedBytes
    recomputed_inputs_bytes: int
    beside_plain_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """What one kind of layer saves for each token, and the widths of what lives in its backward pass.

    `whole` is everything, `cast` everything where autocast casts fp32 weights; `again` and `cast_again` are what of
    them several operations save. `combine_whole` is `at_combine` where the experts are no unit of their own.
    `split` is None where tensor-parallel ranks keep what one rank does. Outputs of experts in parts are summed by
    Megatron-Core in the format of the scores, which is wider than that of the outputs by `parts_sum_widening`.
    """

    whole: SavedBytes
    cast: SavedBytes
    again: RepeatedSaves
    cast_again: RepeatedSaves
    selective: SavedBytes
    thrown_away: ThrownAway | None
    at_second_norm: SavedBytes
    at_last_norm: SavedBytes
    attention_gradients: SavedBytes
    split: SplitProducts | None
    returned_score_bytes: int
    mask_bytes: int
    copied_output_bytes: int
    unrotated_bytes: int
    unfused: UnfusedScores | None
    at_first_matmuls: SavedBytes
    at_expert_matmuls: SavedBytes
    experts_last_product: SavedBytes | None
    at_combine: SavedBytes
    combine_whole: SavedBytes
    beside_combine: SavedBytes
    at_expert_reduction: SavedBytes
    weighed_outputs: tuple[int, int]
    not_recomputed_bytes: tuple[int, int]
    selective_input_bytes: int
    scattered_bytes: int
    exchanged_bytes: int
    grouped_sent_bytes: int
    parts_sum_widening: float
    saved_routing_bytes: int
    input_width: int
    at_input_norm_bytes: int
    widest: float
    meeting_gradients: int
    scan_workspace: float
    state_space: StateSpaceScan | None
    adapter_cast_bytes: int
    beside_second_run: int
    copied_halves_bytes: int
    keeps_input: bool
    cast_keeps_input: bool


def layer_bytes(part: BlockWeights, job: Job, module_set: IntArray) -> LayerBytes:
    """Return what a layer of that kind saves, as layouts recompute some of the job's sets of modules.

    Where they have several, what differs between those has one entry a layout, in the shape of `module_set`.
    """
    if module_set.size == 1:
        return _of_modules(part, job, job.module_sets[module_set.item()])
    numbers, place = distinct(module_set)
    return _by_set(tuple(_of_modules(part, job, job.module_sets[number]) for number in numbers.tolist()), place)


def _of_modules(part: BlockWeights, job: Job, modules: tuple[str, ...]) -> LayerBytes:
    return _layer_bytes(
        part,
        ByIdentity(job.profile),
        job.method,
        job.attention,
        job.precision.compute_bytes,
        job.fp8.input_bytes if job.fp8 else 0,
        job.casts_products,
        modules,
    )


def _by_set(every: tuple[LayerBytes, ...], place: IntArray) -> LayerBytes:
    """Return one layer that is each of several by the layouts that have it."""

    def of(amounts: Sequence[float]) -> Any:
        return amounts[0] if len({*amounts}) == 1 else np.array(amounts)[place]

    def saved(amounts: Sequence[SavedBytes]) -> SavedBytes:
        return SavedBytes(**{name: of([getattr(each, name) for each in amounts]) for name in SAVED_NAMES})

    first = every[0]
    thrown = [each.thrown_away or NOTHING_THROWN for each in every]
    unfused = first.unfused
    if unfused is not None:
        unfused = replace(unfused, runs_again=of([each.unfused.runs_again for each in every if each.unfused]))
    return replace(
        first,
        selective=saved([each.selective for each in every]),
        thrown_away=None
        if all(each.thrown_away is None for each in every)
        else ThrownAway(
            until_attention=saved([each.until_attention for each in thrown]),
            at_attention=saved([each.at_attention for each in thrown]),
            within_feed_forward=saved([each.within_feed_forward for each in thrown]),
        ),
        unrotated_bytes=of([each.unrotated_bytes for each in every]),
        unfused=unfused,
    )


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def _layer_bytes(
    part: BlockWeights,
    same: ByIdentity[Profile],
    method: str,
    attention: str,
    size: int,
    fp8_input_bytes: int,
    casts_products: bool,
    modules: tuple[str, ...],
) -> LayerBytes:
    profile, block = same.value, part.block
    kernels = profile.kernels
    sizes: dict[str, Any] = {"attention": attention, "element_bytes": size}
    learning: dict[str, Any] = {**sizes, "learning": part.learning}
    recomputed: dict[str, Any] = {"policy": profile.can.selective_policy, "element_bytes": size}
    whole = saved_bytes(
        block,
        kernels,
        **learning,
        frozen_input_bytes=kernels.four_bit_input_bytes if method == "qlora" else 0,
        fp8_input_bytes=fp8_input_bytes,
    )
    # torchao, float8/float8_tensor_parallel.py: inputs are cast before tensor-parallel ranks gather them.
    split = {**learning, "fp8_input_bytes": FP8_BYTES} if casts_products else None
    # Under autocast peft casts no input of bitsandbytes' matrices (tuners/lora/bnb.py, `Linear4bit.forward`).
    # LitGPT's adapters take what their dropouts give, and of peft's only that is kept.
    read = adapters_by_input(block, part.trainable) if method == "lora" else NO_CASTS
    casts = NO_CASTS if kernels.adapter_dropout_bytes else read
    cast = _cast_bytes(part, kernels, attention, size, casts) if casts or method == "full" else whole
    adapters_bytes = adapter_activation_bytes(part, method, size)
    widest, meeting = meeting_gradients(
        block,
        part.learning,
        experts_in_turn=kernels.experts_in_turn,
        in_place=kernels.works_in_place,
        own_code=kernels.transformers_modules,
        drops_inputs=bool(kernels.adapter_dropout_bytes) and not kernels.joins_attention_adapters,
    )
    return LayerBytes(
        whole=replace(whole, sequence_bytes=whole.sequence_bytes + adapters_bytes),
        cast=replace(cast, sequence_bytes=cast.sequence_bytes + adapters_bytes),
        again=repeated_saves(block, kernels, **learning),
        cast_again=repeated_saves(
            block,
            kernels,
            **learning,
            autocast=part.learning is None,
            adapter_casts=casts,
        ),
        selective=selectively_saved_bytes(
            block,
            kernels,
            **recomputed,
            attention=attention,
            fp8_input_bytes=fp8_input_bytes,
            adds_biases_apart=casts_products,
            modules=modules,
        ),
        thrown_away=thrown_away(block, kernels, whole, **sizes, modules=modules),
        at_second_norm=live_at_second_norm(block, kernels, **learning),
        at_last_norm=live_at_last_norm(block, kernels, **learning),
        attention_gradients=live_at_attention(block, kernels, **learning),
        mask_bytes=mask_bytes(block, kernels, **sizes),
        copied_output_bytes=copied_output_bytes(block, kernels, **sizes),
        unrotated_bytes=unrotated_bytes(block, kernels, **sizes) if not modules or CORE_ATTENTION in modules else 0,
        unfused=_unfused_scores(part, kernels, attention, size, modules),
        returned_score_bytes=returned_score_bytes(block, kernels, **sizes),
        split=None
        if split is None
        else SplitProducts(
            whole=saved_bytes(block, kernels, **split),
            at_second_norm=live_at_second_norm(block, kernels, **split),
            attention_gradients=live_at_attention(block, kernels, **split),
        ),
        at_first_matmuls=live_at_first_products(block, kernels, **learning),
        not_recomputed_bytes=not_recomputed_bytes(block, **recomputed, adds_biases_apart=casts_products),
        selective_input_bytes=selective_input_bytes(block, **recomputed),
        at_expert_matmuls=live_at_experts_first_product(block, kernels, **sizes),
        experts_last_product=live_at_experts_last_product(block, kernels, **sizes),
        at_combine=live_at_combine(block, whole, kernels, size, size),
        combine_whole=live_at_combine(block, whole, kernels, size, weight_bytes(block, kernels, size)),
        beside_combine=beside_combined_tokens(block, kernels, size),
        grouped_sent_bytes=grouped_sent_bytes(block, kernels, size),
        parts_sum_widening=score_bytes(block, size) / size,
        saved_routing_bytes=latest_routing_bytes(block, kernels, size),
        weighed_outputs=beside_weighed_outputs(block, kernels, size),
        at_expert_reduction=live_at_expert_reduction(block, whole, size),
        scattered_bytes=scattered_bytes(block, **recomputed),
        exchanged_bytes=exchanged_bytes(block, **recomputed),
        input_width=checkpoint_width(block),
        at_input_norm_bytes=norm_backward_bytes(block, kernels, size),
        widest=widest,
        meeting_gradients=meeting,
        scan_workspace=scan_workspace_bytes(block, size),
        state_space=state_space_scan(block, kernels, **learning),
        adapter_cast_bytes=adapter_cast_bytes(
            block, kernels, casts if kernels.joins_attention_adapters else read, size
        ),
        beside_second_run=beside_second_run(block, size),
        copied_halves_bytes=copied_halves_bytes(block, kernels, size),
        keeps_input=keeps_input(block, kernels, learning=part.learning, autocast=False),
        cast_keeps_input=keeps_input(block, kernels, learning=part.learning, autocast=part.learning is None),
    )


def _unfused_scores(
    part: BlockWeights, kernels: Kernels, attention: str, size: int, modules: tuple[str, ...]
) -> UnfusedScores | None:
    attentions = attentions_of(part.block)
    if not attentions or not is_unfused(attention, kernels):
        return None
    return UnfusedScores(
        heads=sum(operation.heads for operation in attentions),
        runs_again=not modules or CORE_ATTENTION in modules,
        besides_bytes=sum(operation.heads * kept_besides_bytes(operation, size) for operation in attentions),
        plain_gradients=live_at_plain_softmax(part.block, kernels, element_bytes=size, learning=part.learning),
        recomputed_inputs_bytes=recomputed_inputs_bytes(part.block, size),
        beside_plain_bytes=beside_plain_softmax_bytes(part.block, size),
    )


def sums_at_end(job: Job, *, autocast: bool) -> int:
    """Return how many tensors as wide as the stream stand beside what a layer keeps at its forward pass's end."""
    return sums_beside_kept(job.layers[-1].block, job.profile.kernels, autocast=autocast)


def head_bytes(job: Job) -> tuple[SavedBytes, SavedBytes]:
    """Return what the head saves for each token, and what where autocast casts fp32 weights."""
    return _head_bytes(job.head, ByIdentity(job.profile), job.attention, job.precision.compute_bytes)


@functools.lru_cache(maxsize=MOST_KEPT_LAYERS)
def _head_bytes(
    head: BlockWeights, same: ByIdentity[Profile], attention: str, size: int
) -> tuple[SavedBytes, SavedBytes]:
    kernels = same.value.kernels
    return (
        saved_bytes(head.block, kernels, attention=attention, element_bytes=size, learning=head.learning),
        _cast_bytes(head, kernels, attention, size, adapters_by_input(head.block, head.trainable)),
    )


def _cast_bytes(
    part: BlockWeights, kernels: Kernels, attention: str, size: int, casts: Mapping[str, int]
) -> SavedBytes:
    """Return what is saved where autocast casts: all weights if all learn, or the inputs of adapters."""
    return saved_bytes(
        part.block,
        kernels,
        attention=attention,
        element_bytes=size,
        learning=part.learning,
        autocast=part.learning is None,
        adapter_casts=casts,
    )
