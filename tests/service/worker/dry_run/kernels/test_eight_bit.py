from torch import nn

from service.worker.dry_run.kernels.eight_bit import cast_products


def test_matrices_of_whole_multiples_of_sixteen_have_their_products_cast():
    model = nn.ModuleDict(
        {"cast": nn.Linear(16, 32, bias=False), "odd": nn.Linear(16, 30, bias=False), "norm": nn.LayerNorm(16)}
    )
    cast_products(model)
    assert [type(module).__name__ for module in model.values()] == ["Float8Linear", "Linear", "LayerNorm"]
