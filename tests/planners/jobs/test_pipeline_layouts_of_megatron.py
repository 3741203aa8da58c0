"""Divisions held against Megatron-Core's own: what its code builds on each rank, and how it reads a list of blocks."""

from __future__ import annotations

import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.jobs.block_lists import written
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from tests.planners.factories import llama
from tests.properties.laws import law

with warnings.catch_warnings():
    # Without Transformer Engine it says that it goes on without.
    warnings.simplefilter("ignore")
    transformer_block: ModuleType = pytest.importorskip("megatron.core.transformer.transformer_block")
    layer_layout: ModuleType = pytest.importorskip("megatron.core.transformer.pipeline_parallel_layer_layout")

MODELS = {num_layers: llama(num_hidden_layers=num_layers) for num_layers in range(1, 131)}


def built(num_layers: int, stages: int, chunks: int, **told: Any) -> tuple[int, ...] | None:
    """Return the layers that Megatron-Core builds on each virtual stage, in their order; None where it refuses."""
    config = SimpleNamespace(
        num_layers=num_layers,
        pipeline_model_parallel_size=stages,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_model_parallel_layout=None,
        num_layers_in_first_pipeline_stage=told.get("first"),
        num_layers_in_last_pipeline_stage=told.get("last"),
        account_for_embedding_in_pipeline_split=told.get("embedding", False),
        account_for_loss_in_pipeline_split=told.get("loss", False),
    )
    try:
        return tuple(
            transformer_block.get_num_layers_to_build(config, vp_stage=chunk if chunks > 1 else None, pp_rank=stage)
            for chunk in range(chunks)
            for stage in range(stages)
        )
    except AssertionError:
        return None


WAYS: dict[str, dict[str, Any]] = {
    "even": {},
    "account-for-embedding": {"embedding": True},
    "account-for-loss": {"loss": True},
    "account-for-embedding-and-loss": {"embedding": True, "loss": True},
}


def ours(way: str, num_layers: int, stages: int, chunks: int) -> tuple[int, ...] | None:
    division = read_pipeline_layout(way).division(MODELS[num_layers], stages, chunks)
    return None if division is None else division.layers


def agree(way: str, told: dict[str, Any], num_layers: int, stages: int, chunks: int) -> None:
    """Fail where a division that is planned is not the one that is built.

    Megatron-Core builds stages without layers too, which no plan has but at the ends.
    """
    theirs = built(num_layers, stages, chunks, **told)
    if theirs is None or sum(theirs) != num_layers or 0 in theirs[1:-1]:
        assert ours(way, num_layers, stages, chunks) is None
    else:
        assert ours(way, num_layers, stages, chunks) == theirs


@pytest.mark.parametrize(
    ("way", "num_layers", "stages", "chunks"),
    [
        ("even", 32, 4, 2),
        ("account-for-embedding-and-loss", 126, 16, 1),
        ("account-for-embedding-and-loss", 126, 16, 8),
        ("account-for-embedding-and-loss", 70, 12, 1),
        ("account-for-embedding-and-loss", 94, 16, 2),
        ("account-for-embedding", 63, 16, 4),
        ("account-for-loss", 63, 16, 1),
    ],
)
def test_published_divisions_are_those_that_are_built(way: str, num_layers: int, stages: int, chunks: int):
    theirs = built(num_layers, stages, chunks, **WAYS[way])
    assert theirs is not None
    assert ours(way, num_layers, stages, chunks) == theirs


@law(200, 5000)
@given(
    way=st.sampled_from(sorted(WAYS)),
    num_layers=st.integers(1, 130),
    stages=st.integers(2, 20),
    chunks=st.integers(1, 8),
)
def test_every_division_by_name_is_the_one_that_is_built(way: str, num_layers: int, stages: int, chunks: int):
    agree(way, WAYS[way], num_layers, stages, chunks)


@law(200, 5000)
@given(
    first=st.none() | st.integers(1, 12),
    last=st.none() | st.integers(1, 12),
    each=st.integers(1, 8),
    stages=st.integers(2, 12),
    chunks=st.integers(1, 4),
    more=st.integers(0, 1),
)
def test_every_division_by_its_ends_is_the_one_that_is_built(
    first: int | None, last: int | None, each: int, stages: int, chunks: int, more: int
):
    told = {name: count for name, count in (("first", first), ("last", last)) if count is not None}
    num_layers = sum(told.values()) + each * (stages - len(told)) + more
    if told:
        agree(",".join(f"{name}={count}" for name, count in told.items()), told, num_layers, stages, chunks)


@pytest.mark.parametrize(
    "text",
    [
        "Et*7|(t*8|)*14t*7L", "E|(t|)*126L", "Ettt|(tt|)*29,tL", "E,tt|t*3|,tL", "Et|(tt|t|)*2tL",
        "E(t|t)*3|L", "E*1t*0|(t|)*1L*1", "Et|(t*2|)*2tL",
    ],
)  # fmt: skip
def test_lists_are_read_as_they_are_there(text: str):
    stages = layer_layout.PipelineParallelLayerLayout.parse_str_to_list(text)
    assert read_pipeline_layout(text).layers == tuple(
        sum(block == layer_layout.LayerType.decoder for block in stage) for stage in stages
    )


@law(200, 5000)
@given(
    ends=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    between=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=6),
)
def test_what_is_written_is_read_again_by_both(ends: tuple[int, int], between: list[tuple[int, int]]):
    layers = (ends[0], *(count for count, times in between for _ in range(times)), ends[1])
    num_layers = sum(layers)
    model = llama(num_hidden_layers=max(num_layers, 1))
    if num_layers:
        plain = "E" + "|".join("t" * count for count in layers) + "L"
        division = read_pipeline_layout(plain).division(model, len(layers), 1)
        assert division is not None
        assert division.layers == layers
        text = written(division.layers)
        assert read_pipeline_layout(text).division(model, len(layers), 1) == division
        theirs = layer_layout.PipelineParallelLayerLayout(text, len(layers))
        assert tuple(stage[0].count(layer_layout.LayerType.decoder) for stage in theirs.layout) == layers
