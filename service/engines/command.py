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
    """How one program is told what `/plan/infer` asks.

    `program` is what people call it, `engine` whose memory it takes. It `starts` with these
    words, the longest first, or as one of `modules` that Python runs; with a word of
    `not_serving` behind them it does something else. Its own `images` carry its version.
    Flags in `unread` take memory that no planner counts; with one of `decisive` the
    command's other flags no longer say what is loaded where, and one of `lowering`
    may leave more than is planned. One of `spanning` says that ranks run in other pods
    too; an engine that `is_on_one_node` needs a number of nodes for that. A file of options is
    named by the field `options_file`; `file_wins` where it replaces what the command line says.
    The planner has the rules of its `backends`. `layout` reads the degrees, and
    `ranks_of_node` how many ranks a node has, None where that is not said. `at_odds`,
    `node_rules` and `unknown_options` say why the program refuses arguments. Rules of
    `lifted` are checked no longer where their option stands.
    """

    program: str
    engine: str
    flags: tuple[Flag, ...]
    layout: Callable[[Arguments], dict[str, int]]
    unread: frozenset[str]
    decisive: frozenset[str]
    spanning: frozenset[str]
    lowering: frozenset[str]
    cache_dtypes: Mapping[str, str | None]
    starts: tuple[Words, ...] = ()
    modules: frozenset[str] = frozenset()
    not_serving: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    file_wins: bool = False
    takes_positional: bool = True
    backends: frozenset[str] = frozenset()
    is_on_one_node: bool = False
    ranks_of_node: Callable[[Values, set[str]], int | None] = _ranks_unsaid
    at_odds: Callable[[Arguments], Iterable[str]] = _nothing_refused
    node_rules: Callable[[Values], Iterable[str]] = _nothing_refused
    unknown_options: Callable[[Arguments, str | None], Iterable[str]] = _nothing_refused
    lifted: Mapping[str, str] = field(default_factory=dict)
