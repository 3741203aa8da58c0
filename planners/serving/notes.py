"""The assumptions of a serving answer, sentence by sentence: what nobody said, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator

from planners.questions import ServingQuestion
from planners.serving.candidates import Candidate
from planners.serving.engine import GIB
from planners.serving.engine_rules import MemoryRule
from planners.serving.learned import Learned, Ranks
from planners.serving.served_models import runs_through_transformers
from planners.serving.settings import Settings
from planners.serving.weight_format import weight_format
from planners.serving.weights import replica_stages

LOGGED_GPU = "h100"
# What engines make of a checkpoint in 16 bits while they load it, and the format that it has until then.
ON_LOADING, PLAIN_WEIGHTS = "fp8", "bf16"
# The latencies' measurements are of weights in 16 and 8 bits.
FEWEST_TIMED_BITS = 8
RATE_NOTE = (
    "Requests come at random (Poisson): prompts wait for one another as in M/D/1 and for a place as in M/M/c; the "
    "99th percentiles add both waits."
)
OUTRUN_NOTE = "The requests outrun the replicas: performance is what those deliver when full."
POOLS_NOTE = (
    "Prefilling and decoding replicas are alike; a prompt's cache crosses once, at the link's own rate. No measured "
    "run of such a deployment was fitted: the bands are those of replicas that do both."
)
DRAFT_NOTE = (
    "Tokens are drafted by one layer of the model's size (multi-token prediction, EAGLE); the drafter's own weights "
    "and cache are not counted. The launch files name no drafter: started as they are, the engine drafts nothing."
)
FITTED_ON = (
    "Latencies are a roofline whose weights were fitted on public runs of eight models on H100, H200, B200 and B300, "
    "for each engine; other cards take them at their own rates. The low and high ends hold nine of ten of these runs, "
    "each with its model left out; the form of the fit was chosen on the same runs, so a new model may lie further off."
)

RULE_NOTES = {
    MemoryRule.PROFILED: "The CUDA context, which the engine takes before it measures, is not counted in the peak.",
    MemoryRule.STATIC_FRACTION: (
        "gpu_memory_utilization is mem_fraction_static: the share of what is free before loading that weights and "
        "cache take. activations is all that it leaves free."
    ),
    MemoryRule.FREE_FRACTION: (
        "gpu_memory_utilization is free_gpu_memory_fraction: the cache's share of what weights and one forward pass "
        "leave. No log tells that pass apart: it is estimated as vLLM's and counts whole as the band."
    ),
    MemoryRule.WHOLE_CARD: (
        "transformers has no pool of blocks: all that weights and one forward pass leave may become cache, and "
        "max_num_seqs bounds the batch."
    ),
}


def _engine_notes(settings: Settings) -> tuple[str, ...]:
    rule = RULE_NOTES[settings.profile.memory_rule]
    if settings.profile.timed_as is None:
        return (rule, f"The speed of {settings.profile.engine} is not described yet: performance is left out.")
    return (rule, FITTED_ON)


def _model_notes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[str]:
    """Yield what the engine's release does with this model otherwise than with most."""
    profile, model = settings.profile, question.model
    name = f"{profile.engine} {profile.version}"
    if runs_through_transformers(profile, model.model_type):
        yield (
            f"{name} has no code of its own for {model.model_type} models and runs transformers'; that was not "
            "measured, and memory and speed are planned as of its own."
        )
    if settings.weights.name == ON_LOADING and profile.quantizes_after_loading:
        held = replica_stages(model, weight_format(PLAIN_WEIGHTS), best.replica.degrees, engine=profile.engine)
        loading, limit = max(stage.total_bytes for stage in held), best.replica.memory.limit_bytes
        beyond = f"more than the {limit / GIB:.1f} GiB that are free" if loading > limit else "before it halves them"
        yield (
            f"Of a checkpoint in 16 bits {name} loads all weights before it quantizes any: each GPU holds "
            f"{loading / GIB:.1f} GiB of them then, {beyond}. A checkpoint in fp8 is loaded as it is."
        )


def _learned_note(learned: Learned) -> str:
    """Return what of the plan a measured start decided."""
    factors = (
        ("weights", learned.weights_factor),
        ("activations", learned.activations_factor),
        ("CUDA graphs", learned.cuda_graphs_factor),
        ("time to first token", learned.ttft_factor),
        ("time per token", learned.tpot_factor),
    )
    told = [f"{name} x {factor:.4g}" for name, factor in factors if factor != 1]
    told += [
        f"{learned.offset_bytes(ranks) / GIB:+.2f} GiB outside torch ({ranks.value})"
        for ranks in Ranks
        if learned.offset_bytes(ranks)
    ]
    return f"Learned from {learned.provenance}: {', '.join(told) or 'the plan as it was'}."


def serving_notes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[str]:
    """Yield what an answer rests on beside what was asked."""
    yield from settings.assumptions
    if settings.requests_per_second is not None:
        yield RATE_NOTE if best.meets_concurrency else OUTRUN_NOTE
    if settings.traffic.draft_tokens:
        yield DRAFT_NOTE
    if settings.traffic.cached_fraction:
        yield "Cached prompt tokens are not computed again; how requests share their blocks is not counted."
    if settings.requests_per_second is None and settings.concurrency is None and best.state is not None:
        reason = "the most that runs at once"
        if best.meets_slo is not None:
            reason = "the most that keeps the service level" if best.meets_slo else "as no other keeps it better"
        elif question.objective == "latency":
            reason = "for the least latency"
        yield f"concurrency {best.concurrency}, assumed: {reason}."
    yield (
        f"{settings.profile.engine} {settings.profile.version}: gpu_memory_utilization "
        f"{best.replica.utilization_fraction:g}, block_size {settings.block_size}, max_num_batched_tokens "
        f"{settings.max_num_batched_tokens}, max_num_seqs {settings.max_num_seqs}."
    )
    yield from _engine_notes(settings)
    yield from _model_notes(question, settings, best)
    yield from best.replica.cache.notes(settings.profile)
    if best.replica.cache.source_tokens:
        yield f"Each request's encoder hands over {best.replica.cache.source_tokens} tokens."
    site = question.hardware.site
    if site is not None and settings.profile.timed_as in site.serving:
        yield f"Latencies rest on {site.provenance}."
    if settings.learned is not None:
        yield _learned_note(settings.learned)
    if question.disaggregated is not None:
        yield POOLS_NOTE
    ranks = best.replica.degrees.attention_data_parallel
    if ranks > 1:
        yield f"Each of the {ranks} attention ranks has a cache of its own and logs it: kv is one rank's."
    gpu = question.hardware.gpu
    if settings.weights.compute_formats[0] not in gpu.peak_flops_per_second:
        yield (
            f"{gpu.id} states no rate for {settings.weights.compute_formats[0]}: it multiplies at that of "
            "another format of the same weights."
        )
    if settings.weights.element_bits < FEWEST_TIMED_BITS:
        yield "Weights of 4 bits are timed by their bytes and a 16-bit rate; unpacking them is not timed."
    if settings.profile.memory_rule is MemoryRule.PROFILED and not gpu.id.startswith(LOGGED_GPU):
        yield f"The engine's working memory was read from start-up logs on {LOGGED_GPU} cards."
