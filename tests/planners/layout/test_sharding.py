from planners.layout.sharding import sharding_of
from tests.planners.factories import llama
from tests.planners.training_cases import job, one_layout


def sharding(**degrees: int):
    return sharding_of(one_layout(**degrees), 0, job("megatron"))


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


def test_every_parameter_is_in_the_table_once():
    weights = sharding().weights
    counted = 0
    for weight in weights:
        elements = weight.copies
        for length in weight.shape:
            elements *= length
        counted += elements
    assert counted == llama().parameters


def test_vocabulary_is_cut_in_ceilings():
    head = next(weight for weight in sharding(tensor_parallel=4).weights if weight.name == "lm_head.weight")
    assert (head.split, head.axis, head.local_shape) == ("vocabulary", 0, (32064, 4096))
