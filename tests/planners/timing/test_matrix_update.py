import pytest

from plimsoll.planners.timing.matrix_update import matrix_update_flops
from tests.planners.factories import llama
from tests.planners.training_cases import job, step


def test_muon_orthogonalizes_every_hidden_matrix_of_llama_3_8b():
    # 5 x (4 m^2 n + 2 m^3): query and output 4,096 x 4,096, key and value 1,024 x 4,096, three of 4,096 x 14,336.
    square = 6 * 4096**3
    narrow = 4 * 1024**2 * 4096 + 2 * 1024**3
    wide = 4 * 4096**2 * 14336 + 2 * 4096**3
    found = matrix_update_flops(job("reference", model=llama(), optimizer="muon"))
    assert found == pytest.approx(32 * 5 * (2 * square + 2 * narrow + 3 * wide))


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "lion", "sgd-momentum"])
def test_optimizers_that_work_by_element_multiply_nothing(optimizer):
    assert matrix_update_flops(job("reference", optimizer=optimizer)) == 0.0


def test_muon_s_products_are_in_the_optimizer_s_time():
    # 6.7e14 operations on each rank, at 989e12 a second at most.
    adamw, muon = (step("ddp", layout={"data_parallel": 8}, optimizer=one) for one in ("adamw", "muon"))
    assert muon.parts.optimizer - adamw.parts.optimizer > 0.67
