"""What families are beyond their configs: each says it once, in the file that describes it."""

from __future__ import annotations

import pkgutil
from collections import Counter
from importlib import import_module

import pytest

from plimsoll.planners import families
from plimsoll.planners.catalogue import CatalogueModel, catalogue
from plimsoll.planners.families import describe_config, known_model_types, model_types_with, traits
from plimsoll.planners.families.family import LLAMA_PARTS, Traits

TRACED = set(model_types_with(lambda family: family.tracing is not None))
SERVED = set(model_types_with(lambda family: family.serving is not None))


def test_every_type_stands_in_one_file() -> None:
    modules = [
        import_module(f"plimsoll.planners.families.{found.name}") for found in pkgutil.iter_modules(families.__path__)
    ]
    named = Counter(model_type for module in modules for model_type in getattr(module, "FAMILIES", {}))
    assert [model_type for model_type, times in named.items() if times > 1] == []
    assert set(named) == set(known_model_types())


@pytest.mark.parametrize("model_type", ["lama", "", None])
def test_nothing_is_held_of_a_type_that_nobody_knows(model_type: str | None) -> None:
    assert traits(model_type) == Traits()
    assert (traits(model_type).tracing, traits(model_type).serving) == (None, None)


def test_no_family_is_traced_and_refused_at_once() -> None:
    assert set(model_types_with(lambda family: family.untraced is not None)) & TRACED == set()


# Of some models alone the feed-forwards are mixtures.
WITH_AND_WITHOUT_EXPERTS = {"granitemoehybrid", "nemotron_h"}


def test_all_that_is_served_in_a_proof_is_traced_too() -> None:
    assert set() == SERVED - TRACED


def test_a_reason_says_what_stands_against_it() -> None:
    assert str(traits("jamba").untraced).startswith("transformers goes through its recurrence in a loop")


@pytest.mark.parametrize(
    "model", [model for model in catalogue().models if model.config["model_type"] in TRACED], ids=lambda model: model.id
)
def test_a_traced_familys_experts_are_those_of_its_description(model: CatalogueModel) -> None:
    model_type, spec = model.config["model_type"], describe_config(model.config, name=model.id)
    has_experts = spec.experts_per_token > 0
    if model_type in WITH_AND_WITHOUT_EXPERTS:
        assert traits(model_type).has_experts
    else:
        assert traits(model_type).has_experts is has_experts
    assert traits(model_type).has_experts or not traits(model_type).tracing.groups_experts


def test_gpt_2s_decoder_and_its_parts_have_other_names_than_llamas() -> None:
    assert traits("llama").parts == LLAMA_PARTS
    assert (traits("gpt2").parts.decoder, traits("gpt2").parts.layers) == ("transformer", "h")
