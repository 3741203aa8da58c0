"""Front door of the training planner."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from planners.advice import advice_for, leaves_to_be_desired
from planners.architecture import ModelSpec, OperationKind
from planners.elastic import resized
from planners.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable, PlimsollError
from planners.layout.chosen import layout_of
from planners.layout.exclusion import every_broken_rule
from planners.layout.fixed import check_fixed, check_framework, framework_violations, impossible
from planners.layout.pool import Pool
from planners.layout.search import Found, search
from planners.layout.sharding import sharding_of
from planners.layout.stacks import stack_notes, stacks_of, unmeasured_note
from planners.layout.why import comparisons
from planners.memory.adapters import check_targets
from planners.memory.job import Job, training_job, why_unsupported
from planners.memory.nearest import nearest_note, plan_sizes
from planners.memory.optimizers import optimizer_kind
from planners.memory.peak import VERDICT_NAMES, memory_and_peaks
from planners.memory.profile import Profile, load_profile, profile_names, profiles_to_search
from planners.memory.recompute_modules import check_modules
from planners.memory.recurrent import block_scan
from planners.plans import Alternative, Layout, SearchCounts, TrainingAnswer, TrainingPlan
from planners.precision import training_precision
from planners.questions import TrainingQuestion
from planners.resilience import CHECKPOINT_BYTES_PER_SECOND_PER_GPU, RESTART_SECONDS
from planners.run import SECONDS_AN_HOUR, run_of
from planners.stopping import ShouldStop, never, until_stopped
from planners.timing.communication import communication_of
from planners.timing.efficiency import Efficiency, efficiency_on

METHODS = ("full", "lora", "qlora")
OBJECTIVES = ("throughput", "fewest_gpus", "cost", "deadline")
ATTENTION_KINDS = ("flash", "eager")
KERNEL_KINDS = ("eager", "fused", "compiled", "foak")


GIB = 2**30


def plan_training(
    question: TrainingQuestion, should_stop: ShouldStop = never, stop_advising: ShouldStop | None = None
) -> TrainingAnswer:
    """Return the best layout for a training job, or the closest where none fits.

    `should_stop` is asked several times a second. With `stop_advising` that is asked in its place
    while advice is sought, and what was found until then is the advice. Raises `PlanningStopped` once `should_stop`
    says so, `InvalidQuestion` for values that make no sense, `ImpossibleLayout` for
    fixed degrees that cannot exist, and `NotYetAvailable` for what this version
    does not plan.
    """
    answer = plan_without_advice(question, should_stop)
    if not leaves_to_be_desired(question, answer):
        return answer
    best = functools.partial(best_layout, should_stop=stop_advising or should_stop)
    advice = advice_for(question, answer, best)
    return dataclasses.replace(answer, advice=tuple(advice) if stop_advising is None else until_stopped(advice))


def best_layout(question: TrainingQuestion, should_stop: ShouldStop = never) -> Alternative:
    """Return the layout that `plan_training` would choose, without an account of it; raises the same."""
    found = _found(question, should_stop)
    return _alternative(question, found, *found.chosen)


def plan_without_advice(question: TrainingQuestion, should_stop: ShouldStop = never) -> TrainingAnswer:
    """Return the answer of `plan_training` without its advice; raises the same."""
    found = _found(question, should_stop)
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    efficiency = efficiency_on(pool.job.profile.name, question.hardware)
    plan = _full_plan(question, pool, index, efficiency)
    verdict, stacks = VERDICT_NAMES[int(pool.verdicts[index])], stacks_of(question, found.searched)
    return TrainingAnswer(
        fits=found.fits,
        verdict=verdict,
        summary=_summary(question, plan, verdict) + unmeasured_note(question, plan.layout.framework),
        plan=plan,
        alternatives=tuple(_alternative(question, found, *place) for place in found.alternatives),
        search=SearchCounts(
            layouts_considered=found.considered, layouts_excluded=found.excluded, layouts_fitting=found.fitting
        ),
        advice=(),
        assumptions=(
            *stack_notes(question, stacks),
            *_assumptions(question, pool.job, plan.layout, efficiency),
        ),
        stacks=stacks,
        comparisons=comparisons(question, pool, index, _jobs, should_stop),
    )


def _found(question: TrainingQuestion, should_stop: ShouldStop) -> Found:
    """Return what the search finds; where nothing can exist, raise with every rule that is broken."""
    check_question(question)
    check_fixed(question)
    try:
        return search(question, _jobs(question), should_stop)
    except ImpossibleLayout:
        broken = every_broken_rule(question)
        if not broken:
            raise
        raise impossible(broken) from None


def check_question(question: TrainingQuestion) -> None:
    """Raise where a value of the question is out of range or not planned yet."""
    training_precision(question.precision)
    optimizer_kind(question.optimizer)
    for value, known, pointer in (
        (question.method, METHODS, "/training/method"),
        (question.objective, OBJECTIVES, "/objective"),
        (question.attention, ATTENTION_KINDS, "/training/attention"),
        (question.kernels or KERNEL_KINDS[0], KERNEL_KINDS, "/training/kernels"),
    ):
        if value not in known:
            raise InvalidQuestion(f"{value[:40]!r} is not one of {', '.join(known)}.", pointer=pointer)
    for number, pointer in (
        (question.sequence_length, "/training/sequence_length"),
        (question.global_batch_size, "/training/global_batch_size"),
    ):
        if number < 1:
            raise InvalidQuestion(f"must be at least 1, not {number}.", pointer=pointer)
    if question.tokens is not None and question.tokens <= 0:
        raise InvalidQuestion("tokens must be above 0.", pointer="/training/tokens")
    if not question.expert_imbalance >= 1.0:
        raise InvalidQuestion(
            f"must be at least 1, the mean rank's own tokens, not {question.expert_imbalance:g}.",
            pointer="/training/expert_imbalance",
        )
    if question.objective == "deadline" and (question.tokens is None or question.deadline_seconds is None):
        raise InvalidQuestion("objective 'deadline' needs tokens and deadline_seconds.", pointer="/deadline_seconds")
    if question.resilience.target_availability is not None and question.resilience.repair_seconds is None:
        raise InvalidQuestion(
            "target_availability needs repair_seconds: how long a failed node is away, repair or replacement included.",
            pointer="/resilience/repair_seconds",
        )
    _check_length(question)
    if question.method != "full":
        check_targets(question.model.layers, question.lora)
    if question.recompute is not None:
        check_modules(question.recompute.modules, question.model)
    for model in (question.model, *(companion.model for companion in question.companions if companion.model)):
        _check_model(model)
    _check_gpu(question)


def _check_length(question: TrainingQuestion) -> None:
    model = question.model
    full_layers = question.recompute.full_layers if question.recompute is not None else None
    if model.has_learned_positions and question.sequence_length > (model.max_position_embeddings or 0):
        raise InvalidQuestion(
            f"{model.name} has {model.max_position_embeddings} learned positions, fewer than the sequence's "
            f"{question.sequence_length} tokens.",
            pointer="/training/sequence_length",
        )
    if full_layers is not None and full_layers > model.num_layers:
        raise InvalidQuestion(
            f"{model.name} has {model.num_layers} layers, fewer than {full_layers}.", pointer="/training/recompute"
        )


def _check_model(model: ModelSpec) -> None:
    recurrences = [op for block in model.layers for op in block.operations if op.kind is OperationKind.SCAN]
    if any(recurrence.scan is None for recurrence in recurrences):
        raise NotYetAvailable(
            f"training of {model.model_type} models is not planned yet: no public kernel tells what their "
            "recurrent layers keep for the backward pass.",
            pointer="/model",
        )


def _check_gpu(question: TrainingQuestion) -> None:
    gpu, wanted = question.hardware.gpu, training_precision(question.precision).compute_format
    if wanted not in gpu.peak_flops_per_second:
        known = ", ".join(gpu.peak_flops_per_second)
        raise InvalidQuestion(
            f"{gpu.name} does not compute in {wanted}; it has {known}.", pointer="/training/precision"
        )
    if question.hardware.limit_bytes <= 0:
        raise InvalidQuestion(
            "reserve_bytes and used_bytes leave nothing of the card.", pointer="/hardware/reserve_bytes"
        )


def _jobs(question: TrainingQuestion) -> list[Job]:
    """Return the job through every framework that may run it; raise where none can."""
    profiles = profiles_to_search(question.framework)
    able = [profile for profile in profiles if why_unsupported(question, profile) is None]
    if not able:
        raise _unsupported(question, profiles)
    running = [load_profile(profile.name, question.kernels) for profile in able]
    fitting = [profile for profile in running if check_framework(question, profile) is None]
    if not fitting:
        lacking = min((framework_violations(question, profile) for profile in running), key=len)
        raise InvalidQuestion(lacking[0].detail, pointer=lacking[0].pointer)
    return [training_job(question, profile) for profile in fitting]


def _unsupported(question: TrainingQuestion, profiles: Sequence[Profile]) -> PlimsollError:
    """Return why none of the frameworks can run the job and, where `any` was asked for, which unmeasured ones can."""
    problem = why_unsupported(question, profiles[0])
    if problem is None:
        return InvalidQuestion("no framework can run this job.", pointer="/framework")
    if question.framework != "any":
        return problem
    others = [name for name in profile_names() if why_unsupported(question, load_profile(name)) is None]
    way_out = f"Planned without measurements: {', '.join(others)}." if others else "No other framework can either."
    detail = f"No training stack can run this job ({problem.detail}) {way_out}"
    return type(problem)(detail, pointer=problem.pointer)


def _full_plan(question: TrainingQuestion, pool: Pool, index: int, efficiency: Efficiency) -> TrainingPlan:
    hardware, job = question.hardware, pool.job
    layout, step = layout_of(pool.layouts, index, job), pool.step(index, hardware)
    sizes = resized(pool.layouts, index, job.global_batch_size)
    memory, peaks = memory_and_peaks(sizes.layouts, sizes.own, job, hardware)
    elastic = sizes.elastic_gpus(job, peaks <= hardware.limit_bytes)
    return TrainingPlan(
        layout=layout,
        memory=memory,
        step=step,
        run=run_of(question, job, layout, step, efficiency, elastic),
        communication=communication_of(pool.layouts, index, job, hardware, efficiency),
        sharding=sharding_of(pool.layouts, index, job),
    )


def _alternative(question: TrainingQuestion, found: Found, number: int, index: int) -> Alternative:
    pool = found.pools[number]
    peak = int(pool.peaks[index])
    return Alternative(
        layout=layout_of(pool.layouts, index, pool.job),
        peak_bytes=peak,
        margin_bytes=question.hardware.limit_bytes - peak,
        step_seconds=float(pool.seconds[index]),
        verdict=VERDICT_NAMES[int(pool.verdicts[index])],
    )


def _summary(question: TrainingQuestion, plan: TrainingPlan, verdict: str) -> str:
    layout, memory = plan.layout, plan.memory
    needs = f"{memory.peak_bytes / GIB:.1f} GiB of {memory.limit_bytes / GIB:.1f} GiB a GPU"
    degrees = f"data {layout.data_parallel} x tensor {layout.tensor_parallel} x pipeline {layout.pipeline_parallel}"
    if layout.context_parallel > 1:
        degrees += f" x context {layout.context_parallel}"
    if layout.expert_parallel > 1:
        degrees += f", experts over {layout.expert_parallel}"
    where = f"{question.model.name} on {layout.gpus} x {question.hardware.gpu.name} with {layout.framework}, {degrees}"
    how = f"ZeRO {layout.zero_stage}, micro-batch {layout.micro_batch_size}, recompute {layout.recompute}"
    if verdict == "no":
        return f"Does not fit: {where}, {how} needs {needs} in {memory.phase}, the least of all layouts tried."
    word = "Fits" if verdict == "fits" else "Fits tightly"
    speed = f"{plan.step.seconds:.3g} s a step, {plan.step.tokens_per_second:,.0f} tokens/s"
    return f"{word}: {where}, {how} needs {needs} in {memory.phase} and takes {speed}.{_in_time(question, plan)}"


def _in_time(question: TrainingQuestion, plan: TrainingPlan) -> str:
    """Return a sentence on whether the run keeps its deadline; nothing where none was asked for."""
    deadline, alone, expected = question.deadline_seconds, plan.run.seconds, plan.run.expected_seconds
    if question.objective != "deadline" or deadline is None or alone is None or expected is None:
        return ""
    word = "misses" if alone > deadline else "keeps" if expected <= deadline else "keeps only without failures"
    hours = [f"{seconds / SECONDS_AN_HOUR:,.1f} h" for seconds in (alone, expected, deadline)]
    return f" The run of {hours[0]}, {hours[1]} with failures, {word} the deadline of {hours[2]}."


def _expert_note(question: TrainingQuestion, layout: Layout) -> str:
    if layout.expert_parallel == 1:
        return "Every rank has all experts; they are taken to be equally busy."
    if question.expert_imbalance == 1.0:
        return "Experts are taken to be equally busy; say expert_imbalance where the busiest rank has more tokens."
    return f"The busiest expert-parallel rank has {question.expert_imbalance:g} times the mean rank's tokens."


def _assumptions(question: TrainingQuestion, job: Job, layout: Layout, efficiency: Efficiency) -> tuple[str, ...]:
    profile = job.profile
    sizes = plan_sizes(layout, parameters=job.model.parameters, sequence_length=job.sequence_length)
    nearest = nearest_note(layout, method=job.method, sizes=sizes)
    basis = "measured runs of it are on record" if profile.measured else "no measured run of it is on record"
    memory_band = f"{profile.band.low:.2f} to {profile.band.high:.2f} times the estimate: {profile.band.reason}"
    low, high = efficiency.band(experts=bool(question.model.experts_per_token))
    time_band = f"{low:.2f} to {high:.2f} times the estimate for {efficiency.common.coverage:.0%} of such runs"
    notes = [
        f"Memory follows the profile {profile.name!r} ({profile.title}); {basis}. The peak may lie from {memory_band}.",
        *([nearest] if nearest else []),
        f"Step time rests on {efficiency.provenance}; it may lie from {time_band}.",
        "Model operations count a causal mask and no recompute.",
        f"Up to {efficiency.overlap_fraction:.0%} of data-parallel traffic hides behind computation, no other does.",
        f"Attention is {question.attention}; host_bytes are for each GPU.",
    ]
    if any(weight.experts > 1 for part in job.layers for weight in part.block.weights):
        notes.append(_expert_note(question, layout))
    if any(block_scan(part.block) is not None for part in job.layers):
        notes.append(
            "Recurrent layers run on the kernels of mamba_ssm, causal_conv1d and flash-linear-attention; no measured "
            "run of such a model is on record."
        )
    if job.fp8 is not None:
        notes.append("What products in fp8 keep is counted as Transformer Engine's source has it; no run measured it.")
    if job.offload_target == "nvme" and question.hardware.nvme_bytes_per_second is None:
        rate = efficiency.common.nvme_bytes_per_second / 1e9
        notes.append(f"NVMe drives give each GPU {rate:.1f} GB/s, a DGX-2's published share.")
    if job.companions:
        notes.append(
            "Companions run forward after the policy; gathering them is taken to hide. Generation is not in the step."
        )
    if job.method != "full":
        merged = job.model.parameters * job.precision.compute_bytes / GIB
        notes.append(f"Merged into the base, the adapters leave {merged:.1f} GiB of weights to serve, no more than it.")
    if job.gradient_compression != "none":
        notes.append("Compressing gradients is taken to cost no time, and what it does to convergence is not planned.")
    if job.optimizer.paged_to_host:
        notes.append("Paged optimizer states are counted on the host, where pressure moves them.")
    positions = question.model.max_position_embeddings
    if positions is not None and question.sequence_length > positions:
        notes.append(f"The sequence is longer than the {positions} positions the model was configured for.")
    if question.resilience.checkpoint_bytes_per_second is None:
        rate = CHECKPOINT_BYTES_PER_SECOND_PER_GPU / 1e6
        notes.append(
            f"Checkpoints are written and read at {rate:.0f} MB/s a GPU, the sustained rate of Llama 3's storage."
        )
    if question.resilience.restart_seconds is None:
        notes.append(
            f"A restart takes {RESTART_SECONDS:.0f} s, MegaScale's published bound of detection and diagnosis, and the "
            "reading of the checkpoint."
        )
    return (*notes, *question.model.assumptions, *question.hardware.gpu.assumptions)
