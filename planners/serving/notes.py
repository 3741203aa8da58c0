"""The assumptions of a serving answer, sentence by sentence: what nobody said, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.ground.figures import counted, duration, figure
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.learned import Learned, Ranks
from plimsoll.planners.questions import ServingQuestion
from plimsoll.planners.serving.engines.engine import engine_named
from plimsoll.planners.serving.formats.weight_format import weight_format
from plimsoll.planners.serving.releases.served_models import runs_code_of
from plimsoll.planners.serving.search.candidates import Candidate
from plimsoll.planners.serving.settings.expert_choice import assumed_backend
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.speed_notes import speed_notes
from plimsoll.planners.serving.times.efficiency import LAYOUT_SPREAD
from plimsoll.planners.serving.weights.stages import replica_stages

# What engines make of a checkpoint in 16 bits while they load it, and the format that it has until then.
ON_LOADING, PLAIN_WEIGHTS = "fp8", "bf16"
# bitsandbytes unpacks it by kernels of its own.
UNMEASURED_FORMAT = "nf4"
RATE_NOTE = (
    "Requests arrive at random (Poisson). Prompts queue for each other as in M/D/1; how many requests run at once, and "
    "the wait for a place, are those of a server whose rate grows with the requests as the replicas' does. The 99th "
    "percentiles include both waits."
)
OUTRUN_NOTE = (
    "Requests arrive faster than the replicas can answer, and wait ever longer: performance is what full replicas "
    "deliver, and single requests are not simulated."
)
POOLS_NOTE = (
    "Prefill and decode replicas have the same layout; a prompt's cache is sent once, at the link's full rate. No "
    f"public run of such a deployment was fitted: the error bands are {LAYOUT_SPREAD:g} times as wide. Single requests "
    "are not simulated."
)
SIMULATED_NOTE = (
    "performance.simulated follows single requests through {title}'s scheduler at the asked load; a closed loop "
    "begins with its requests at random places in their answers, and those and the last are not counted."
)
BURST_NOTE = (
    "Bursts: times and throughput are those of performance.simulated; a burst is answered to the last after {clears}. "
    "The curve is of as many clients that each send their next request as the last is answered."
)
SINGLE_NOTE = (
    "Answers of one token have no time between tokens: tpot_seconds is what a second one would take, and no service "
    "level is missed by it."
)
DRAFT_NOTE = (
    "The drafter is assumed to be one layer of the model's size (multi-token prediction, EAGLE); its weights and cache "
    "are not counted. The launch files name no drafter: add one, or the engine drafts nothing."
)


def _engine_notes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[str]:
    yield engine_named(settings.profile.engine).memory_note
    if settings.profile.timed_as is None:
        yield f"The speed of {settings.profile.engine} cannot be predicted yet, so performance is omitted."
    elif best.deployment is not None:
        yield from speed_notes(settings.profile, question.hardware.gpu, best.deployment.work)


def _model_notes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[str]:
    """Yield what the engine's release does with this model otherwise than with most."""
    profile, model = settings.profile, question.model
    name = f"{profile.engine} {profile.version}"
    if (library := runs_code_of(profile, model.model_type)) is not None:
        yield (
            f"{name} has no code of its own for {model.model_type} models and runs {library}'; that was not "
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
    told = [f"{name} x {figure(factor, 4)}" for name, factor in factors if factor != 1]
    told += [
        f"{learned.offset_bytes(ranks) / GIB:+.2f} GiB outside torch ({ranks.value})"
        for ranks in Ranks
        if learned.offset_bytes(ranks)
    ]
    return f"Learned from {learned.provenance}: {', '.join(told) or 'no correction was needed'}."


def serving_notes(question: ServingQuestion, settings: Settings, best: Candidate) -> Iterator[str]:
    """Yield what an answer rests on beside what was asked."""
    yield from settings.assumptions
    if settings.requests_per_second is not None:
        yield RATE_NOTE if best.meets_concurrency else OUTRUN_NOTE
    has_load = settings.requests_per_second is not None or settings.concurrency is not None
    is_simulated = question.simulate or best.load is not None
    if has_load and is_simulated and best.state is not None and question.disaggregated is None and not best.is_outrun:
        yield SIMULATED_NOTE.format(title=settings.profile.title)
    if best.load is not None and best.load.burst_clears_seconds is not None:
        yield BURST_NOTE.format(clears=duration(best.load.burst_clears_seconds))
    if settings.output_tokens == 1 and best.state is not None:
        yield SINGLE_NOTE
    count = question.hardware.gpus
    if count.is_free and not best.is_satisfying:
        yield (
            f"No more than {count.maximum:,} GPUs were considered, because hardware.gpus was left out: a range with a "
            "larger max considers more."
        )
    if settings.traffic.draft_tokens:
        yield DRAFT_NOTE
    if settings.traffic.cached_fraction:
        yield "Cached prompt tokens are not computed again; blocks that requests share are counted once per request."
    if settings.requests_per_second is None and settings.concurrency is None and best.state is not None:
        reason = "the most requests that run at once"
        if best.meets_slo is not None:
            reason = "the most that meets the service level" if best.meets_slo else "no other comes closer to it"
        elif question.objective == "latency":
            reason = "it has the lowest latency"
        yield f"concurrency {best.concurrency:,} was assumed: {reason}."
    yield (
        f"{settings.profile.engine} {settings.profile.version}: gpu_memory_utilization "
        f"{figure(best.replica.utilization_fraction)}, block_size {settings.block_size}, max_num_batched_tokens "
        f"{settings.max_num_batched_tokens}, max_num_seqs {settings.max_num_seqs}."
    )
    if settings.most_running < min(settings.max_num_seqs, best.replica.kv.requests_held):
        yield (
            f"{settings.profile.title} computes prompts whole: with max_num_batched_tokens "
            f"{settings.max_num_batched_tokens} a prompt of {settings.traffic.prefill_tokens} tokens starts only while "
            f"fewer than {counted(settings.most_running, 'request')} run, so no more run at once."
        )
    yield from _engine_notes(question, settings, best)
    backend = assumed_backend(question, settings.profile, best.replica.degrees)
    if question.expert_backend is None and backend is not None:
        yield (
            f"expert_backend {backend} was assumed, as in public deployments on such cards; the launch file says so."
        )
    yield from _model_notes(question, settings, best)
    yield from best.replica.cache.notes(settings.profile)
    if best.replica.cache.source_tokens:
        yield f"The encoder is assumed to give each request {best.replica.cache.source_tokens:,} tokens."
    site = question.hardware.site
    if site is not None and settings.profile.timed_as in site.serving:
        yield f"Latencies are based on {site.provenance}."
    if settings.learned is not None:
        yield _learned_note(settings.learned)
    if question.disaggregated is not None:
        yield POOLS_NOTE
    ranks = best.replica.degrees.attention_data_parallel
    if ranks > 1:
        yield f"Each of the {ranks} attention ranks has its own cache and logs it; kv describes one rank's."
    gpu = question.hardware.gpu
    if settings.weights.compute_formats[0] not in gpu.peak_flops_per_second:
        yield (
            f"{gpu.id} has no published rate for {settings.weights.compute_formats[0]}; products are timed in the "
            "format that it computes these weights in."
        )
    if settings.weights.name == UNMEASURED_FORMAT:
        yield (
            "No products with weights in NF4 were measured: they are timed as those of 4-bit integers, which other "
            "kernels unpack."
        )
    logged = settings.profile.logged_gpu
    if logged is not None and not gpu.id.startswith(logged):
        yield f"The engine's working memory follows start-up logs on {logged.upper()} GPUs."
