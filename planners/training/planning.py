"""Front door of the training planner."""

from __future__ import annotations

import dataclasses
import functools

from plimsoll.planners.architecture import ModelSpec, OperationKind
from plimsoll.planners.derived import Derived
from plimsoll.planners.formats.precision import PRECISIONS, training_precision
from plimsoll.planners.ground.errors import ImpossibleLayout, InvalidQuestion, NotYetAvailable
from plimsoll.planners.ground.figures import figure, listed
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.stopping import ShouldStop, never, until_stopped
from plimsoll.planners.ground.terms import ATTENTION_KINDS, KERNEL_KINDS, METHODS, TRAINING_OBJECTIVES
from plimsoll.planners.jobs.adapters import check_targets
from plimsoll.planners.jobs.offload_modules import check_offload_layers, check_offload_modules
from plimsoll.planners.jobs.optimizers import optimizer_kind
from plimsoll.planners.jobs.recompute_modules import check_modules
from plimsoll.planners.layouts.candidates import layout_of
from plimsoll.planners.memory.peak import NO, VERDICT_NAMES, memory_and_needs, verdicts
from plimsoll.planners.plans import Alternative, Memory, SearchCounts, TrainingAnswer, TrainingPlan
from plimsoll.planners.questions import LayoutRequest, TrainingQuestion
from plimsoll.planners.search.able import jobs_of
from plimsoll.planners.search.pool import Pool
from plimsoll.planners.search.rules.fields import named_fields
from plimsoll.planners.search.search import Found, search
from plimsoll.planners.search.stacks import stack_notes, stacks_of, unmeasured_note, untimed_pair_note
from plimsoll.planners.search.violations import check_fixed, every_broken_rule, impossible
from plimsoll.planners.search.ways_out import way_out
from plimsoll.planners.search.why import comparisons
from plimsoll.planners.timing.communication import communication_of
from plimsoll.planners.timing.efficiency import Efficiency, efficiency_on
from plimsoll.planners.timing.ties import are_tied, tie_fraction
from plimsoll.planners.training.advice import advice_for, leaves_to_be_desired
from plimsoll.planners.training.deadline import in_time_with_failures
from plimsoll.planners.training.elastic import resized
from plimsoll.planners.training.notes import NOTES, Told, summary
from plimsoll.planners.training.run import run_of
from plimsoll.planners.training.sharding import sharding_of

VERDICT_SENTENCES = {"fits": "Fits", "tight": "Fits tightly", "no": "Does not fit"}


def plan_training(
    question: TrainingQuestion,
    should_stop: ShouldStop = never,
    stop_advising: ShouldStop | None = None,
    derived: Derived | None = None,
) -> TrainingAnswer:
    """Return the best layout for a training job, or the closest where none fits.

    `should_stop` is asked several times a second. With `stop_advising` that is asked in its place
    while advice is sought, and what was found until then is the advice. `derived` works out all that
    is told beside the plan itself. Raises `PlanningStopped` once `should_stop` says so,
    `InvalidQuestion` for values that make no sense, `ImpossibleLayout` for fixed degrees that cannot
    exist, and `NotYetAvailable` for what this version does not plan.
    """
    derived = derived or Derived()
    answer = plan_without_advice(question, should_stop, derived)
    if not leaves_to_be_desired(question, answer):
        return answer
    best = functools.partial(best_layout, should_stop=stop_advising or should_stop)
    advice = advice_for(question, answer, best)
    sought = derived.several("advice", advice if stop_advising is None else until_stopped(advice))
    return dataclasses.replace(answer, advice=sought, omitted=derived.omitted)


def best_layout(question: TrainingQuestion, should_stop: ShouldStop = never, *, only_room: bool = False) -> Alternative:
    """Return the layout that `plan_training` would choose, without an account of it; raises the same.

    With `only_room` that is so where a layout fits with room; otherwise one that does not is returned.
    """
    found = _found(question, should_stop, only_room=only_room)
    return _alternative(question, found, *found.chosen)


def plan_without_advice(
    question: TrainingQuestion, should_stop: ShouldStop = never, derived: Derived | None = None
) -> TrainingAnswer:
    """Return the answer of `plan_training` without its advice; raises the same."""
    derived = derived or Derived()
    try:
        found = _found(question, should_stop)
    except ImpossibleLayout as refusal:
        raise _with_way_out(question, refusal, derived, should_stop) from None
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    efficiency = efficiency_on(pool.job.profile.name, question.hardware)
    plan = _full_plan(question, pool, index, efficiency, derived)
    verdict, stacks = VERDICT_NAMES[int(pool.verdicts[index])], stacks_of(question, found.searched)
    alternatives = derived.several(
        "alternatives", (_alternative(question, found, *place) for place in found.alternatives)
    )
    told = Told(
        question=question,
        job=pool.job,
        plan=plan,
        alternatives=alternatives,
        efficiency=efficiency,
        waiting_bytes=derived.part(
            "assumptions", lambda: pool.waiting_bytes(index, plan.step, question.hardware), otherwise=0.0
        ),
    )
    return TrainingAnswer(
        fits=found.fits,
        verdict=verdict,
        summary=derived.part(
            "summary",
            lambda: (
                summary(question, plan, verdict)
                + unmeasured_note(question, plan.layout.framework, stacks, measured_on_host=found.measured_on_host)
                + untimed_pair_note(question, plan.layout.framework, stacks)
            ),
            otherwise=f"{VERDICT_SENTENCES[verdict]}.",
        ),
        plan=plan,
        alternatives=alternatives,
        search=SearchCounts(
            layouts_considered=found.considered, layouts_excluded=found.excluded, layouts_fitting=found.fitting
        ),
        advice=(),
        assumptions=(
            *stack_notes(question, stacks, measured_on_host=found.measured_on_host),
            *(sentence for note in NOTES for sentence in derived.several("assumptions", note(told))),
        ),
        stacks=stacks,
        comparisons=derived.part(
            "comparisons", lambda: comparisons(question, pool, index, jobs_of, should_stop), otherwise=()
        ),
        omitted=derived.omitted,
    )


def _found(question: TrainingQuestion, should_stop: ShouldStop, *, only_room: bool = False) -> Found:
    """Return what the search finds; where nothing can exist, raise with every rule that is broken."""
    check_question(question)
    check_fixed(question)
    try:
        jobs = jobs_of(question)
        return in_time_with_failures(question, lambda asked: search(asked, jobs, should_stop, only_room=only_room))
    except ImpossibleLayout:
        broken = every_broken_rule(question)
        if not broken:
            raise
        raise impossible(broken) from None


def _with_way_out(
    question: TrainingQuestion, refusal: ImpossibleLayout, derived: Derived, should_stop: ShouldStop
) -> ImpossibleLayout:
    """Return the refusal with the nearest GPU counts and batches that work."""
    best = functools.partial(best_layout, should_stop=should_stop)
    instead = derived.part("way out", lambda: way_out(question, jobs_of, best), otherwise="")
    detail = " ".join(part for part in (_why_nothing(question, refusal), instead) if part)
    # Who fixed no degree cannot mend one.
    pointer = "/hardware/gpus" if not named_fields(question) else refusal.pointer
    return ImpossibleLayout(detail, rule=refusal.rule, pointer=pointer, broken=refusal.broken)


def _why_nothing(question: TrainingQuestion, refusal: ImpossibleLayout) -> str:
    """Return why no layout exists: of a question that fixes no degree, that its GPUs and batch do not go together.

    Where one thing that is asked of the job excludes them all, that is why.
    """
    is_of_the_job = len(refusal.broken) == 1 and refusal.pointer.startswith("/training/")
    if question.layout != LayoutRequest() or is_of_the_job:
        return refusal.detail
    count, batch = question.hardware.gpus, question.global_batch_size
    is_one = count.minimum == count.maximum
    gpus = f"exactly {count.minimum:,}" if is_one else f"{count.minimum:,} to {count.maximum:,}"
    return f"No layout uses {gpus} GPUs with a batch of {batch:,}: every way to divide them breaks a rule."


def check_question(question: TrainingQuestion) -> None:
    """Raise where a value of the question is out of range or not planned yet."""
    training_precision(question.precision)
    optimizer_kind(question.optimizer)
    for value, known, pointer in (
        (question.method, METHODS, "/training/method"),
        (question.objective, TRAINING_OBJECTIVES, "/objective"),
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
            raise InvalidQuestion(f"{pointer.rpartition('/')[2]} must be at least 1, not {number}.", pointer=pointer)
    if question.tokens is not None and question.tokens <= 0:
        raise InvalidQuestion("tokens must be above 0.", pointer="/training/tokens")
    if not question.expert_imbalance >= 1.0:
        raise InvalidQuestion(
            "expert_imbalance must be at least 1 (the busiest rank's tokens over the mean), not "
            f"{figure(question.expert_imbalance)}.",
            pointer="/training/expert_imbalance",
        )
    if question.objective == "deadline":
        needed = ((question.deadline_seconds, "/deadline_seconds"), (question.tokens, "/training/tokens"))
        for given, pointer in needed:
            if given is None:
                raise InvalidQuestion(f"objective 'deadline' needs {pointer.rpartition('/')[2]}.", pointer=pointer)
    if question.resilience.target_availability is not None and question.resilience.repair_seconds is None:
        raise InvalidQuestion(
            "target_availability needs repair_seconds: how long it takes to repair or replace a failed node.",
            pointer="/resilience/repair_seconds",
        )
    _check_length(question)
    if question.low_precision_weights:
        _check_low_precision_weights(question)
    if question.multi_token_prediction:
        _check_multi_token(question.model)
    if question.method != "full":
        check_targets(question.model, question.lora)
    if question.recompute is not None:
        check_modules(question.recompute.modules, question.model)
    check_offload_modules(question.offload_modules, question.model)
    check_offload_layers(question.offload_layers, question.model)
    for model in (question.model, *(companion.model for companion in question.companions if companion.model)):
        _check_model(model)
    _check_gpu(question)


def _check_length(question: TrainingQuestion) -> None:
    model = question.model
    full_layers = question.recompute.full_layers if question.recompute is not None else None
    if model.has_learned_positions and question.sequence_length > (model.max_position_embeddings or 0):
        raise InvalidQuestion(
            f"{model.name} has {model.max_position_embeddings:,} learned positions, too few for a sequence of "
            f"{question.sequence_length:,} tokens.",
            pointer="/training/sequence_length",
        )
    if full_layers is not None and full_layers > model.num_layers:
        raise InvalidQuestion(
            f"full_layers {full_layers} is more than the {model.num_layers} layers of {model.name}.",
            pointer="/training/recompute",
        )


def _check_low_precision_weights(question: TrainingQuestion) -> None:
    """Raise for weights in 8 or 4 bits alone of a job that multiplies none so, or packs its base in four bits."""
    low = [name for name, precision in PRECISIONS.items() if precision.is_low]
    if question.precision not in low:
        detail = f"low_precision_weights true needs precision {listed(low, 'or')}, not {question.precision}."
    elif question.method == "qlora":
        detail = "low_precision_weights true is not planned with method qlora, which packs weights in four bits."
    else:
        return
    raise InvalidQuestion(detail, pointer="/training/low_precision_weights")


def _check_multi_token(model: ModelSpec) -> None:
    """Raise for a model of which Megatron-LM trains no such layers (training/arguments.py, `validate_args`)."""
    last = max(model.layers, key=lambda block: max(block.layers))
    if model.has_learned_positions or any(block.cross is not None for block in model.layers):
        raise InvalidQuestion(
            f"Multi-token prediction needs a decoder with rotary positions, or with none; {model.name} is no such "
            "model.",
            pointer="/training/multi_token_prediction",
        )
    if all(operation.kind is not OperationKind.ATTENTION for operation in last.operations):
        raise NotYetAvailable(
            f"Multi-token prediction is planned of models whose last layer has attention; that of {model.name} has "
            "none.",
            pointer="/training/multi_token_prediction",
        )


def _check_model(model: ModelSpec) -> None:
    recurrences = [op for block in model.layers for op in block.operations if op.kind is OperationKind.SCAN]
    if any(recurrence.scan is None for recurrence in recurrences):
        raise NotYetAvailable(
            f"Training {model.model_type} models cannot be planned yet: no public kernel shows what their recurrent "
            "layers save for the backward pass.",
            pointer="/model",
        )


def _check_gpu(question: TrainingQuestion) -> None:
    gpu, wanted = question.hardware.gpu, training_precision(question.precision)
    if not wanted.is_computed_by(gpu):
        able = [name for name, precision in PRECISIONS.items() if precision.is_computed_by(gpu)]
        raise InvalidQuestion(
            f"{gpu.name} does not compute in {wanted.computed}. It trains in {', '.join(able)}.",
            pointer="/training/precision",
        )
    if question.hardware.limit_bytes <= 0:
        raise InvalidQuestion(
            "reserve_bytes and used_bytes together take the whole memory of the GPU.", pointer="/hardware/reserve_bytes"
        )


def _full_plan(
    question: TrainingQuestion, pool: Pool, index: int, efficiency: Efficiency, derived: Derived
) -> TrainingPlan:
    hardware, job = question.hardware, pool.job
    layout, step = layout_of(pool.layouts, index, job), pool.step(index, hardware)
    memory, elastic = _memory_and_elastic_gpus(pool, index, hardware, derived)
    return TrainingPlan(
        layout=layout,
        memory=memory,
        step=step,
        run=run_of(question, job, layout, step, efficiency, elastic, derived),
        communication=derived.part(
            "plan.communication",
            lambda: communication_of(pool.layouts, index, job, hardware, efficiency),
            otherwise=(),
        ),
        sharding=sharding_of(pool.layouts, index, job, derived),
    )


def _memory_and_elastic_gpus(
    pool: Pool, index: int, hardware: Hardware, derived: Derived
) -> tuple[Memory, tuple[int, ...]]:
    """Return the plan's account, and the GPU counts on which it still runs; they share their arrays."""

    def together() -> tuple[Memory, tuple[int, ...]]:
        sizes = resized(pool.layouts, index, pool.job)
        memory, needs = memory_and_needs(sizes.layouts, sizes.own, pool.job, hardware, derived)
        return memory, sizes.elastic_gpus(verdicts(needs, pool.job, hardware) > NO)

    both = derived.part("plan.run.elastic_gpus", together, otherwise=None)
    if both is not None:
        return both
    alone = pool.layouts.take([index])
    return memory_and_needs(alone, 0, pool.job, hardware, derived)[0], ()


def _alternative(question: TrainingQuestion, found: Found, number: int, index: int) -> Alternative:
    pool = found.pools[number]
    peak = int(pool.peaks[index])
    return Alternative(
        layout=layout_of(pool.layouts, index, pool.job),
        peak_bytes=peak,
        margin_bytes=question.hardware.limit_bytes - peak,
        step_seconds=float(pool.seconds[index]),
        verdict=VERDICT_NAMES[int(pool.verdicts[index])],
        equal_within_band=_is_tied(question, found, number, index),
        timed_runs=efficiency_on(pool.job.profile.name, question.hardware).timed_runs,
    )


def _is_tied(question: TrainingQuestion, found: Found, number: int, index: int) -> bool:
    """Return whether the evidence leaves open if a layout of as many GPUs is slower or faster than the plan."""
    pool, chosen, place = found.pools[number], found.pools[found.chosen[0]], found.chosen[1]
    if pool.layouts.gpus[index] != chosen.layouts.gpus[place]:
        return False
    frameworks = chosen.job.profile.name, pool.job.profile.name
    fraction = tie_fraction(*frameworks, question.hardware, experts=bool(question.model.experts_per_token))
    return are_tied(float(chosen.seconds[place]), float(pool.seconds[index]), fraction)
