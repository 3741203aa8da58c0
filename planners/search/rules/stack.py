"""The rule of what a training stack can do: one entry an ability, generated from the stack's table `can`.

An entry judges the field that a client fixed, by itself and before any layout is formed, and the same field of layouts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from plimsoll.planners.formats.precision import DTYPE_BYTES
from plimsoll.planners.ground.figures import counted, listed
from plimsoll.planners.ground.terms import OFFLOADS, ONE_FORWARD_ONE_BACKWARD, RECOMPUTE_MODES, ZERO_STAGES
from plimsoll.planners.jobs.abilities import Ability, must_be, one_of
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.overlap import HIDDEN_TRAFFIC
from plimsoll.planners.jobs.pipeline_layouts import ENDS, FEWER_AT_ENDS, LISTED, read_pipeline_layout
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, BoolArray, Candidates, IntArray
from plimsoll.planners.questions import Recompute, TrainingQuestion
from plimsoll.planners.search.rules.fields import request_pointer
from plimsoll.planners.search.rules.rule import NOWHERE, Breach, Case, Rule, anywhere
from plimsoll.planners.stacks.profile import Profile, load_profile
from plimsoll.planners.stacks.records import BY_MODULES, Capabilities, StateBytes

BOTH = (False, True)
MOST_RANKS = 2**63  # more than any degree
# Of fields that layouts have by their place.
TERMS: Mapping[str, Sequence[Any]] = {"recompute": RECOMPUTE_MODES, "offload": OFFLOADS}
ORDINALS = {1: "single", 2: "2nd", 3: "3rd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAbility:
    """An ability that layouts ask for too; `lacks` is where a job's layouts ask for more than its stack has of it."""

    ability: Ability
    lacks: Callable[[Candidates, Job], BoolArray]


def _degree(field: str) -> LayoutAbility:
    """Return the ability to have more than 1 of a degree; the stack's table says by the degree's name who can."""

    def degrees(profile: Profile) -> range:
        return range(1, MOST_RANKS if getattr(profile.can, field) else 2)

    def lacks(layouts: Candidates, job: Job) -> BoolArray:
        lacking: BoolArray = NOWHERE if getattr(job.profile.can, field) else getattr(layouts, field) > 1
        return lacking

    return LayoutAbility(ability=one_of(request_pointer(field), degrees), lacks=lacks)


def _choice(
    field: str,
    choices: Callable[[Capabilities], Collection[Any]],
    terms: Sequence[Any] = (),
    words: Callable[[Profile, str, Collection[Any], Any], str] = must_be,
) -> LayoutAbility:
    """Return the ability to take a field's value, of which the stack's table lists some.

    Layouts have the value's place among `terms`; a field without terms is the same for all of a job's layouts.
    """

    def lacks(layouts: Candidates, job: Job) -> BoolArray:
        return _outside(getattr(layouts, field), terms, choices(job.profile.can)) if terms else NOWHERE

    ability = one_of(request_pointer(field), lambda profile: choices(profile.can), words)
    return LayoutAbility(ability=ability, lacks=lacks)


def _switch(field: str, has: Callable[[Capabilities], bool], lacking: str) -> LayoutAbility:
    """Return the ability to switch something on; `lacking` is said of a stack that cannot."""

    def words(profile: Profile, field: str, *_: object) -> str:
        return f"{profile.name} {lacking}; {field} must be false."

    return _choice(field, lambda can: BOTH if has(can) else (False,), BOTH, words)


def _offloads_activations() -> LayoutAbility:
    """Return the ability to offload activations, or parts of layers by name."""
    switch = _switch("activation_offload", lambda can: can.activation_offload != "none", "cannot offload activations")
    plain = switch.ability

    def words(question: TrainingQuestion, profile: Profile) -> str:
        if not _offloads_in_parts(question) or profile.can.activation_offload == "none":
            return plain.words(question, profile)
        parts = "parts of layers by name" if question.offload_modules else "number of whole layers"
        return f"{profile.name} offloads no {parts}; activation_offload must be true or false."

    ability = replace(
        plain,
        asked=lambda question: None if question.activation_offload is None else question,
        can=lambda profile, asked: (
            profile.can.activation_offload == BY_MODULES
            if _offloads_in_parts(asked)
            else plain.can(profile, asked.activation_offload)
        ),
        words=words,
        told=lambda question, profiles: (
            f"activation_offload of {listed(question.offload_modules)}"
            if question.offload_modules
            else f"activation_offload of {counted(question.offload_layers, 'layer')}"
            if question.offload_layers is not None
            else plain.told(question, profiles)
        ),
    )
    return replace(switch, ability=ability)


def _offloads_in_parts(question: TrainingQuestion) -> bool:
    return bool(question.offload_modules) or question.offload_layers is not None


_OFFLOADS_ACTIVATIONS = _offloads_activations()


def _outside(places: IntArray | BoolArray, terms: Sequence[Any], choices: Collection[Any]) -> BoolArray:
    """Return where the term at a place is none of the choices."""
    is_outside = _are_outside(tuple(terms), tuple(choices))
    return NOWHERE if is_outside is None else is_outside[places.astype(np.int64, copy=False)]


@functools.cache
def _are_outside(terms: tuple[Any, ...], choices: tuple[Any, ...]) -> BoolArray | None:
    """Return which terms are none of the choices, None where all are."""
    are_outside = [term not in choices for term in terms]
    return np.array(are_outside) if any(are_outside) else None


WRITTEN_AS: Mapping[str, str] = MappingProxyType(
    {ENDS: "first=N,last=M", FEWER_AT_ENDS: "first-less=N,last-less=M", LISTED: "a list of blocks"}
)
"""The forms of `pipeline_layout` that are not asked for by their name."""


def _hidden(field: str) -> LayoutAbility:
    """Return the ability to hide a kind of traffic behind computation, or not to."""

    def words(question: TrainingQuestion, profile: Profile) -> str:
        choices = getattr(profile.overlap, field)
        always = "always hides what it can of" if True in choices else "is not planned with an overlap of"
        optimizer = question.optimizer
        beside = f" with optimizer {optimizer}" if getattr(load_profile(profile.name).overlap, field) != choices else ""
        return (
            f"{profile.name} {always} {HIDDEN_TRAFFIC[field]}{beside}; overlap.{field} must be "
            f"{str(True in choices).lower()}."
        )

    ability = Ability(
        pointer=f"/layout/overlap/{field}",
        asked=lambda question: _asked_to_hide(question, field),
        can=lambda profile, wanted: wanted in getattr(profile.overlap, field),
        words=words,
        told=lambda question, _: f"overlap.{field} {str(_asked_to_hide(question, field)).lower()}",
    )
    return LayoutAbility(ability=ability, lacks=_hidden_exchange if field == "expert_parallel" else _nowhere)


def _asked_to_hide(question: TrainingQuestion, field: str) -> bool | None:
    """Return whether a kind of traffic is to hide, None where a question does not say, or fixes that there is none."""
    asked = question.layout.overlap
    wanted: bool | None = None if asked is None else getattr(asked, field)
    is_of_replicas = field in ("gradients", "parameters")
    is_undivided = field == "parameters" and question.layout.zero_stage == 0
    return None if wanted is False and is_of_replicas and (is_undivided or _has_one_replica(question)) else wanted


def _has_one_replica(question: TrainingQuestion) -> bool:
    """Return whether the fixed degrees leave one replica, and its sequences to one rank."""
    asked = question.layout
    model_ranks = (asked.tensor_parallel or 1) * (asked.pipeline_parallel or 1)
    is_fixed = (asked.data_parallel, asked.context_parallel) == (1, 1)
    return is_fixed or question.hardware.gpus.maximum <= model_ranks


def _hidden_exchange(layouts: Candidates, job: Job) -> BoolArray:
    return _outside(layouts.expert_overlap, BOTH, job.profile.overlap.expert_parallel)


def _nowhere(_layouts: Candidates, _job: Job) -> BoolArray:
    """Return what is the same for all of a job's layouts."""
    return NOWHERE


def _in_pipelines(profile: Profile, field: str, choices: Collection[str], wanted: str) -> str:
    if profile.can.pipeline_parallel:
        return must_be(profile, field, choices, wanted)
    return f"{profile.name} has no pipelines; omit {field}."


def _unlike_sequences(layouts: Candidates, job: Job) -> BoolArray:
    """Return where tensor-parallel ranks divide the sequence as the stack does not, or leave it whole so."""
    unlike = _outside(layouts.sequence_parallel, BOTH, job.profile.can.sequence_parallel)
    lacking: BoolArray = NOWHERE if unlike is NOWHERE else (layouts.tensor_parallel > 1) & unlike
    return lacking


def _smaller_groups(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a shard group is not all replicas, on a stack that knows no smaller ones."""
    lacking: BoolArray = NOWHERE if job.profile.can.shard_group else layouts.shard_group != layouts.data_parallel
    return lacking


def _no_such_way(profile: Profile, field: str, choices: Collection[str], wanted: str) -> str:
    """Return the sentence on a way to divide a pipeline that a stack lacks; forms without a name are spelled out."""
    written = [WRITTEN_AS.get(choice, choice) for choice in choices]
    return _in_pipelines(profile, field, written, WRITTEN_AS.get(wanted, wanted))


def _way(question: TrainingQuestion) -> str | None:
    """Return the form of the way in which a question divides a pipeline's blocks, None where it does not say."""
    asked = question.layout.pipeline_layout
    return None if asked is None else read_pipeline_layout(asked).form


def _state_dtype(field: str, own_bytes: Callable[[StateBytes], int]) -> LayoutAbility:
    """Return the ability to hold gradients or states in another dtype than the stack's own, in any of its stages."""

    def can(profile: Profile, asked: TrainingQuestion) -> bool:
        usual = profile.states.get(asked.precision)
        is_usual = usual is not None and DTYPE_BYTES.get(getattr(asked, field)) == own_bytes(usual)
        has_some = profile.can.state_dtypes_from <= max(profile.can.zero_stages)
        return is_usual or (has_some and field in profile.can.chosen_dtypes)

    ability = Ability(
        pointer=request_pointer(field),
        asked=lambda question: None if getattr(question, field) is None else question,
        can=can,
        words=lambda question, profile: (
            f"With {profile.name}, optimizer {question.optimizer} has no {field} to choose: omit it."
        ),
        told=lambda question, _: f"{field} {getattr(question, field)} with optimizer {question.optimizer}",
    )
    return LayoutAbility(ability=ability, lacks=_nowhere)


def _form(question: TrainingQuestion) -> str | None:
    """Return by which of a stack's forms of recomputation a question computes again, None where it does not say."""
    wanted = question.recompute
    if wanted is None:
        return None
    if wanted.full_layers is not None:
        return "full_layers"
    if wanted.every is not None:
        return "every"
    return "modules" if wanted.modules else wanted.mode


def _recompute_told(question: TrainingQuestion) -> str:
    wanted = question.recompute or Recompute(mode="none")
    if wanted.full_layers is not None:
        return f"recompute of {wanted.full_layers} layers"
    if wanted.every is not None:
        return f"recompute of every {ORDINALS.get(wanted.every, f'{wanted.every}th')} layer"
    return f"recompute of {', '.join(wanted.modules)}" if wanted.modules else f"recompute {wanted.mode}"


def _recompute_forms(layouts: Candidates, job: Job) -> BoolArray:
    """Return where layers are recomputed in a mode that the stack lacks, or fewer than all where it knows only all."""
    forms = job.profile.can.recompute
    other_mode = _outside(layouts.recompute, RECOMPUTE_MODES, forms)
    if "full_layers" in forms or job.recompute_every is not None:
        return other_mode
    return anywhere((other_mode, (layouts.recompute == FULL) & (layouts.full_layers != ALL_LAYERS)))


def _experts_by_stage(layouts: Candidates, job: Job) -> BoolArray:
    """Return where experts are divided in a ZeRO stage in which the stack cannot."""
    outside = _outside(layouts.zero_stage, ZERO_STAGES, job.profile.can.expert_zero_stages)
    lacking: BoolArray = NOWHERE if outside is NOWHERE else (layouts.expert_parallel > 1) & outside
    return lacking


LAYOUT_ABILITIES: tuple[LayoutAbility, ...] = (
    _degree("tensor_parallel"),
    _degree("pipeline_parallel"),
    _degree("virtual_pipeline"),
    _degree("context_parallel"),
    _degree("context_all_to_all"),
    _degree("expert_parallel"),
    _choice("zero_stage", lambda can: can.zero_stages, ZERO_STAGES),
    LayoutAbility(
        ability=one_of(
            "/layout/shard_group",
            lambda profile: range(1, MOST_RANKS) if any(profile.can.zero_stages) else (),
            lambda profile, *_: f"{profile.name} shards nothing; omit shard_group.",
            # Without sharding it says nothing.
            asked=lambda question: None if question.layout.zero_stage == 0 else question.layout.shard_group,
            told=lambda question: f"shard_group {question.layout.shard_group}",
        ),
        lacks=_smaller_groups,
    ),
    _degree("secondary_shard_group"),
    _choice("offload", lambda can: can.offload, OFFLOADS),
    _choice("offload_target", lambda can: can.offload_targets),
    # What has no pipelines runs each micro-batch forward and then backward, as plans of it say.
    _choice(
        "pipeline_schedule", lambda can: can.pipeline_schedules or (ONE_FORWARD_ONE_BACKWARD,), words=_in_pipelines
    ),
    LayoutAbility(
        ability=one_of(
            "/layout/pipeline_layout",
            lambda profile: profile.can.pipeline_layouts if profile.can.pipeline_parallel else (),
            _no_such_way,
            asked=_way,
            told=lambda question: f"pipeline_layout {question.layout.pipeline_layout}",
        ),
        lacks=_nowhere,
    ),
    replace(
        _switch("sequence_parallel", lambda can: any(can.sequence_parallel), "has no sequence parallelism"),
        lacks=_unlike_sequences,
    ),
    *(_hidden(field) for field in HIDDEN_TRAFFIC),
    _state_dtype("gradient_dtype", lambda states: states.accumulator or states.gradient),
    _state_dtype("optimizer_state_dtype", lambda states: states.moment),
    _OFFLOADS_ACTIVATIONS,
    _switch("fused_cross_entropy", lambda can: can.fused_cross_entropy, "has no fused cross-entropy"),
    LayoutAbility(
        ability=one_of("/training/recompute", lambda profile: profile.can.recompute, asked=_form, told=_recompute_told),
        lacks=_recompute_forms,
    ),
)


def _asks_too_much(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a layout asks its stack for anything that it cannot do."""
    return anywhere(each.lacks(layouts, job) for each in LAYOUT_ABILITIES)


def _too_much(case: Case, job: Job) -> str:
    """Return what the stack lacks of what the layouts ask for: each may lack another ability."""
    lacked = [each.ability.field for each in LAYOUT_ABILITIES if each.lacks(case.layouts, job).any()]
    asked = [f"{field} {_values(getattr(case.layouts, field), TERMS.get(field))}" for field in lacked]
    return f"{job.profile.name} runs no layout with {listed(asked, 'or')} here."


def _values(column: IntArray | BoolArray, terms: Sequence[Any] | None) -> str:
    values = np.unique(column).tolist()
    return "/".join(str(value if terms is None else terms[int(value)]).lower() for value in values)


STACK_IS_ABLE = Rule(
    name="framework",
    field="",
    reads=(),
    reason="the framework cannot do this",
    breaches=(Breach(where=_asks_too_much, words=_too_much),),
)


def _divided_in_stage(case: Case, job: Job) -> str:
    stages = listed([str(stage) for stage in job.profile.can.expert_zero_stages], "or")
    return f"{job.profile.name} divides experts over ranks in zero_stage {stages}, not in {case.layout.zero_stage}."


EXPERTS_DIVIDE_IN_STAGE = Rule(
    name="experts_divide_in_stage",
    field="expert_parallel",
    reads=("expert_parallel", "zero_stage"),
    reason="the framework divides experts in some ZeRO stages only",
    breaches=(Breach(where=_experts_by_stage, words=_divided_in_stage),),
)


def _divides_adapters(layouts: Candidates, job: Job) -> BoolArray:
    """Return where ranks divide matrices with adapters on a stack that cannot."""
    if job.method == "full" or job.profile.can.adapters_over_tensor:
        return NOWHERE
    divided: BoolArray = layouts.tensor_parallel > 1
    return divided


def _divided_adapters(_case: Case, job: Job) -> str:
    return f"{job.profile.name} divides no adapters over tensor-parallel ranks: tensor_parallel must be 1."


ADAPTERS_LIE_WHOLE = Rule(
    name="adapters_lie_whole",
    field="tensor_parallel",
    reads=("tensor_parallel",),
    reason="the framework divides no adapters over tensor-parallel ranks: tensor_parallel must be 1",
    breaches=(Breach(where=_divides_adapters, words=_divided_adapters),),
)
