"""A model's parameters as DeepSpeed's engine has them."""

import pytest

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.jobs.job import BlockWeights
from plimsoll.planners.memory.programs.zero.tensors import tensors_of


@pytest.mark.parametrize(
    ("model", "is_transposed"),
    # Published one by one; joined with their outputs first; joined as they are multiplied by.
    [("Qwen/Qwen3-30B-A3B", True), ("ibm-granite/granite-4.0-h-tiny", True), ("openai/gpt-oss-20b", False)],
)
def test_experts_that_a_product_takes_transposed_stay_where_a_view_of_them_is_saved(model, is_transposed):
    layers = describe_config(dict(catalogue().model(model).config), name=model).layers
    block = next(layer for layer in layers if any(weight.experts > 1 for weight in layer.weights))
    tensors = tensors_of(BlockWeights(block=block, trainable=block.weights, frozen=()), 1)
    matrices = sorted((tensor for tensor in tensors if tensor.module == "experts"), key=lambda tensor: -tensor.elements)
    assert [tensor.is_pinned for tensor in matrices[:2]] == [is_transposed] * 2
    assert not any(tensor.is_pinned for tensor in tensors if tensor not in matrices[:2])
