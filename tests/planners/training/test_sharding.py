import math

import pytest

from plimsoll.planners.derived import Derived
from plimsoll.planners.training.sharding import sharding_of
from tests.planners.factories import llama
from tests.planners.sharding.models import DEEPSEEK, GPT_OSS, spec
from tests.planners.training_cases import job, one_layout


def sharding(framework: str = "megatron", **degrees: int):
    return sharding_of(one_layout(**degrees), 0, job(framework), Derived())


def test_the_mesh_has_tensor_innermost():
    mesh = sharding(data_parallel=2, tensor_parallel=4, pipeline_parallel=8).mesh
    assert mesh.order == ("pipeline", "data", "context", "tensor")
    assert mesh.shape == (8, 2, 1, 4)


def test_stages_name_their_layers_embedding_and_head():
    stages = sharding(pipeline_parallel=2).stages
    assert [(stage.layers, stage.embedding, stage.head) for stage in stages] == [
        ((0, 15), True, False),
        ((16, 31), False, True),
    ]


def test_experts_count_through_a_stage_in_their_own_way():
    mesh = sharding_of(
        one_layout(data_parallel=4, expert_parallel=4), 0, job("megatron", model=spec(GPT_OSS)), Derived()
    ).mesh
    assert (mesh.expert_parallel, mesh.expert_tensor_parallel) == (4, 1)


def test_each_stage_has_its_own_layers_and_the_ends_of_the_model():
    weights = {weight.name: weight for weight in sharding(pipeline_parallel=4).weights}
    assert weights["model.layers.*.self_attn.q_proj.weight"].stage_copies == (8, 8, 8, 8)
    assert weights["model.embed_tokens.weight"].stage_copies == (1, 0, 0, 0)
    assert weights["lm_head.weight"].stage_copies == (0, 0, 0, 1)


def test_a_tied_matrix_stands_on_both_ends_of_a_pipeline():
    tied = job("megatron", model=llama(tie_word_embeddings=True))
    table = sharding_of(one_layout(pipeline_parallel=2), 0, tied, Derived())
    (embedding,) = [weight for weight in table.weights if weight.split == "vocabulary"]
    assert (embedding.copies, embedding.stage_copies) == (1, (1, 1))


def test_every_parameter_is_in_the_table_once():
    weights = sharding().weights
    counted = 0
    for weight in weights:
        elements = weight.copies
        for length in weight.shape:
            elements *= length
        counted += elements
    assert counted == llama().parameters


@pytest.mark.parametrize(
    ("framework", "rows"),
    # Megatron pads 128,256 rows to a multiple of 128 x 4, 128,512; DTensor cuts them as they are.
    [("megatron", 32128), ("fsdp2", 32064), ("reference", 32064)],
)
def test_the_vocabulary_is_cut_as_the_framework_does(framework: str, rows: int):
    weights = sharding(framework, tensor_parallel=4).weights
    head = next(weight for weight in weights if weight.name == "lm_head.weight")
    assert (head.split, head.axis, head.local_shape) == ("vocabulary", 0, (rows, 4096))


def test_fused_experts_are_one_tensor_a_layer():
    table = sharding_of(one_layout(tensor_parallel=2), 0, job("megatron", model=spec(GPT_OSS)), Derived())
    counted = sum(weight.copies * math.prod(weight.shape) for weight in table.weights)
    assert counted == spec(GPT_OSS).parameters
    first = next(weight for weight in table.weights if weight.name.endswith("experts.gate_up_proj"))
    assert (first.copies, first.shape, first.local_shape) == (2, (4, 16, 48), (4, 16, 24))


def test_an_interleaved_stage_holds_a_run_of_layers_of_each_chunk():
    # 32 layers on 4 stages in 2 chunks: the first sixteen go through all stages, four on each, then the last sixteen.
    stages = sharding(pipeline_parallel=4, virtual_pipeline=2).stages
    assert [stage.chunks for stage in stages] == [
        ((0, 3), (16, 19)),
        ((4, 7), (20, 23)),
        ((8, 11), (24, 27)),
        ((12, 15), (28, 31)),
    ]


def test_an_interleaved_stage_has_the_weights_of_its_chunks_layers():
    # 8 layers, the first three dense, on 2 stages in 2 chunks: 0, 1, 4, 5 and 2, 3, 6, 7 have 2 and 1 of them.
    model = spec(DEEPSEEK, num_hidden_layers=8, first_k_dense_replace=3)
    table = sharding_of(one_layout(pipeline_parallel=2, virtual_pipeline=2), 0, job("megatron", model=model), Derived())
    copies = {weight.name: weight.stage_copies for weight in table.weights}
    assert copies["model.layers.*.mlp.gate_proj.weight"] == (2, 1)
    assert copies["model.layers.*.mlp.gate.weight"] == (2, 3)


def test_a_plain_stage_holds_one_run_of_layers():
    stages = sharding(pipeline_parallel=2).stages
    assert [stage.chunks for stage in stages] == [(stage.layers,) for stage in stages]
