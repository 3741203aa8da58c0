import sys

import pytest
from torch import nn

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.stacks.fsdp2.eight_bit import cast_products


def test_matrices_of_whole_multiples_of_sixteen_have_their_products_cast():
    model = nn.ModuleDict(
        {"cast": nn.Linear(16, 32, bias=False), "odd": nn.Linear(16, 30, bias=False), "norm": nn.LayerNorm(16)}
    )
    cast_products(model)
    assert [type(module).__name__ for module in model.values()] == ["Float8Linear", "Linear", "LayerNorm"]


def test_a_worker_without_torchao_refuses_and_names_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(NotYetAvailable, match=r"plimsoll\[fp8\]"):
        cast_products(nn.Linear(16, 16))
