"""The rules by which releases of serving engines differ: how they divide a cache, choose a batch, take a card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CompressedLayout(StrEnum):
    """What a block of a compressed cache (DeepSeek-V4) takes on all layers.

    `tuples`: a page of every size for as many layers as the longest group has;
    `slots`: pages of each size, as many as the group with most of them has; `packed`:
    the largest group's own pages. `none`: the engine does not know such models.
    """

    NONE = "none"
    TUPLES = "tuples"
    SLOTS = "slots"
    PACKED = "packed"


class TokensWording(StrEnum):
    """What the engine means by the number of tokens it logs for its cache."""

    BLOCKS_TIMES_SIZE = "blocks_times_size"
    BLOCKS_PER_GROUP = "blocks_per_group"
    CONCURRENCY_TIMES_LENGTH = "concurrency_times_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Model types whose recurrent layers keep a state of within a prompt, in a block of its own, by their mixers.

    Those of `selective_types` (Mamba-2) keep it at any token. Those of `delta_types` (gated
    delta) keep it on cards from `delta_capability` on, where their kernel hands a state out
    every `delta_tokens`, of which a block holds a whole number.
    """

    selective_types: tuple[str, ...] = ()
    delta_types: tuple[str, ...] = ()
    delta_capability: float = 0.0
    delta_tokens: int = 1

    def are_kept(self, model_type: str, capability: float | None) -> bool:
        """Return whether a sequence has a block more in each group of recurrent layers."""
        return model_type in self.selective_types or self._delta(model_type, capability)

    def block_tokens(self, model_type: str, capability: float | None) -> int:
        """Return the tokens that a block must be a multiple of."""
        return self.delta_tokens if self._delta(model_type, capability) else 1

    def _delta(self, model_type: str, capability: float | None) -> bool:
        return model_type in self.delta_types and capability is not None and capability >= self.delta_capability


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTier:
    """Batch limits of cards with at least `memory_gib`, whose names hold no excluded word.

    `graph_requests` is the largest batch captured in CUDA graphs, `graph_requests_wide`
    from 4 tensor ranks on, where the engine chooses them so.
    """

    memory_gib: float
    excludes: tuple[str, ...]
    max_num_batched_tokens: int
    max_num_seqs: int
    graph_requests: int = 0
    graph_requests_wide: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NonTorchMemory:
    """Bytes a worker holds outside torch: alone, in a pipeline, with tensor parallelism."""

    single_bytes: int
    pipeline_bytes: int
    tensor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """What an engine that profiles nothing keeps apart, in MiB by what it is for."""

    constant: float
    per_batched_token: float
    fewest_batched_tokens: int
    per_graph_request: float
    per_rank: float
    per_attention_rank_and_graph_request: float
    many_graph_requests: int
    more_per_attention_rank_and_graph_request: float
    large_card_gib: float
    large_card_least: float
    per_prefill_graph: float
    latent_prefill_graphs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPoolRules:
    """What an engine gives to windows, states and an encoder's output beside the pool of all tokens.

    Models of the types `window_types` have a pool for their windows, of
    `window_tokens_fraction` of the other pool's tokens; a window is freed once in
    `window_slack_tokens`. States take `states_to_tokens` of what the tokens take, 0
    where there is one for each request of the batch limit. A request takes
    `states_per_request`, of models of the types `buffered_types` others;
    `padding_states` belong to no request. An encoder's output has `cross_fraction` of
    the memory, 0 where it shares the pool of all tokens.
    """

    window_types: tuple[str, ...] = ()
    window_tokens_fraction: float = 0.0
    window_slack_tokens: int = 0
    states_to_tokens: float = 0.0
    states_per_request: int = 1
    buffered_types: tuple[str, ...] = ()
    buffered_states_per_request: int = 1
    padding_states: int = 0
    cross_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentCaches:
    """How an engine stores latents: in which `dtypes`, and the index of sparse ones.

    With `packs_sparse` a sparse latent in fp8 has scales of its own and keeps its
    rotary part in 16 bits; with `quantizes_index` the index is in fp8 with scales.
    Models of the types `expanded_types`, or all where that is `any`, are cached as the
    full keys and values that the latent stands for.
    """

    dtypes: tuple[str, ...]
    packs_sparse: bool
    quantizes_index: bool
    expanded_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The least compute capability of NVIDIA's cards: to run at all, and for formats of the weights and the cache."""

    card: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)
    caches: Mapping[str, float] = field(default_factory=dict)
    is_nvidia_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRules:
    """Which degrees divide an engine's replica.

    Without `has_stages` there is no pipeline, without `divides_experts` neither expert nor attention data parallelism.
    `deals_to_all_or_none` takes expert parallelism on all ranks of a stage or none, else on any divisor of them;
    `copies_attention_to_all_or_none` says the same of attention data parallelism.
    """

    has_stages: bool
    divides_experts: bool
    deals_to_all_or_none: bool
    copies_attention_to_all_or_none: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBlockRules:
    """Of which parts of a model every rank must hold whole blocks of scales.

    From release `cuts_experts_from` on a block of experts may lie on two ranks; with `is_nvidia_only` nothing is asked
    on AMD's cards.
    """

    whole_parts: tuple[str, ...] = ()
    cuts_experts_from: str | None = None
    is_nvidia_only: bool = False


PACKED_LATENTS = LatentCaches(dtypes=("bf16", "fp16", "fp8"), packs_sparse=True, quantizes_index=True)


class Admission(StrEnum):
    """When a request takes its room in the cache.

    `chunk`: as its tokens are computed, so that running requests may have to give way; `prompt`: the same, but none
    begins before its whole prompt has room; `estimate`: as `prompt`, and what the running ones are expected to put out
    yet stays free besides; `whole`: its longest length as it begins, so that nobody ever gives way.
    """

    CHUNK = "chunk"
    PROMPT = "prompt"
    ESTIMATE = "estimate"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How an engine fills its steps and admits requests, first come first served.

    With `mixes_prompts` prompts are computed in the steps that decode, after the running requests' tokens; else in
    steps of their own, before any that decodes. With `chunks_prompts` a prompt is cut where a step is full; with
    `chunking_is_optional` the engine can be told otherwise. A request
    that had to give way waits at the front where `resumes_first`, and with `keeps_given_way` its cache is found again
    as far as others have not taken it since. With admission by estimate running requests are expected to put out
    `expected_output` of what they may yet put out, less by an even part at every decode step, and after
    `expectation_steps` of them `least_expected_output`; each counts with `most_expected_tokens` at most. After one gave
    way they are expected to reach what they have and `spare_steps` tokens more, all together.
    """

    admission: Admission
    mixes_prompts: bool
    chunks_prompts: bool
    chunking_is_optional: bool = False
    resumes_first: bool = True
    keeps_given_way: bool = False
    expected_output: float = 0.0
    least_expected_output: float = 0.0
    expectation_steps: int = 1
    most_expected_tokens: int = 0
    spare_steps: int = 0

    @property
    def held_output_fraction(self) -> float:
        """Return how much of their answers running requests hold room for on average, begun one after another."""
        if self.admission is Admission.WHOLE:
            return 1.0
        return (1.0 + self.least_expected_output) / 2
