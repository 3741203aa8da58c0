"""Step times by fits that have not seen a source, or a card: what the service would have answered of them.

    python -m benchmarks.accuracy.step_time.left_out [--write]

Everything is fitted again without the source (all of its tables), or without the card. Parameters of a stack or of a
generation that is left without a run take the value of the textbook's stack, or of cards of no known generation. The
answer of the service is then multiplied by what the other constants make of its own layout's step.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.accuracy.asking import Json, Refused, Service
from benchmarks.accuracy.document import Section, measured_on, write_sections
from benchmarks.accuracy.judged import Judged, figures, heading
from benchmarks.accuracy.step_time.cases import Case, all_cases
from benchmarks.accuracy.step_time.fit import PARAMETERS, Fit, fitted_values, start_values
from benchmarks.accuracy.step_time.ranking import order_section
from benchmarks.accuracy.step_time.statistics import FloatArray
from benchmarks.accuracy.step_time.timed_runs import EXPERTS, SWEEP, TimedAnswer, answers, fresh_runs, run_of
from plimsoll.planners.ground.terms import RECOMPUTE_MODES
from plimsoll.planners.layouts.candidates import ALL_LAYERS
from plimsoll.planners.stacks.profile import textbook
from plimsoll.planners.timing.efficiency import load_efficiency

PAGE = Path(__file__).parents[3] / "docs" / "accuracy.md"
NAME_WIDTH = 30
CUTS = (5, 50, 95)
DEGREES = (
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "virtual_pipeline",
    "context_parallel",
    "expert_parallel",
    "sequence_parallel",
    "zero_stage",
    "micro_batch_size",
)
Key = Callable[[Case], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What was left out, its cases as they were answered, and as fits without it would have had them answered."""

    name: str
    shipped: tuple[Judged, ...]
    refitted: tuple[Judged, ...]


def source_of(case: Case) -> str:
    """Return the source without the names of its tables."""
    return case.source.split(",")[0].replace(" sweep", "")


def card_of(case: Case) -> str:
    """Return the card."""
    return case.gpu


def left_out_sections(service: Service) -> Iterator[Section]:
    """Refit without each source, then without each card, and yield the tables."""
    cases = all_cases()[0]
    told = answers(map(run_of, cases), service)
    kept = [(case, one) for case, one in zip(cases, told, strict=True) if not isinstance(one.answer, Refused)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        sources, cards = (_without_each(key, kept, pool) for key in (source_of, card_of))
    day = measured_on().title
    for name, title, found in (
        ("time-sources-left-out", "Step time, each source by a fit without it", sources),
        ("time-cards-left-out", "Step time, each card by a fit without it", cards),
    ):
        unseen_cards = untimed_lines(found) if found is cards else ()
        yield Section(name=name, title=title, lines=(day, "", *_lines(found), *unseen_cards))
    unseen = answers(fresh_runs(), service)
    judged = [*(one for each in sources for one in each.refitted), *(one.judged for one in unseen)]
    title = "Bands of the step time, on runs whose source no fit saw"
    yield Section(name="time-bands", title=title, lines=(day, "", *band_lines(judged)))
    yield order_section([*(one for _, one in kept), *unseen], _multiples(kept, sources))


def _multiples(kept: Sequence[tuple[Case, TimedAnswer]], sources: Sequence[LeftOut]) -> dict[int, float]:
    """Return what each answer's estimate is multiplied by in a fit without its source, by its place."""
    found: dict[int, float] = {}
    for each in sources:
        places = [place for place, (case, _) in enumerate(kept) if source_of(case) == each.name]
        for place, shipped, refitted in zip(places, each.shipped, each.refitted, strict=True):
            found[place] = (refitted.ratio or 1.0) / (shipped.ratio or 1.0)
    return found


def _without_each(key: Key, kept: Sequence[tuple[Case, TimedAnswer]], pool: ProcessPoolExecutor) -> list[LeftOut]:
    names = sorted({key(case) for case, _ in kept})
    return list(pool.map(_left_out, names, [key] * len(names), [kept] * len(names)))


def _left_out(name: str, key: Key, kept: Sequence[tuple[Case, TimedAnswer]]) -> LeftOut:
    """Return what a fit to all other cases makes of those of one name."""
    others = Fit([case for case, _ in kept if key(case) != name and not case.held_out])
    mine = [(case, one) for case, one in kept if key(case) == name]
    values = fitted_values(others, start_without(others))
    as_answered = Fit([_as_answered(case, one.answer) for case, one in mine])
    shipped, refitted = as_answered.both(start_values()), as_answered.both(values)
    return LeftOut(
        name=name,
        shipped=tuple(one.judged for _, one in mine),
        refitted=tuple(
            _refitted(one.judged, refitted[0][index] / shipped[0][index], refitted[1][index] / refitted[0][index])
            for index, (_, one) in enumerate(mine)
        ),
    )


def start_without(fit: Fit) -> FloatArray:
    """Return the shipped values, and what nobody measured of a stack or a generation that a fit has no case of."""
    values = start_values()
    unknown = load_efficiency(textbook().name, "")
    for index in fit.left_alone():
        one = PARAMETERS[index]
        where = unknown.gpu if one.folder == "gpus" else unknown.stack
        values[index] = np.clip(getattr(where, one.key), one.low, one.high)
    return values


def _as_answered(case: Case, answer: Json | Refused) -> Case:
    """Return a case with the layout that was answered, each choice made."""
    if isinstance(answer, Refused):
        raise TypeError(f"{case.table} was refused.")
    layout = answer["plan"]["layout"]
    full_layers = layout["recompute_layers"]
    chosen = {name: (int(layout[name]),) for name in DEGREES}
    return dataclasses.replace(
        case,
        layout={
            **chosen,
            "recompute": (RECOMPUTE_MODES.index(layout["recompute"]),),
            "full_layers": (ALL_LAYERS if full_layers is None else full_layers,),
            "expert_overlap": (int(layout["overlap"]["expert_parallel"]),),
        },
        recompute_modules=tuple(layout["recompute_modules"] or ()),
    )


def _refitted(judged: Judged, multiple: float, stall: float) -> Judged:
    """Return an answer with its estimate multiplied, and the stack's slow mode in the upper bound."""
    low, high = load_efficiency(judged.stack, judged.gpu).band(experts=judged.kind == EXPERTS)
    ratio = None if judged.ratio is None else judged.ratio * multiple
    return dataclasses.replace(judged, ratio=ratio, band=(low, high + stall))


def _lines(found: Sequence[LeftOut]) -> Iterator[str]:
    yield f"{'':{NAME_WIDTH}} {'as shipped'.center(len(heading()))} | {'by a fit without it'.center(len(heading()))}"
    yield f"{'':{NAME_WIDTH}} {heading()} | {heading()}"
    for one in found:
        yield f"{one.name[:NAME_WIDTH]:{NAME_WIDTH}} {figures(one.shipped)} | {figures(one.refitted)}"


def untimed_lines(cards: Sequence[LeftOut]) -> Iterator[str]:
    """Yield where nine of ten of the runs on cards that no fit saw lie: the band of cards that nobody timed.

    nanotron's are of one card and source, without which nothing is left of its constants.
    """
    yield ""
    yield f"{'measured over estimated':{NAME_WIDTH}}  runs" + "".join(f"{cut:>7}%" for cut in CUTS)
    runs = [one for card in cards for one in card.refitted if one.kind != SWEEP and one.ratio is not None]
    for name, experts in (("dense", False), ("experts", True)):
        multiples = [1 / (one.ratio or 1.0) for one in runs if (one.kind == EXPERTS) is experts]
        cuts = "".join(f"{np.percentile(multiples, cut):8.2f}" for cut in CUTS)
        yield f"{name:{NAME_WIDTH}} {len(multiples):5d}{cuts}"


def band_lines(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield a line for each band: where nine of ten of the measured lie, and how many lie in what is stated."""
    yield (
        f"{'measured over estimated':{NAME_WIDTH}}  runs  mean error"
        + "".join(f"{cut:>7}%" for cut in CUTS)
        + "  stated band  in band"
    )
    named: dict[tuple[str, bool], list[Judged]] = {}
    for one in judged:
        if one.ratio is not None:
            named.setdefault((one.stack, one.kind == EXPERTS), []).append(one)
    for (stack, experts), members in sorted(named.items()):
        multiples = [1 / one.ratio for one in members if one.ratio is not None]
        cuts = "".join(f"{np.percentile(multiples, cut):8.2f}" for cut in CUTS)
        low, high = load_efficiency(stack, members[0].gpu).band(experts=experts)
        inside = sum(one.is_in_band for one in members) / len(members)
        error = np.mean([abs((one.ratio or 1.0) - 1) for one in members])
        name = f"{stack}, experts" if experts else stack
        yield f"{name:{NAME_WIDTH}} {len(members):5d} {error:11.1%}{cuts}  {low:4.2f} to {high:4.2f}  {inside:6.0%}"


def main() -> None:
    """Print the tables, or set them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy.step_time.left_out", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"set the tables into {PAGE.name} as well")
    arguments = parser.parse_args()
    sections = list(left_out_sections(Service()))
    print("\n\n".join(section.text for section in sections))
    if arguments.write:
        write_sections(PAGE, sections)


if __name__ == "__main__":
    main()
