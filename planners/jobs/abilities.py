"""What a job may ask of a training stack, one record a thing: where it is asked, who can do it, and the words for both.

Those that layouts ask for too stand in `planners/search/rules/stack.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.formats.precision import PRECISIONS
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.hardware import Gpu, has_bf16
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.stacks.model_code import in_words, traits_of
from plimsoll.planners.stacks.profile import Profile, load_profile, stack_names

MOST_SHOWN = 40  # characters of a client's own word


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing that a job may ask of a stack, in the field at `pointer`.

    `asked` is what a question asks, None where nothing; `can` says whether a stack does that, `words` is the sentence
    where it does not. `told` names what is asked, in view of some stacks of which each or one lacks it.
    """

    pointer: str
    asked: Callable[[TrainingQuestion], Any]
    can: Callable[[Profile, Any], bool]
    words: Callable[[TrainingQuestion, Profile], str]
    told: Callable[[TrainingQuestion, Sequence[Profile]], str]

    @property
    def field(self) -> str:
        """Return the name of the field, with the part of the layout or job that it is in."""
        return self.pointer.split("/", 2)[-1] if self.pointer.count("/") > 1 else self.pointer[1:]

    def problem(self, question: TrainingQuestion, profile: Profile) -> str | None:
        """Return the sentence on what a stack cannot do of what is asked, or None."""
        wanted = self.asked(question)
        return None if wanted is None or self.can(profile, wanted) else self.words(question, profile)


def must_be(profile: Profile, field: str, choices: Collection[Any], wanted: object) -> str:
    """Return the sentence on a value that is not one of a stack's."""
    return f"With {profile.name}, {field} must be {listed([str(choice) for choice in choices], 'or')}, not {wanted}."


def one_of(
    pointer: str,
    choices: Callable[[Profile], Collection[Any]],
    words: Callable[[Profile, str, Collection[Any], Any], str] = must_be,
    *,
    asked: Callable[[TrainingQuestion], Any] | None = None,
    told: Callable[[TrainingQuestion], str] | None = None,
) -> Ability:
    """Return the ability to take a value of the field at `pointer`, of which each stack has some choices.

    `asked` returns the value from a question and `told` names it, where it is not simply the field's.
    """
    field = pointer.rpartition("/")[2]
    value = asked or (lambda question: _value_at(question, pointer))
    return Ability(
        pointer=pointer,
        asked=value,
        can=lambda profile, wanted: wanted in choices(profile),
        words=lambda question, profile: words(profile, field, choices(profile), value(question)),
        told=lambda question, _: told(question) if told else f"{field} {_wire(value(question))}",
    )


def _value_at(question: TrainingQuestion, pointer: str) -> Any:
    """Return what a question has in the field that a pointer of its request names."""
    _, part, field = pointer.split("/")
    return getattr(question.layout if part == "layout" else question, field)


def _wire(value: object) -> str:
    """Return a value as a request spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(profile: Profile, field: str, choices: Collection[Any], wanted: str) -> str:
    return must_be(profile, field, choices, repr(wanted[:MOST_SHOWN]))


def _planned_only(profile: Profile, field: str, choices: Collection[Any], wanted: str) -> str:
    return f"{profile.name} is planned only with {field} {listed(tuple(choices), 'or')}, not with {wanted!r}."


def _one_kind(profile: Profile, field: str, choices: Collection[Any], wanted: str) -> str:
    if choices:
        return _quoted(profile, field, choices, wanted)
    return f"Leave {field} out: {profile.name} offers no choice."


def _other_precision(question: TrainingQuestion, profile: Profile) -> str:
    choices = profile.can.optimizer_precisions[question.optimizer]
    return (
        f"With {profile.name}, optimizer {question.optimizer} runs in precision {listed(choices, 'or')}, not in "
        f"{question.precision}."
    )


def _no_code(question: TrainingQuestion, profile: Profile) -> str:
    lacking = traits_of(question.model) & set(profile.models.lacks)
    return f"{profile.name} has no code for {in_words(lacking)}, which {question.model.name} needs."


def _code(question: TrainingQuestion, profiles: Sequence[Profile]) -> str:
    lacked = frozenset(trait for profile in profiles for trait in profile.models.lacks)
    return f"code for {in_words(traits_of(question.model) & lacked)}"


def _no_logits(_: TrainingQuestion, profile: Profile) -> str:
    stacks = map(load_profile, stack_names())
    keeping = [f"{each.can.evaluation_logits_kept_by} ({each.name})" for each in stacks if _keeps_logits(each)]
    return f"{profile.name} keeps no logits of an evaluation; {listed(keeping)} does."


def _keeps_logits(profile: Profile) -> bool:
    return bool(profile.can.evaluation_logits_kept_by)


def _no_companions(_: TrainingQuestion, profile: Profile) -> str:
    able = [each.name for each in map(load_profile, stack_names()) if each.can.companions]
    return f"Companion models are planned as TRL runs them, with {listed(able, 'or')}, not with {profile.name}."


def _no_further_tokens(_: TrainingQuestion, profile: Profile) -> str:
    able = [each.name for each in map(load_profile, stack_names()) if each.can.multi_token_prediction]
    return f"Layers for multi-token prediction are planned with {listed(able, 'or')}, not with {profile.name}."


def _no_low_precision_weights(question: TrainingQuestion, profile: Profile) -> str:
    stacks = map(load_profile, stack_names())
    able = [each.name for each in stacks if _holds_weights_alone(each, question.precision)]
    held = f"{profile.name} holds weights in 16 bits or more beside those that {question.precision} multiplies"
    return f"{held}; {listed(able, 'and')} can hold these alone." if able else f"{held}."


def _holds_weights_alone(profile: Profile, precision: str) -> bool:
    kept = profile.low_precision.get(precision) if precision in profile.states else None
    return kept is not None and True in kept.alone


def attention_kinds(profile: Profile, gpu: Gpu) -> tuple[str, ...]:
    """Return the kinds of attention that a stack runs on a card."""
    return profile.can.attention if has_bf16(gpu) else profile.can.attention_without_bf16


def _no_kernel(question: TrainingQuestion, profile: Profile) -> str:
    gpu = question.hardware.gpu
    where = "" if has_bf16(gpu) else f" on {gpu.name}, which has no bf16 (compute capability below 8.0)"
    kinds = attention_kinds(profile, gpu)
    if not kinds:
        return f"{profile.name} has no attention kernels{where}."
    return f"{profile.name} has no {question.attention} attention{where}: attention must be {listed(kinds, 'or')}."


ABILITIES: tuple[Ability, ...] = (
    Ability(
        pointer="/framework",
        asked=lambda question: traits_of(question.model),
        can=lambda profile, traits: traits.isdisjoint(profile.models.lacks),
        words=_no_code,
        told=_code,
    ),
    one_of("/training/precision", lambda profile: tuple(profile.states), _quoted),
    one_of("/training/method", lambda profile: profile.can.methods, _planned_only),
    one_of("/training/optimizer", lambda profile: profile.can.optimizers, _planned_only),
    Ability(
        pointer="/training/precision",
        asked=lambda question: question,
        can=lambda profile, asked: asked.precision in profile.can.optimizer_precisions.get(asked.optimizer, PRECISIONS),
        words=_other_precision,
        told=lambda question, _: f"precision {question.precision} with optimizer {question.optimizer}",
    ),
    Ability(
        pointer="/training/evaluation/keeps_logits",
        asked=lambda question: (question.evaluation is not None and question.evaluation.keeps_logits) or None,
        can=lambda profile, _: _keeps_logits(profile),
        words=_no_logits,
        told=lambda *_: "an evaluation that keeps logits",
    ),
    Ability(
        pointer="/training/companions",
        asked=lambda question: question.companions or None,
        can=lambda profile, _: profile.can.companions,
        words=_no_companions,
        told=lambda *_: "models beside the one that learns",
    ),
    Ability(
        pointer="/training/multi_token_prediction",
        asked=lambda question: question.multi_token_prediction or None,
        can=lambda profile, _: profile.can.multi_token_prediction,
        words=_no_further_tokens,
        told=lambda *_: "layers for multi-token prediction",
    ),
    Ability(
        pointer="/training/low_precision_weights",
        asked=lambda question: question.precision if question.low_precision_weights else None,
        can=_holds_weights_alone,
        words=_no_low_precision_weights,
        told=lambda *_: "low_precision_weights",
    ),
    Ability(
        pointer="/training/attention",
        asked=lambda question: question,
        can=lambda profile, asked: asked.attention in attention_kinds(profile, asked.hardware.gpu),
        words=_no_kernel,
        told=lambda question, _: f"attention {question.attention} on {question.hardware.gpu.name}",
    ),
    one_of("/training/gradient_compression", lambda profile: ("none", *profile.can.gradient_compression), _quoted),
    one_of("/training/kernels", lambda profile: profile.kernel_choices, _one_kind),
)


def why_unsupported(question: TrainingQuestion, profile: Profile) -> InvalidQuestion | None:
    """Return why this framework cannot run the job in any layout, or None."""
    return next(unsupported(question, profile), None)


def unsupported(question: TrainingQuestion, profile: Profile) -> Iterator[InvalidQuestion]:
    """Yield everything of the job that this framework cannot do in any layout."""
    for ability in ABILITIES:
        problem = ability.problem(question, profile)
        if problem is not None:
            yield InvalidQuestion(problem, pointer=ability.pointer)
