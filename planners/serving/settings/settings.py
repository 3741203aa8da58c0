"""A serving question's settings, resolved: the engine's defaults filled in, every value checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec, OperationKind
from plimsoll.planners.families.reading.rope_scaling import FROM_ORIGINAL, stretched_by
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.terms import SERVING_OBJECTIVES
from plimsoll.planners.learned import Learned
from plimsoll.planners.questions import LengthDistribution, RopeScaling, ServingQuestion
from plimsoll.planners.serving.cache.compressed_rows import BLOCK_TOKENS, is_compressed
from plimsoll.planners.serving.cache.kv_formats import KvFormat, kv_format
from plimsoll.planners.serving.formats.weight_format import WeightFormat, weight_format
from plimsoll.planners.serving.releases.able import able_profile
from plimsoll.planners.serving.releases.cards import check_formats
from plimsoll.planners.serving.releases.profile import EngineProfile, engine_profile
from plimsoll.planners.serving.releases.rules import BatchTier
from plimsoll.planners.serving.traffic import Traffic, mean_tokens, sample_tokens

# The traffic assumed where the client states none: the 1k/1k scenario of InferenceX
# (github.com/SemiAnalysisAI/InferenceX), the commonest shape in public measurements.
ASSUMED_INPUT_TOKENS = 1024
ASSUMED_OUTPUT_TOKENS = 1024
# Beyond any machine's or model's; refuses absurd sizes before they are computed with.
MOST_TOKENS = 2**31
BLACKWELL_FORMAT, PCIE = "nvfp4", "pcie"
MOST_CONCURRENCY = 10**7
INPUT_LENGTH, OUTPUT_LENGTH = "/serving/input_length", "/serving/output_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine runs with. `concurrency` is None where the client named none.

    `sequence_tokens` are requests' lengths at their end, each for an equal part of them.

    `gpu_memory_utilization` is the engine's own fraction under its own name
    (mem_fraction_static, free_gpu_memory_fraction), None where it follows from the
    layout. A batch of `graph_requests` is the largest captured in CUDA graphs, from
    4 tensor ranks on `graph_requests_wide`; 0 where the batch limit decides.
    """

    profile: EngineProfile
    weights: WeightFormat
    kv: KvFormat
    max_model_len: int
    input_tokens: int
    output_tokens: int
    traffic: Traffic
    sequence_tokens: tuple[int, ...]
    concurrency: int | None
    requests_per_second: float | None
    gpu_memory_utilization: float | None
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    graph_requests: int
    graph_requests_wide: int
    cache_implementation: str | None
    learned: Learned | None
    assumptions: tuple[str, ...]

    @property
    def request_tokens(self) -> int:
        """Return a request's tokens at its end."""
        return self.input_tokens + self.output_tokens


def resolve_settings(question: ServingQuestion) -> Settings:
    """Return the checked settings; raise `InvalidQuestion` with the field that makes no sense."""
    _check_objective(question)
    profile = able_profile(
        question.engine,
        question.engine_version,
        model_type=question.model.model_type,
        gpu=question.hardware.gpu,
    )
    check_formats(question, profile)
    _check_timing(question, profile)
    if (question.layout.decode_context_parallel or 1) > 1 and not profile.divides_contexts:
        raise ImpossibleLayout(
            f"{profile.engine} {profile.version} has no decode_context_parallel; it must be 1.",
            rule="engine-has-degree",
            pointer="/layout/decode_context_parallel",
        )
    tier = profile.batch_tier(question.hardware.gpu)
    notes: list[str] = []
    if question.rope_scaling is not None:
        notes.append("rope_scaling: how well the model answers beyond its own positions is not judged.")
    if question.engine_version is None:
        newest = engine_profile(question.engine, None).version
        which = "newest known" if profile.version == newest else "newest that runs this model on this card"
        notes.append(f"engine_version {profile.version}, the {which}.")
    max_model_len = _max_model_len(question, notes)
    input_tokens, output_tokens = _traffic(question, max_model_len, notes)
    batched = _batched_tokens(question, profile, tier, max_model_len)
    sequences = _positive(question.max_num_seqs, "max_num_seqs", min(tier.max_num_seqs, batched))
    if batched < sequences:
        raise InvalidQuestion(
            f"max_num_batched_tokens ({batched}) must be at least max_num_seqs ({sequences}).",
            pointer="/serving/max_num_batched_tokens",
        )
    traffic, sequences_tokens = _requests(question, input_tokens, output_tokens, max_model_len)
    concurrency = question.concurrency
    _check_rate(question)
    if concurrency is not None and not 1 <= concurrency <= MOST_CONCURRENCY:
        raise InvalidQuestion(f"concurrency must be 1 to {MOST_CONCURRENCY}.", pointer="/serving/concurrency")
    return Settings(
        profile=profile,
        weights=weight_format(question.weights),
        kv=_cache_format(question, profile),
        max_model_len=max_model_len,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        traffic=traffic,
        sequence_tokens=sequences_tokens,
        concurrency=concurrency,
        requests_per_second=question.requests_per_second,
        gpu_memory_utilization=_utilization(question, profile),
        block_size=_block_size(question, profile),
        max_num_batched_tokens=batched,
        max_num_seqs=sequences,
        graph_requests=tier.graph_requests,
        graph_requests_wide=tier.graph_requests_wide,
        cache_implementation=_cache_implementation(question, profile),
        learned=question.learned.get(question.weights),
        assumptions=tuple(notes),
    )


def _batched_tokens(question: ServingQuestion, profile: EngineProfile, tier: BatchTier, max_model_len: int) -> int:
    """Return the tokens of a batch; raise where the engine would not start with so few."""
    has_encoder = any(block.cross is not None for block in question.model.layers)
    is_whole = profile.computes_encoder_prompts_whole and has_encoder
    least = max_model_len if is_whole else 1
    batched = _positive(
        question.max_num_batched_tokens, "max_num_batched_tokens", max(least, tier.max_num_batched_tokens)
    )
    if batched < least:
        raise InvalidQuestion(
            f"max_num_batched_tokens ({batched}) must be at least max_model_len ({max_model_len}): "
            f"{profile.title} computes the prompts of encoder-decoder models whole.",
            pointer="/serving/max_num_batched_tokens",
        )
    return batched


def _cache_format(question: ServingQuestion, profile: EngineProfile) -> KvFormat:
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


def _check_timing(question: ServingQuestion, profile: EngineProfile) -> None:
    """Raise `NotYetAvailable` for what takes a speed that no measurement describes."""
    if profile.timed_as is not None:
        return
    if question.slo is not None:
        raise NotYetAvailable(f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/slo")
    if question.disaggregated is not None:
        raise NotYetAvailable(
            f"{profile.engine} cannot be planned with prefill and decode replicas yet.",
            pointer="/serving/disaggregated",
        )
    if question.requests_per_second is not None:
        raise NotYetAvailable(
            f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/requests_per_second"
        )
    if question.objective == "latency":
        raise NotYetAvailable(f"The speed of {profile.engine} cannot be predicted yet.", pointer="/objective")


def _check_objective(question: ServingQuestion) -> None:
    if question.objective not in SERVING_OBJECTIVES:
        raise InvalidQuestion(
            f"{question.objective[:40]!r} is no objective; known are {', '.join(SERVING_OBJECTIVES)}.",
            pointer="/serving/objective",
        )
    layout = question.layout
    for field, degree in (
        ("attention_data_parallel", layout.attention_data_parallel),
        ("expert_parallel", layout.expert_parallel),
        ("decode_context_parallel", layout.decode_context_parallel),
    ):
        if degree is not None and degree < 1:
            raise InvalidQuestion(f"{field} must be at least 1.", pointer=f"/layout/{field}")
    slo = question.slo
    for field, seconds in (
        ("ttft_seconds", slo.ttft_seconds if slo else None),
        ("tpot_seconds", slo.tpot_seconds if slo else None),
    ):
        if seconds is not None and not seconds > 0:
            raise InvalidQuestion(f"{field} must be above 0.", pointer=f"/serving/slo/{field}")


def _max_model_len(question: ServingQuestion, notes: list[str]) -> int:
    limit = longest_positions(question)
    length = question.max_model_len
    if length is None:
        if limit is None:
            raise InvalidQuestion(
                f"{question.model.name} does not state its longest context; give max_model_len.",
                pointer="/serving/max_model_len",
            )
        notes.append(f"max_model_len {limit}, the model's own limit, as the engine takes it.")
        return limit
    if not 1 <= length <= MOST_TOKENS:
        raise InvalidQuestion(f"max_model_len must be 1 to {MOST_TOKENS}.", pointer="/serving/max_model_len")
    if limit is not None and length > limit:
        raise InvalidQuestion(
            f"max_model_len {length} is beyond the {limit} positions of {question.model.name}: allowed are 1 to "
            f"{limit}, or more where rope_scaling is stated, by the model's config or by serving.rope_scaling.",
            pointer="/serving/max_model_len",
            rule="length-within-positions",
        )
    return length


def longest_positions(question: ServingQuestion) -> int | None:
    """Return the model's longest context, as the question stretches it; None where the model states none.

    Raises `InvalidQuestion` where there is nothing to stretch.
    """
    stated, scaling = question.model.max_position_embeddings, question.rope_scaling
    if scaling is None:
        return stated
    turns = any(
        operation.kind is OperationKind.ROTARY for block in question.model.layers for operation in block.operations
    )
    if stated is None or not turns:
        raise InvalidQuestion(
            f"{question.model.name} has no rotary positions of a stated number to stretch.",
            pointer="/serving/rope_scaling",
        )
    reach = stretched_by(scaling.in_config, stated)
    if reach <= stated:
        raise InvalidQuestion(
            f"rope_scaling reaches {reach} positions, and {question.model.name} has {stated} without it.",
            pointer="/serving/rope_scaling",
        )
    return reach


def stated_scaling(question: ServingQuestion) -> RopeScaling | None:
    """Return how positions are stretched, with the original ones that YaRN takes the config's own for."""
    scaling = question.rope_scaling
    if (
        scaling is None
        or scaling.rope_type not in FROM_ORIGINAL
        or scaling.original_max_position_embeddings is not None
    ):
        return scaling
    return dataclasses.replace(scaling, original_max_position_embeddings=question.model.max_position_embeddings)


def _traffic(question: ServingQuestion, max_model_len: int, notes: list[str]) -> tuple[int, int]:
    """Return a request's input and output tokens, assumed where absent and never beyond the context."""
    given_input = _given_tokens(question.input_tokens, question.input_length, "input")
    given_output = _given_tokens(question.output_tokens, question.output_length, "output")
    for field, value in (("input_tokens", given_input), ("output_tokens", given_output)):
        if value is not None and not 1 <= value <= MOST_TOKENS:
            raise InvalidQuestion(f"{field} must be 1 to {MOST_TOKENS}.", pointer=f"/serving/{field}")
    if max_model_len < 2:
        raise InvalidQuestion("max_model_len must hold one token in and one out.", pointer="/serving/max_model_len")
    room = max_model_len - (given_input or 0) - (given_output or 0)
    if given_input is None and given_output is None:
        input_tokens = min(ASSUMED_INPUT_TOKENS, max_model_len // 2)
        output_tokens = min(ASSUMED_OUTPUT_TOKENS, max_model_len - input_tokens)
    else:
        input_tokens = given_input if given_input is not None else min(ASSUMED_INPUT_TOKENS, max(room, 1))
        output_tokens = given_output if given_output is not None else min(ASSUMED_OUTPUT_TOKENS, max(room, 1))
    if input_tokens + output_tokens > max_model_len:
        pointer = "/serving/input_tokens" if given_input is not None else "/serving/output_tokens"
        raise InvalidQuestion(
            f"{input_tokens} tokens in and {output_tokens} out do not fit max_model_len {max_model_len}.",
            pointer=pointer,
        )
    if given_input is None:
        notes.append(f"input_tokens {input_tokens}, assumed.")
    if given_output is None:
        notes.append(f"output_tokens {output_tokens}, assumed.")
    return input_tokens, output_tokens


def _given_tokens(tokens: int | None, length: LengthDistribution | None, side: str) -> int | None:
    """Return the tokens asked for, a distribution's mean where one is given instead."""
    if length is None:
        return tokens
    if tokens is not None:
        raise InvalidQuestion(f"Give {side}_tokens or {side}_length.", pointer=f"/serving/{side}_length")
    return mean_tokens(length, f"/serving/{side}_length")


def _requests(
    question: ServingQuestion, input_tokens: int, output_tokens: int, max_model_len: int
) -> tuple[Traffic, tuple[int, ...]]:
    """Return the mean request, and the lengths at their end of all of them, cut at the longest context."""
    hit_rate, draft = question.prefix_cache_hit_rate, question.speculative
    if not 0 <= hit_rate <= 1:
        raise InvalidQuestion(
            f"prefix_cache_hit_rate is 0 to 1, not {hit_rate}.", pointer="/serving/prefix_cache_hit_rate"
        )
    if draft is not None and not (draft.tokens >= 1 and 0 <= draft.acceptance_rate <= 1):
        raise InvalidQuestion(
            "speculative takes at least 1 token and a rate of 0 to 1.", pointer="/serving/speculative"
        )
    traffic = Traffic(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_fraction=hit_rate,
        draft_tokens=0 if draft is None else draft.tokens,
        acceptance_fraction=0.0 if draft is None else draft.acceptance_rate,
    )
    inputs = (input_tokens,) if question.input_length is None else sample_tokens(question.input_length, INPUT_LENGTH)
    outputs = (
        (output_tokens,) if question.output_length is None else sample_tokens(question.output_length, OUTPUT_LENGTH)
    )
    if any(block.cross is not None for block in question.model.layers):
        # The prompt is the encoder's: the decoder's own sequence is what it puts out.
        return traffic, tuple(min(max_model_len, last) for last in outputs)
    return traffic, tuple(min(max_model_len, first + last) for first in inputs for last in outputs)


def _check_rate(question: ServingQuestion) -> None:
    rate = question.requests_per_second
    if rate is None:
        return
    if not rate > 0:
        raise InvalidQuestion("requests_per_second must be above 0.", pointer="/serving/requests_per_second")
    if question.concurrency is not None:
        raise InvalidQuestion(
            "concurrency is a closed loop and requests_per_second an open one; give one of them.",
            pointer="/serving/requests_per_second",
        )


def _utilization(question: ServingQuestion, profile: EngineProfile) -> float | None:
    value = question.gpu_memory_utilization
    if value is None:
        return profile.gpu_memory_utilization
    if not 0 < value <= 1:
        raise InvalidQuestion(
            f"gpu_memory_utilization is a share above 0 and at most 1, not {value}.",
            pointer="/serving/gpu_memory_utilization",
        )
    return value


def _block_size(question: ServingQuestion, profile: EngineProfile) -> int:
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


def _cache_implementation(question: ServingQuestion, profile: EngineProfile) -> str | None:
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


def _positive(value: int | None, field: str, default: int) -> int:
    if value is None:
        return default
    if not 1 <= value <= MOST_TOKENS:
        raise InvalidQuestion(f"{field} must be 1 to {MOST_TOKENS}.", pointer=f"/serving/{field}")
    return value
