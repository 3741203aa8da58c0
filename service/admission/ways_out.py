"""The changes that make a workload fit, as a person types them for its engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from plimsoll.planners.plans import Advice
from plimsoll.planners.serving.answer import ServingAnswer
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.training.advice import ON_NVME, ON_THE_HOST, PLANNED_FOR_SPEED
from plimsoll.service.engines.engine import engines
from plimsoll.service.workloads.commands.flags import Flag

# By field of a request, the option that says it; without one a change cannot be made on the command line, and is not
# offered.
Options: TypeAlias = Mapping[str, Flag]
# By field, what the engine calls our formats.
FormatNames: TypeAlias = Mapping[str, Mapping[str, str]]
REPLICAS, ATTENTION_REPLICAS = "layout.data_parallel", "layout.attention_data_parallel"
GPUS = "hardware.gpus"
MOST_WAYS_OUT = 3
FP8 = "fp8"
WEIGHTS, CACHE = "serving.weights", "serving.kv_cache"
FRAMEWORK, VERSION, LAYOUT, ANY = "framework", "framework_version", "layout", "any"
OFFLOAD = "layout.offload"


def flags_of(answer: ServingAnswer) -> Options:
    """Return what a person types for each of our fields, by the engine's table."""
    engine = engines()[answer.plan.settings.engine]
    by_field = {flag.field: flag for flag in reversed(engine.flags)}
    return {change: by_field[field] for change, field in engine.changes.items()}


def format_names(answer: ServingAnswer) -> FormatNames:
    """Return what the engine calls the formats that it quantizes to while loading, and those of its cache, by ours."""
    settings = answer.plan.settings
    engine = engines()[settings.engine]
    return {WEIGHTS: engine.on_loading(settings.engine_version), CACHE: engine.cache_names}


def possible_changes(answer: ServingAnswer) -> Sequence[Mapping[str, Any]]:
    """Return the changes that fit and can be typed: engines quantize to some formats only.

    Where the command has no option for the degrees that were found on more GPUs, their number alone is left; what it
    cannot be told of formats and lengths would be missing then, so such a change is no way out.
    """
    names, flags = format_names(answer), flags_of(answer)
    changes = []
    for change in (entry.change for entry in answer.advice if entry.fits):
        is_typed = all(_is_typed(name, value, flags) for name, value in change.items())
        has_one_name = change.get(REPLICAS, 1) == 1 or change.get(ATTENTION_REPLICAS, 1) == 1
        if change.get(WEIGHTS, FP8) not in (names[WEIGHTS] or (FP8,)) or not _is_loaded(change, answer):
            continue
        if is_typed and has_one_name:
            changes.append(change)
        elif GPUS in change and all(name.startswith("layout.") or name == GPUS for name in change):
            changes.append({GPUS: change[GPUS]})
    return changes


def _is_loaded(change: Mapping[str, Any], answer: ServingAnswer) -> bool:
    """Return whether weights of 16 bits have room where the engine loads all of them before it quantizes any."""
    plan = answer.plan
    settings, memory = plan.settings, plan.memory
    if WEIGHTS not in change or not engine_profile(settings.engine, settings.engine_version).quantizes_after_loading:
        return True
    # More GPUs divide them, at best evenly.
    share = memory.items.weights * plan.layout.gpus / int(change.get(GPUS, plan.layout.gpus))
    return share <= memory.limit_bytes


def _is_typed(name: str, value: Any, flags: Options) -> bool:
    """Return whether a change is an option of the command, or what stands beside it."""
    return name in flags or not name.startswith(("layout.", "serving.")) or (name.startswith("layout.") and value == 1)


def serving_ways_out(changes: Sequence[Mapping[str, Any]], flags: Options, format_names: FormatNames) -> str:
    """Return the first changes that fit, as a person would type them; what changes the answers' quality comes last."""
    fitting = sorted(changes, key=lambda change: WEIGHTS in change)
    return _joined(_change_text(change, flags, format_names) for change in fitting)


def training_ways_out(advice: Sequence[Advice]) -> str:
    """Return the first offers that fit, with the layout that was planned where the change leaves it open."""
    return _joined(_offer_text(entry) for entry in advice if entry.fits)


def _joined(ways: Iterable[str]) -> str:
    first = list(itertools.islice(ways, MOST_WAYS_OUT))
    return f"; it fits with {' or '.join(first)}" if first else ""


def _offer_text(entry: Advice) -> str:
    change, planned = dict(entry.change), entry.reason.rpartition(PLANNED_FOR_SPEED)[2].rstrip(".")
    framework, layout = change.pop(FRAMEWORK, None), change.pop(LAYOUT, None)
    change.pop(VERSION, None)
    is_offloaded = ON_THE_HOST in planned or ON_NVME in planned
    is_shown = layout is not None or framework == ANY or (is_offloaded and OFFLOAD not in change)
    said = [_change_text(change, {}, {})] if change else []
    said += [] if layout is None else ["the layout left free"]
    if framework is not None and (framework == ANY or not is_shown):
        # What was planned begins with its framework.
        said.append("another framework" if framework == ANY else f"framework {framework}")
    return " and ".join(said) + (f" ({planned})" if is_shown else "")


def _change_text(change: Mapping[str, Any], flags: Options, format_names: FormatNames) -> str:
    # A degree of one is what a command that does not name it has anyway.
    told = {name: value for name, value in change.items() if not (name.startswith("layout.") and value == 1)}
    values = {
        name: format_names[name].get(value, value) if name in format_names else value
        for name, value in (told or change).items()
    }
    return " and ".join(_typed(name, value, flags) for name, value in values.items())


def _typed(name: str, value: Any, flags: Options) -> str:
    if name == GPUS:
        return f"{value} GPUs"
    flag = flags.get(name)
    if flag is None:
        return f"{name.rpartition('.')[2]} {value}"
    return f"--{flag.name}" if flag.form == "switch" else f"--{flag.name} {value}"
