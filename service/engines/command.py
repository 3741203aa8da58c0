"""How a serving program is told what `/plan/infer` asks, and what it refuses of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from plimsoll.service.workloads.commands.flags import Arguments, Flag

Words: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[str, Any]
LAYOUT_FIELDS = ("tensor_parallel", "pipeline_parallel", "data_parallel", "decode_context_parallel")


def named_degrees(read: Arguments) -> dict[str, int]:
    """Return the degrees that a command names, 1 for those that divide every model."""
    named = {name: int(read.values[name]) for name in LAYOUT_FIELDS if name in read.values}
    return {"tensor_parallel": 1, "pipeline_parallel": 1, **named}


def with_attention_ranks(layout: dict[str, int], ranks: int) -> dict[str, int]:
    """Return the degrees with the tensor ranks, of which so many serve requests of their own, as what they are."""
    if ranks <= 1:
        return layout
    return layout | {"attention_data_parallel": ranks, "tensor_parallel": layout["tensor_parallel"] // ranks}


def _ranks_unsaid(_values: Values, _others: set[str]) -> int | None:
    return None


def _nothing_refused(*_read: object) -> Iterable[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """How one program that serves models is started, and what its options mean to `/plan/infer`."""

    program: str
    """What people call it."""
    engine: str
    """The engine whose memory it takes, as `/plan/infer` names it."""

    starts: tuple[Words, ...] = ()
    """Words that the command may begin with, the longest first."""
    modules: frozenset[str] = frozenset()
    """Modules that start it as `python -m`."""
    not_serving: frozenset[str] = frozenset()
    """Words that, right after the start, make it do something else than serve."""
    images: frozenset[str] = frozenset()
    """Its published images, whose tags are its versions."""

    flags: tuple[Flag, ...]
    """Options that are fields of the request, or are read below."""
    takes_positional: bool = True
    """Whether the model may be named without an option."""
    file_wins: bool = False
    """Whether its file of options, field `options_file`, overrides the command line."""
    cache_dtypes: Mapping[str, str | None]
    """Our format for each of its names of a KV cache's; None where the checkpoint decides."""
    layout: Callable[[Arguments], dict[str, int]]
    """Reads the degrees of parallelism."""
    ranks_of_node: Callable[[Values, set[str]], int | None] = _ranks_unsaid
    """Reads how many ranks run on a node; None where the command does not say."""

    uncounted: frozenset[str]
    """Options that change memory in ways the planner does not count: the plan says so in a note."""
    memory_saving: frozenset[str]
    """Options that may leave more memory than planned: a plan that does not fit is no reason to refuse."""
    overriding: frozenset[str]
    """Options that override what the others say is loaded where: a command with one is not read."""
    multi_node: frozenset[str]
    """Options that say that ranks run in other pods too."""
    is_on_one_node: bool = False
    """Whether it runs on one node unless it is given a number of nodes."""
    backends: frozenset[str] = frozenset()
    """Backends whose rules the planner has; a command that names another is not read."""

    at_odds: Callable[[Arguments], Iterable[str]] = _nothing_refused
    """Says why the program refuses its options beside each other."""
    node_rules: Callable[[Values], Iterable[str]] = _nothing_refused
    """Says why the program refuses its degrees on so many nodes."""
    unknown_options: Callable[[Arguments, str | None], Iterable[str]] = _nothing_refused
    """Says which options a version does not know."""
    waived_rules: Mapping[str, str] = field(default_factory=dict)
    """Rules of the planner, by the option with which they no longer hold."""
