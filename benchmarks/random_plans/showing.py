"""One stored plan beside its trace: items, phases, and what lives at the traced peak."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.random_plans.comparing import name_of
from benchmarks.random_plans.files import StoredSet
from benchmarks.random_plans.ledgers import live_at_peak
from benchmarks.random_plans.planning import allocated_bytes, planned_memory, read_request
from plimsoll.planners.plans import StageMemory

MIB = 2**20
MOST_PIECES = 25
# So that like pieces of all layers are told together.
LAYER_NUMBER = re.compile(r"\.\d+\.")


def shown(stored: StoredSet, number: int) -> Iterator[str]:
    """Yield what is stored of a plan as lines of text, beside what the planner says now; sizes are in MiB."""
    plan = next(plan for plan in stored.plans() if plan.number == number)
    line = next(line for line in stored.lines() if line["number"] == number)
    memory = planned_memory(read_request(plan.request), plan.layout)
    yield f"{number:03} {name_of(plan)}"
    sizes = {name: value for name, value in plan.request["model"]["config"].items() if isinstance(value, int)}
    yield f"    {sizes}"
    if "failed" in line:
        yield f"    {line['failed']}"
        return
    for stage in line["stages"]:
        yield from _stage(stage, memory.stages[stage["stage"]])
    yield f"    host: planned {memory.host_bytes / MIB:.1f}, traced {line['stages'][0].get('host_bytes', 0) / MIB:.1f}"


def _stage(traced: Mapping[str, Any], planned: StageMemory) -> Iterator[str]:
    items, allocated = planned.items, allocated_bytes(planned)
    peak = traced["peak_bytes"]
    yield (
        f"  stage {planned.stage}, layers {planned.layers}: planned {allocated / MIB:.1f} ({planned.phase}), traced "
        f"{peak / MIB:.1f} (step {traced['peak_step']}, {traced['peak_phase']}), {allocated / peak - 1:+.2%}"
    )
    for name, held in traced["items"].items():
        if hasattr(items, name):
            told = getattr(items, name)
            yield f"    {name:14} {told / MIB:12.1f} {held / MIB:12.1f} {(told - held) / MIB:+12.1f}"
    for moment in planned.moments:
        of_layer = "" if moment.layer is None else f" of layer {moment.layer}"
        held = {name: round(getattr(moment.items, name) / MIB, 1) for name in traced["items"] if hasattr(items, name)}
        yield f"    planned {moment.phase + of_layer:28} {moment.allocated_bytes / MIB:12.1f} {held}"
    for phase in traced["phases"]:
        kinds = {kind: round(held / MIB, 1) for kind, held in phase["kinds"].items() if held > MIB // 10}
        yield f"    traced step {phase['step']} {phase['phase']:22} {phase['peak_bytes'] / MIB:12.1f} {kinds}"
    yield from _live(traced["ledger"])


def _live(ledger: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pieces at the peak, like ones of all layers together, the largest first."""
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    for piece in live_at_peak(ledger):
        together[piece.kind, LAYER_NUMBER.sub(".*.", piece.origin)].append(piece.requested_bytes)
    ranked = sorted(together.items(), key=lambda entry: -sum(entry[1]))
    for (kind, origin), sizes in ranked[:MOST_PIECES]:
        each = ", ".join(f"{sizes.count(size)} x {size / MIB:.2f}" for size in sorted(set(sizes), reverse=True)[:4])
        yield f"    alive {kind:22} {origin:56} {sum(sizes) / MIB:12.1f} = {each}"
