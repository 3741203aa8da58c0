"""Divisions held against torchtitan's own: the modules that it names for each stage, and what each rank then builds.

Its functions are run out of their file: the module imports Triton's kernels.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from plimsoll.planners.layouts.stages import Pipeline
from tests.planners.factories import llama
from tests.properties.laws import law

SPEC = importlib.util.find_spec("torchtitan")
pytestmark = pytest.mark.skipif(SPEC is None, reason="torchtitan is installed by `make`, without what it depends on")
MODELS = {num_layers: llama(num_hidden_layers=num_layers) for num_layers in range(1, 131)}
Functions = dict[str, Callable[..., Any]]


@pytest.fixture(scope="module")
def theirs() -> Functions:
    """Return torchtitan's functions that divide a model; stages are told, not made."""
    torch = pytest.importorskip("torch")
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    assert SPEC is not None
    [folder] = SPEC.submodule_search_locations or ()
    tree = ast.parse((Path(folder) / "distributed/pipeline_parallel.py").read_text(encoding="utf-8"))
    wanted = ("generate_llm_fqn_per_model_part", "pipeline_module_split")
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted]
    found: Functions = {
        **vars(schedules),
        "torch": torch,
        "nn": torch.nn,
        "copy": copy,
        "DeviceMesh": object,
        "logger": SimpleNamespace(info=lambda _: None),
        "PipelineStage": lambda _model, number, _stages, _device, **_: number,
    }
    exec(compile(tree, folder, "exec"), found)  # noqa: S102 - torchtitan's own
    return {name: found[name] for name in wanted}


def named_layers(parts: list[list[str]]) -> tuple[int, ...]:
    return tuple(sum(module.startswith("layers.") for module in part) for part in parts)


def agree(theirs: Functions, num_layers: int, stages: int, chunks: int, ends: tuple[int, int]) -> None:
    """Fail where a division that is planned is not the one that torchtitan makes of its two options."""
    way = read_pipeline_layout(f"first-less={ends[0]},last-less={ends[1]}")
    division = way.division(MODELS[num_layers], stages, chunks)
    try:
        parts = theirs["generate_llm_fqn_per_model_part"](stages * chunks, num_layers, *ends)
    except ValueError:
        assert division is None
        return
    assert division is not None
    assert division.layers == named_layers(parts)
    listed = read_pipeline_layout(json.dumps(parts)[:4096]) if len(json.dumps(parts)) < 4096 else way
    assert listed.division(MODELS[num_layers], stages, chunks) == division


@pytest.mark.parametrize(
    ("num_layers", "stages", "chunks"), [(61, 16, 1), (126, 7, 1), (94, 5, 2), (32, 4, 1), (126, 16, 2), (3, 2, 2)]
)
@pytest.mark.parametrize("ends", [(1, 1), (0, 0), (1, 2), (0, 3)])
def test_odd_numbers_of_layers_are_divided_as_torchtitan_does(
    num_layers: int, stages: int, chunks: int, ends: tuple[int, int], theirs: Functions
):
    agree(theirs, num_layers, stages, chunks, ends)


def test_every_division_with_fewer_at_the_ends_is_torchtitan_s(theirs: Functions):
    @law(200, 5000)
    @given(
        num_layers=st.integers(1, 130),
        stages=st.integers(2, 20),
        chunks=st.integers(1, 4),
        ends=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    )
    def every(num_layers: int, stages: int, chunks: int, ends: tuple[int, int]) -> None:
        agree(theirs, num_layers, stages, chunks, ends)

    every()


@pytest.mark.parametrize(
    ("way", "stages", "chunks"),
    [("first-less=1,last-less=1", 3, 1), ("first-less=1,last-less=1", 3, 2), ("E|tt|tL", 3, 1), ("Et|(t|)*2L", 2, 2)],
)
def test_each_rank_builds_the_layers_that_are_planned(way: str, stages: int, chunks: int, theirs: Functions):
    # Seven layers, or the three of the lists.
    nn = pytest.importorskip("torch").nn
    layout = read_pipeline_layout(way)
    model = MODELS[sum(layout.layers) or 7]
    pipeline = Pipeline(ByIdentity(model), stages, chunks, layout)
    ends = iter(range(model.num_layers))
    parts = [[f"layers.{next(ends)}" for _ in range(count)] for count in pipeline.division.layers]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    whole = nn.Module()
    whole.tok_embeddings, whole.norm, whole.output = nn.Identity(), nn.Identity(), nn.Identity()
    whole.layers = nn.ModuleDict({str(layer): nn.Identity() for layer in range(model.num_layers)})
    schedule = "Interleaved1F1B" if chunks > 1 else "1F1B"
    for rank in range(stages):
        mesh = SimpleNamespace(get_local_rank=lambda rank=rank: rank, size=lambda: stages, get_group=lambda _: None)
        numbers, built = theirs["pipeline_module_split"](whole, mesh, schedule, None, parts)
        assert numbers == list(range(rank, stages * chunks, stages))
        assert [[int(name) for name in each.layers] for each in built] == [list(chunk) for chunk in pipeline.held(rank)]
        assert (built[0].tok_embeddings is not None, built[-1].output is not None) == (
            rank == 0,
            pipeline.has_head(rank),
        )
