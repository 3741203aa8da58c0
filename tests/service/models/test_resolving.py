"""What a stranger's config costs: what was read of it, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.service.ground.canonical import canonical_json
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import MOST_USED_CONFIG_BYTES, ModelResolver, ResolvedModel
from plimsoll.service.requests.models import ConfigModel
from tests.api.questions import TINY_CONFIG


def resolved(**more: Any) -> ResolvedModel:
    return ModelResolver(catalogue(), Settings()).resolve(ConfigModel(config={**TINY_CONFIG, **more}))


def test_what_no_reader_asks_for_is_not_kept():
    model = resolved(unread="x" * 10_000)
    assert model.config == resolved().config
    assert (model.unread or "").endswith(": unread.")


def test_the_value_of_an_unread_key_makes_no_other_model_and_its_name_does():
    assert resolved(unread=1).identity == resolved(unread=[2]).identity
    # The answer names it.
    assert resolved(unread=1).identity != resolved(another=1).identity != resolved().identity


def test_two_thousand_unread_keys_cost_a_sentence():
    model = resolved(**{f"{number}{'x' * 400}": "y" * 400 for number in range(1_900)})
    assert len(canonical_json(model.identity)) < 3_000
    assert sum(map(len, model.assumptions)) < 2_000


def test_a_config_whose_read_part_is_endless_is_refused_with_what_is_too_much():
    most = MOST_USED_CONFIG_BYTES - len(canonical_json({**TINY_CONFIG, "prefix": ""}))
    assert resolved(prefix="x" * most).config["prefix"]
    with pytest.raises(InvalidModelConfig, match="65,537 bytes, and at most 65,536 are kept") as refused:
        resolved(prefix="x" * (most + 1))
    assert refused.value.pointer == "/model/config"


def test_what_planning_keeps_is_forgotten_once_enough_was_asked():
    # A description of some fifty weights, operations and tensors counts 400 bytes for each: 20 kB.
    models = ModelResolver(catalogue(), Settings(), most_asked_bytes=100_000)
    load_efficiency("reference", "a card of a client")
    models.resolve(ConfigModel(config=TINY_CONFIG))
    assert load_efficiency.cache_info().currsize > 0
    for _ in range(9):
        models.resolve(ConfigModel(config=TINY_CONFIG))
    assert load_efficiency.cache_info().currsize == 0
