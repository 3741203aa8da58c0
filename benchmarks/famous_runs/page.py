"""`docs/famous-runs.md`: tables and sections set into places of the page that are marked for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.asking import Refused
from benchmarks.famous_runs import words
from benchmarks.famous_runs.asking import Answer, AskedRun, Planned, own_launch_file
from benchmarks.famous_runs.data_parts import FITTED, HELD_OUT, NEVER_FITTED, data_part
from benchmarks.famous_runs.record import FamousRun
from benchmarks.famous_runs.step_times import conversion

BEGIN, END = "<!-- generated: {name} -->", "<!-- end -->"
KNOWN_FROM = {
    "read": "read in the source",
    "recalled": "from memory of the source, not read again",
    "data": "a row of `benchmarks/data`",
}
MOST_REASONS = 2


def write_page(page: Path, parts: Mapping[str, str]) -> None:
    """Replace the generated parts of a page; raises ValueError where it has no place for one."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin = BEGIN.format(name=name)
        place = re.compile(re.escape(begin) + r"\n.*?" + re.escape(END), re.DOTALL)
        if not place.search(text):
            raise ValueError(f"{page} has no place for {name!r}: a line {begin}, and {END} below it.")
        text = place.sub(lambda _, whole=f"{begin}\n{part}\n{END}": whole, text)
    page.write_text(text, encoding="utf-8")


def page_parts(asked: Sequence[AskedRun]) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    return {
        "counts": "\n".join(_counts(asked)),
        "overview": "\n".join(_overview(asked)),
        "refused": "\n".join(_refused(asked)),
        "runs": "\n".join(line for one in asked for line in _section(one)).rstrip(),
    }


def is_inside(asked: AskedRun) -> bool | None:
    """Return whether the published step lies in the band of the plan as it ran; None where there is none of either."""
    if asked.published_seconds is None or not isinstance(asked.as_ran, Planned):
        return None
    return asked.as_ran.low_seconds <= asked.published_seconds <= asked.as_ran.high_seconds


def published_utilization(asked: AskedRun) -> float | None:
    """Return the published step's utilization as the planner counts it: attention causal, recomputation left out.

    The work of a step is the same in every layout, so any plan of the run tells it.
    """
    for answer in (asked.as_ran, asked.open_layout, asked.open_framework):
        if isinstance(answer, Planned) and asked.published_seconds is not None:
            return answer.utilization_fraction * answer.step_seconds / asked.published_seconds
    return None


def _counts(asked: Sequence[AskedRun]) -> Iterator[str]:
    yield "| | runs | with a published speed | planned | inside the band | planned over published | planned to fit |"
    yield "|---|---|---|---|---|---|---|"
    for name in (FITTED, HELD_OUT, NEVER_FITTED, "all"):
        some = [one for one in asked if name in ("all", data_part(one.run))]
        timed = [one for one in some if one.published_seconds is not None]
        plans = [one.as_ran for one in some if isinstance(one.as_ran, Planned)]
        inside = sum(is_inside(one) is True for one in timed)
        ratios = [
            one.as_ran.step_seconds / one.published_seconds
            for one in timed
            if isinstance(one.as_ran, Planned) and one.published_seconds is not None
        ]
        middle = f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else words.NOTHING
        fitting = sum(plan.fits for plan in plans)
        planned = f"{len(plans)} of {len(some)}"
        yield (
            f"| {name} | {len(some)} | {len(timed)} | {planned} | {inside} of {len(timed)} | {middle} "
            f"| {fitting} of {len(plans)} |"
        )


def _overview(asked: Sequence[AskedRun]) -> Iterator[str]:
    yield "| run | constants | published | planned as it ran | ratio | MFU published | planned | in the band | memory |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in asked:
        published = words.NOTHING if one.published_seconds is None else words.seconds(one.published_seconds)
        utilization = published_utilization(one)
        cells = [
            f"[{one.run.name}](#{anchor(one.run.name)})",
            data_part(one.run),
            published,
            *_planned_cells(one),
        ]
        cells.insert(5, words.NOTHING if utilization is None else words.percent(utilization))
        yield f"| {' | '.join(cells)} |"


def _planned_cells(one: AskedRun) -> tuple[str, ...]:
    """Return the cells of step, ratio, utilization, band and memory."""
    plan = one.as_ran
    if not isinstance(plan, Planned):
        return "refused", words.NOTHING, words.NOTHING, "no" if one.published_seconds else words.NOTHING, "refused"
    inside = is_inside(one)
    ratio = words.NOTHING if one.published_seconds is None else f"{plan.step_seconds / one.published_seconds:.2f}"
    return (
        step_cell(plan),
        ratio,
        utilization_cell(plan),
        words.NOTHING if inside is None else "yes" if inside else "no",
        memory_cell(plan),
    )


def step_cell(plan: Planned) -> str:
    """Return a planned step with its band."""
    low, high = words.seconds(plan.low_seconds), words.seconds(plan.high_seconds)
    return f"{words.seconds(plan.step_seconds)} ({low} to {high})"


def utilization_cell(plan: Planned) -> str:
    """Return a planned utilization with the band that the step's has."""
    work = plan.utilization_fraction * plan.step_seconds
    low, high = words.percent(work / plan.high_seconds), words.percent(work / plan.low_seconds)
    return f"{words.percent(plan.utilization_fraction)} ({low} to {high})"


def memory_cell(plan: Planned) -> str:
    """Return a plan's verdict on memory and its peak."""
    verdict = {"no": "does not fit"}.get(plan.verdict, plan.verdict)
    return f"{verdict}: {words.gib(plan.peak_bytes)} of {words.gib(plan.limit_bytes)} GiB"


def anchor(heading: str) -> str:
    """Return a heading's anchor as Python-Markdown makes it."""
    plain = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def _refused(asked: Sequence[AskedRun]) -> Iterator[str]:
    refused = [(one.run, one.as_ran) for one in asked if isinstance(one.as_ran, Refused)]
    if not refused:
        yield "None."
        return
    yield "| run | code | why |"
    yield "|---|---|---|"
    for run, answer in refused:
        yield f"| {run.name} | `{answer.code}` | {_reasons(answer)} |"


def _reasons(answer: Refused) -> str:
    return " ".join(answer.reasons[:MOST_REASONS]).replace("|", "\\|")


def _section(one: AskedRun) -> Iterator[str]:
    run = one.run
    yield f"### {run.name}"
    yield ""
    yield f"[{run.source}]({run.url}); {KNOWN_FROM[run.known_from]}, {data_part(run)}."
    yield ""
    yield from _as_it_ran(run)
    yield ""
    yield "| | step | MFU | memory of a GPU | layout |"
    yield "|---|---|---|---|---|"
    yield _published_row(one)
    yield _row("as it ran", one.as_ran)
    yield _row(f"{run.request['framework']}, layout open", one.open_layout)
    yield _row("any framework", one.open_framework)
    yield ""
    yield from _launch_file(one.as_ran)
    yield words.difference(one.as_ran, one.open_layout, one.published_seconds)
    yield from _memory_sentence(one)
    yield ""


def _as_it_ran(run: FamousRun) -> Iterator[str]:
    """Yield lines of a list: what ran, what was published, and what the request does not say."""
    training = {name: value for name, value in run.request["training"].items() if name != "lora"}
    job = {name: training[name] for name in ("micro_batch_size", "recompute") if name in training}
    asked = words.layout({**run.request["layout"], **job}) or "one GPU"
    method = training.get("method", "full")
    learned = "" if method == "full" else f"{method}, "
    hardware = run.request["hardware"]
    gpus = f"{run.gpus:,} × {hardware['gpu']}"
    yield f"- Ran on {gpus} with {run.ran_with}. Asked as {run.request['framework']}: {asked}."
    yield (
        f"- Job: {learned}{training['global_batch_size']:,} sequences of {training['sequence_length']:,} tokens, "
        f"{training['precision']}, {training.get('optimizer', 'adamw')}."
    )
    if run.pipeline_division is not None:
        yield f"- Pipeline: {run.pipeline_division}"
    counted = conversion(run)
    yield f"- Published: {run.published.words}{'' if counted is None else f'; in seconds by {counted}'}."
    if run.left_open:
        yield f"- Left to the planner: {', '.join(words.WORDS[name] for name in run.left_open)}."
    yield from (f"- {sentence}" for sentence in run.unsaid)


def _published_row(one: AskedRun) -> str:
    step = words.NOTHING if one.published_seconds is None else words.seconds(one.published_seconds)
    found = published_utilization(one)
    memory = one.run.published.memory
    return (
        f"| published | {step} | {words.NOTHING if found is None else words.percent(found)} "
        f"| {words.NOTHING if memory is None else f'{memory.words} {memory.kind}'} | |"
    )


def _row(name: str, answer: Answer) -> str:
    if not isinstance(answer, Planned):
        return f"| {name} | refused | | | {_reasons(answer)} |"
    own = f"{answer.layout['framework']}: {words.layout(answer.layout)}"
    return f"| {name} | {step_cell(answer)} | {utilization_cell(answer)} | {memory_cell(answer)} | {own} |"


def _launch_file(answer: Answer) -> Iterator[str]:
    """Yield why the framework's own program has no launch file of the plan, if it has none."""
    if isinstance(answer, Planned) and answer.why_no_launch_file:
        name = own_launch_file(str(answer.layout["framework"]))
        yield f"No launch file for {name} is written: {' '.join(answer.why_no_launch_file)}"


def _memory_sentence(one: AskedRun) -> Iterator[str]:
    """Yield what of a published memory is planned, or that a run which ran is planned not to fit."""
    plan, published = one.as_ran, one.run.published.memory
    if not isinstance(plan, Planned):
        return
    if not plan.fits:
        yield "It ran, and is planned not to fit."
    if published is None:
        return
    planned = {
        "allocated": plan.allocated_bytes,
        "reserved": plan.reserved_bytes,
        "parameters and gradients": plan.item_bytes["parameters"] + plan.item_bytes["gradients"],
    }[published.kind]
    share = planned / plan.peak_bytes
    low, high = share * plan.peak_low_bytes, share * plan.peak_high_bytes
    measured = published.gigabytes * 1e9
    inside = "inside" if low <= measured <= high else "outside"
    yield (
        f"Of {published.kind} memory {words.gib(planned)} GiB are planned ({words.gib(low)} to {words.gib(high)}) and "
        f"{words.gib(measured)} were published, {inside} the band."
    )
