import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.training.kernels.eight_bit_jobs import FP8_MIXED, refuse_eight_bit_products
from plimsoll.service.worker.training.stack import find_stack
from tests.service.worker.cases import config, job

FP8 = {"framework": "fsdp2", "precision": FP8_MIXED}


def check(**changes):
    wanted = job(**(FP8 | changes))
    refuse_eight_bit_products(wanted, find_stack(wanted.framework))


def test_torchtitan_s_products_are_traced_and_other_precisions_are_none_of_this():
    check()
    check(recompute="full")
    check(framework="megatron", precision="bf16-mixed")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"framework": "megatron"}, "/training/precision"),
        ({"tensor_parallel": 2}, "/layout/tensor_parallel"),
        ({"config": config(model_type="mixtral")}, "/training/precision"),
        ({"recompute": "selective"}, "/layout/recompute"),
    ],
)
def test_other_products_in_fp8_are_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**changes)
    assert refusal.value.pointer == pointer
