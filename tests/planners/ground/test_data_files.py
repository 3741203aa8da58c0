"""Tables of data files: what lies over what, and which become records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import pytest

from plimsoll.planners.ground.data_files import overlaid, record


@dataclass(frozen=True, kw_only=True)
class Card:
    rates: tuple[int, ...]
    link: Literal["none", "nvlink"] = "none"


class Kind(StrEnum):
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True)
class Box:
    kind: Kind
    first: Card | None = None
    others: tuple[Card, ...] = ()
    by_name: Mapping[str, Card]


def test_tables_within_a_table_become_what_the_fields_are():
    card = {"rates": [1]}
    made = record(Box, {"kind": "plain", "first": card, "others": [card], "by_name": {"a": card}})
    of_card = Card(rates=(1,))
    assert made == Box(kind=Kind.PLAIN, first=of_card, others=(of_card,), by_name={"a": of_card})


def test_tables_are_merged_key_by_key_and_their_values_replaced_whole():
    below = {"weights": {"reduce": 4, "by_stage": {"0": "a", "3": "b"}}, "states": {"fp32": 1, "bf16": 2}}
    above = {"weights": {"by_stage": {"0": "c"}}, "states": {"bf16": 3}}
    merged = {"weights": {"reduce": 4, "by_stage": {"0": "c"}}, "states": {"bf16": 3}}
    assert overlaid(below, above, frozenset({"states"})) == merged


def test_a_table_that_lies_over_nothing_is_taken_as_it_is():
    assert overlaid({"card": 7.0}, {"weights": {"fp8": 7.5}}) == {"card": 7.0, "weights": {"fp8": 7.5}}


def test_lists_become_tuples_and_what_is_left_out_has_its_default():
    assert record(Card, {"rates": [1, 2]}) == Card(rates=(1, 2), link="none")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "plane"}, "Box.kind: 'plane' is none of plain"),
        ({"first": {"rates": ["1"]}}, "Box.first: Card.rates: '1' is no int"),
        ({"first": {"rates": [True]}}, "Box.first: Card.rates: True is no int"),
        ({"first": {"rates": 1}}, "Box.first: Card.rates: 1 is no tuple"),
        ({"first": {"rates": [], "link": "nvlnk"}}, "Box.first: Card.link: 'nvlnk' is none of none, nvlink"),
        ({"by_name": {"a": 1}}, "Box.by_name: 1 is no Card"),
    ],
)
def test_a_value_of_another_kind_than_its_field_is_refused_by_its_path(table: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        record(Box, {"kind": "plain", "by_name": {}, **table})


@pytest.mark.parametrize("table", [{}, {"rates": [], "color": "red"}])
def test_a_key_that_is_missing_or_unknown_is_named(table: dict[str, object]):
    with pytest.raises(ValueError, match="rates" if not table else "color"):
        record(Card, table)
