"""The layers of stages as runs, and what each takes."""

import dataclasses

import numpy as np
import pytest

from plimsoll.planners.layouts.candidates import FULL, candidates_from_rows
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.programs.stage_layers import stage_layers
from plimsoll.planners.memory.steps.on_rank import LayerOnRank
from plimsoll.planners.questions import Lora
from tests.planners.factories import small_llama
from tests.planners.sharding.models import DEEPSEEK, spec
from tests.planners.training_cases import asked, job

MIXED = spec(DEEPSEEK, num_hidden_layers=6, first_k_dense_replace=2)
FULL_SHARDING = {"data_parallel": 4, "shard_group": 4, "zero_stage": 3}


def layers(model, *, expert_units=False, framework="fsdp2", **layout):
    question = asked(framework, model=model, sequence_length=32, layout={**FULL_SHARDING, **layout})
    return stage_layers(question, gradient_bytes=np.full(1, 2.0), expert_units=np.array([expert_units]))


def test_dense_layers_and_the_mixtures_above_are_a_run_each():
    assert [run.count.item() for run in layers(MIXED).runs] == [2, 4]


def test_a_stage_has_its_own_layers_alone():
    # Six layers on three stages, of which torchtitan gives the first and the last one fewer than the others have.
    found = layers(MIXED, data_parallel=1, shard_group=1, pipeline_parallel=3)
    assert [run.count[:, 0].tolist() for run in found.runs] == [[2, 0, 0], [0, 3, 1]]


def test_recomputed_layers_lie_below_the_others():
    dense, other = layers(small_llama(), recompute=FULL, full_layers=3).runs
    assert (dense.count.item(), other.count.item()) == (3, 1)
    below, above = (run.layers[1][0].bytes for run in (dense, other))
    assert (below.is_recomputed, above.is_recomputed) == (True, False)
    # Of a recomputed layer its input is kept: 32 tokens of 64 features in 16 bits.
    assert below.kept == 2 * 64 * 32 < above.kept


def test_experts_are_a_unit_of_mixtures_alone():
    dense, mixture = (run.layers[1][0].bytes for run in layers(MIXED, expert_units=True, expert_parallel=2).runs)
    assert dense.experts is None
    assert dense.kept_before_experts == 0
    assert mixture.has_expert_unit is True
    assert mixture.experts.weights > 0


def test_the_moments_of_a_dense_layer_are_the_same_beside_mixtures_with_units_of_experts():
    alone, beside = (
        layers(MIXED, expert_units=units, expert_parallel=2).runs[0].layers[1][0].bytes.moments
        for units in (False, True)
    )
    assert [tuple(moment) for moment in alone] == [tuple(moment) for moment in beside]


def test_a_unit_and_its_experts_are_all_of_the_layer():
    whole, parts = (
        layers(MIXED, expert_units=units, expert_parallel=2).runs[1].layers[1][0].bytes for units in (False, True)
    )
    for name in ("weights", "buffer", "gradients", "reduced", "shard"):
        assert getattr(parts.unit, name) + getattr(parts.experts, name) == getattr(whole.unit, name)


@pytest.mark.parametrize("recompute", [0, 1, 2])
@pytest.mark.parametrize("model", [small_llama(), MIXED], ids=["dense", "mixture"])
def test_quantities_are_whole_bytes_and_never_less_than_nothing(model, recompute):
    found = layers(model, expert_units=True, expert_parallel=2, recompute=recompute)
    for run in found.runs:
        for amount in _amounts(run.layers[1][0].bytes):
            assert np.all(amount >= 0)
            assert np.all(amount == np.floor(amount))


def _amounts(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _amounts(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _amounts(getattr(value, field.name))


def test_a_list_of_layouts_has_units_of_experts_in_some_of_them():
    rows = candidates_from_rows([{**FULL_SHARDING, "expert_parallel": degree} for degree in (1, 2)])
    question = question_of(rows, job("fsdp2", model=MIXED, sequence_length=32, global_batch_size=4))
    found = stage_layers(question, gradient_bytes=np.full(1, 2.0), expert_units=np.array([False, True]))
    mixture: LayerOnRank = found.runs[1].layers[1][0].bytes
    assert mixture.has_expert_unit.tolist() == [0, 1]
    assert mixture.experts.weights[0] == 0


def test_beside_adapters_the_outputs_gradients_of_frozen_experts_meet_too():
    # Traced: GLM 4.5 Air, LoRA of attention, recomputed, 12,726 tokens: 8,046 MiB of the layer as its outputs' gradient
    # is scattered, 4,170 at its last matrix.
    found = asked(
        "accelerate", model=MIXED, sequence_length=32, method="lora", lora=Lora(target_modules=("o_proj",)),
        layout={**FULL_SHARDING, "recompute": FULL},
    )  # fmt: skip
    of_layers = stage_layers(found, gradient_bytes=np.full(1, 2.0), expert_units=np.array([False]))
    moments = {moment.name: moment.activations.item() for moment in of_layers.runs[1].layers[1][0].bytes.moments}
    assert moments["outputs' gradient"] == max(moments.values())


def test_experts_weights_come_back_from_the_host_as_their_gradients_are_made():
    # Traced: Qwen 1.5 MoE in bf16, DDP: 660 MiB of gate and up beside their gradient, 330 of down beside its own.
    def moments(**layout):
        question = asked("ddp", model=MIXED, sequence_length=32, precision="bf16", layout=layout)
        found = stage_layers(question, gradient_bytes=np.zeros(1), expert_units=np.array([False]))
        return {each.name: each for each in found.runs[1].layers[1][0].bytes.moments}

    on_device, on_host = moments(), moments(activation_offload=True)
    for name in ("last matrix", "experts' first product"):
        assert on_host[name].activations - on_device[name].activations == on_host[name].gradients > 0
