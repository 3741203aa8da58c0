"""Divisions held against DeepSpeed's PipelineModule, of the row of blocks that Megatron-DeepSpeed gives it."""

from __future__ import annotations

import itertools
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from tests.planners.factories import llama
from tests.properties.laws import law

torch: ModuleType = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pipe: ModuleType = pytest.importorskip("deepspeed.runtime.pipe.module")

LAYERS = range(1, 81)
MODELS = {
    (num_layers, is_tied): llama(num_hidden_layers=num_layers, tie_word_embeddings=is_tied)
    for num_layers in LAYERS
    for is_tied in (False, True)
}


def module_type(name: str) -> Any:
    """Return a module of so many parameters by the name of one of Megatron-DeepSpeed's."""

    def make(self: Any, elements: int) -> None:
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.empty(elements, device="meta"))

    return type(name, (torch.nn.Module,), {"__init__": make})


EMBEDDING, LAYER, NORM, HEAD = map(
    module_type, ("EmbeddingPipe", "ParallelTransformerLayerPipe", "RMSNorm", "LMHeadPipe")
)


def row(model: ModelSpec) -> list[Any]:
    """Return what GPTModelPipe gives its base: deepspeedai/Megatron-DeepSpeed 4efb479, megatron/model/gpt_model.py."""
    [layer] = model.layers
    norm = 4096
    embedding = (EMBEDDING, model.embedding.elements)
    if model.tied_head:
        first, last = (pipe.TiedLayerSpec("embed", *embedding) for _ in range(2))
    else:
        first, last = pipe.LayerSpec(*embedding), pipe.LayerSpec(HEAD, model.head.elements - norm)
    layers = (pipe.LayerSpec(LAYER, layer.elements) for _ in range(model.num_layers))
    return [lambda x: x, first, *layers, pipe.LayerSpec(NORM, norm), last, lambda x: x]


def theirs(model: ModelSpec, stages: int, method: str) -> tuple[tuple[int, ...], int]:
    """Return the layers of each stage, and the stage of the head."""
    specs = row(model)
    module = SimpleNamespace(
        num_stages=stages,
        global_rank=1,
        _topo=SimpleNamespace(get_coord=lambda _: SimpleNamespace(pipe=0)),
        _layer_specs=specs,
        _set_bounds=lambda **_: None,
    )
    for name in ("_count_layer_params", "_find_layer_type"):
        setattr(module, name, getattr(pipe.PipelineModule, name).__get__(module))
    pipe.PipelineModule._partition_layers(module, method)
    parts = [[specs[block] for block in range(*span)] for span in itertools.pairwise(module.parts)]
    of_type = [[getattr(block, "typename", None) for block in part] for part in parts]
    of_head = next(stage for stage, part in enumerate(parts) if specs[-2] in part)
    return tuple(part.count(LAYER) for part in of_type), of_head


METHODS = ("type:transformer", "type:transformer|embedding", "uniform", "parameters")


def agree(method: str, num_layers: int, is_tied: bool, stages: int) -> None:
    """Fail where a division that is planned is not DeepSpeed's.

    It leaves stages without a layer too, which no plan has but at the ends.
    """
    model = MODELS[num_layers, is_tied]
    layers, head = theirs(model, stages, method)
    found = read_pipeline_layout(method).division(model, stages, 1)
    if found is None:
        assert 0 in layers
    else:
        assert (found.layers, found.head) == (layers, head)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("num_layers", "stages"), [(61, 16), (70, 12), (80, 7), (32, 4), (33, 8), (2, 2), (3, 4)])
@pytest.mark.parametrize("is_tied", [False, True])
def test_odd_numbers_of_layers_are_cut_as_deepspeed_cuts_them(method: str, num_layers: int, stages: int, is_tied: bool):
    agree(method, num_layers, is_tied, stages)


@law(40, 1000)
@given(
    method=st.sampled_from(METHODS),
    num_layers=st.integers(LAYERS.start, LAYERS.stop - 1),
    is_tied=st.booleans(),
    stages=st.integers(2, 20),
)
def test_every_division_by_a_method_is_deepspeed_s(method: str, num_layers: int, is_tied: bool, stages: int):
    agree(method, num_layers, is_tied, stages)


def test_parameters_weigh_embedding_and_head_as_layers():
    # A layer has 218M parameters, embedding and head 525M each: 2.4 layers.
    division = read_pipeline_layout("parameters").division(llama(), 4, 1)
    assert division is not None
    assert division.layers == (7, 9, 9, 7)
