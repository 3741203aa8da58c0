"""A serving question's settings, resolved: the engine's defaults filled in, every value checked."""

from __future__ import annotations

from dataclasses import dataclass

from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion
from plimsoll.planners.learned import Learned
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.cache.kv_formats import KvFormat
from plimsoll.planners.serving.formats.weight_format import WeightFormat, weight_format
from plimsoll.planners.serving.releases.able import able_profile
from plimsoll.planners.serving.releases.cards import check_formats
from plimsoll.planners.serving.releases.profile import EngineProfile, engine_profile
from plimsoll.planners.serving.releases.rules import BatchTier
from plimsoll.planners.serving.settings.cache_choice import block_size, cache_format, cache_implementation
from plimsoll.planners.serving.settings.checks import check_load, check_timing, check_values, chunks_prompts
from plimsoll.planners.serving.settings.expert_choice import expert_backend
from plimsoll.planners.serving.settings.lengths import longest_prompt, max_model_len, mean_request, traffic_of
from plimsoll.planners.serving.traffic import Traffic

# Tokens that are left beside prompts and running requests, and of which batches are multiples.
WHOLE_PROMPT_MARGIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine runs with. `concurrency` is None where the client named none.

    `lengths` are requests' tokens in and out, each for an equal part of them.

    `gpu_memory_utilization` is the engine's own fraction under its own name
    (mem_fraction_static, free_gpu_memory_fraction), None where it follows from the
    layout. A batch of `graph_requests` is the largest captured in CUDA graphs, from
    4 tensor ranks on `graph_requests_wide`; 0 where the batch limit decides. Experts are
    computed by `expert_backend` where the client named it. `chunks_prompts` says whether a
    prompt is cut where a step is full.
    """

    profile: EngineProfile
    weights: WeightFormat
    kv: KvFormat
    max_model_len: int
    input_tokens: int
    output_tokens: int
    traffic: Traffic
    lengths: tuple[tuple[int, int], ...]
    concurrency: int | None
    requests_per_second: float | None
    gpu_memory_utilization: float | None
    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    graph_requests: int
    graph_requests_wide: int
    cache_implementation: str | None
    expert_backend: str | None
    chunks_prompts: bool
    learned: Learned | None
    assumptions: tuple[str, ...]

    @property
    def request_tokens(self) -> int:
        """Return a request's tokens at its end."""
        return self.input_tokens + self.output_tokens

    @property
    def sequence_tokens(self) -> tuple[int, ...]:
        """Return requests' lengths at their end, each for an equal part of them."""
        return tuple(first + last for first, last in self.lengths)

    @property
    def most_running(self) -> int:
        """Return how many requests the engine runs at once whatever its cache holds.

        Where prompts are never cut, the last to start needs its whole prompt beside a token of each of the others.
        """
        if self.chunks_prompts:
            return self.max_num_seqs
        return min(self.max_num_seqs, max(1, self.max_num_batched_tokens - self.traffic.prefill_tokens + 1))


def resolve_settings(question: ServingQuestion) -> Settings:
    """Return the checked settings; raise `InvalidQuestion` with the field that makes no sense."""
    check_values(question)
    profile = able_profile(
        question.engine,
        question.engine_version,
        model_type=question.model.model_type,
        gpu=question.hardware.gpu,
    )
    check_formats(question, profile)
    check_timing(question, profile)
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
    longest = max_model_len(question, notes)
    input_tokens, output_tokens = mean_request(question, longest, notes)
    traffic, lengths = traffic_of(question, input_tokens, output_tokens, longest)
    chunks = chunks_prompts(question, profile)
    prompt = longest_prompt(question, input_tokens, longest)
    batched = _batched_tokens(question, profile, tier, longest, prompt, notes, chunks=chunks)
    sequences = question.max_num_seqs or min(tier.max_num_seqs, batched)
    if batched < sequences:
        raise InvalidQuestion(
            f"max_num_batched_tokens ({batched}) must be at least max_num_seqs ({sequences}).",
            pointer="/serving/max_num_batched_tokens",
        )
    check_load(question)
    return Settings(
        profile=profile,
        weights=weight_format(question.weights),
        kv=cache_format(question, profile),
        max_model_len=longest,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        traffic=traffic,
        lengths=lengths,
        concurrency=question.concurrency,
        requests_per_second=question.requests_per_second,
        gpu_memory_utilization=question.gpu_memory_utilization or profile.gpu_memory_utilization,
        block_size=block_size(question, profile),
        max_num_batched_tokens=batched,
        max_num_seqs=sequences,
        graph_requests=tier.graph_requests,
        graph_requests_wide=tier.graph_requests_wide,
        cache_implementation=cache_implementation(question, profile),
        expert_backend=expert_backend(question, profile),
        chunks_prompts=chunks,
        learned=question.learned.get(question.weights),
        assumptions=tuple(notes),
    )


def _batched_tokens(
    question: ServingQuestion,
    profile: EngineProfile,
    tier: BatchTier,
    max_model_len: int,
    prompt_tokens: int,
    notes: list[str],
    *,
    chunks: bool,
) -> int:
    """Return the tokens of a batch; raise where the engine would not start with so few, or takes no such prompt."""
    has_encoder = any(block.cross is not None for block in question.model.layers)
    is_whole = profile.computes_encoder_prompts_whole and has_encoder
    # An engine that has to be told not to cut prompts takes batches of its longest request then.
    is_told = profile.scheduling.chunks_prompts and not chunks
    least = max_model_len if is_whole or is_told else 1
    batched = question.max_num_batched_tokens or max(least, tier.max_num_batched_tokens)
    if batched < least:
        raise InvalidQuestion(
            f"max_num_batched_tokens ({batched}) must be at least max_model_len ({max_model_len}): "
            f"{profile.title} computes {'prompts' if is_told else 'the prompts of encoder-decoder models'} whole.",
            pointer="/serving/max_num_batched_tokens",
        )
    if chunks:
        return batched
    most = question.max_num_seqs or tier.max_num_seqs
    beside = most if question.concurrency is None else min(question.concurrency, most)
    return _with_whole_prompts(question, profile, batched, prompt_tokens, beside, notes)


def _with_whole_prompts(
    question: ServingQuestion, profile: EngineProfile, batched: int, prompt_tokens: int, beside: int, notes: list[str]
) -> int:
    """Return the tokens of a batch of an engine that cuts no prompt, enough for one beside all running requests.

    With fewer a prompt waits until hardly any request runs (TensorRT-LLM: cpp/tensorrt_llm/batch_manager/
    microBatchScheduler.cpp), so those who measure it set more: benchmarks/single_node of InferenceX
    (github.com/SemiAnalysisAI/InferenceX).
    """
    needed = -(-(prompt_tokens + beside + WHOLE_PROMPT_MARGIN) // WHOLE_PROMPT_MARGIN) * WHOLE_PROMPT_MARGIN
    if question.max_num_batched_tokens is None:
        if needed > batched:
            notes.append(
                f"max_num_batched_tokens {needed}, not {batched}: {profile.title} computes prompts whole, beside the "
                "tokens of all running requests."
            )
        return max(batched, needed)
    if prompt_tokens > batched:
        raise InvalidQuestion(
            f"{profile.title} computes prompts whole: max_num_batched_tokens ({batched}) must be at least the longest "
            f"prompt ({prompt_tokens}); {needed} leaves room for the running requests besides. With chunked_prefill "
            "prompts are cut.",
            pointer="/serving/max_num_batched_tokens",
        )
    return batched
