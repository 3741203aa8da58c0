import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.jobs.job import FP8_MIXED
from plimsoll.service.worker.proofs.refusals.every import refuse
from tests.service.worker.cases import asked, config

FP8 = {"framework": "fsdp2", "precision": FP8_MIXED}


def check(**changes):
    refuse(asked(**(FP8 | changes)), on_device=False)


def test_torchtitan_s_products_are_traced_and_other_precisions_are_none_of_this():
    check()
    check(recompute="full")
    check(recompute="selective")
    check(tensor_parallel=2, config=config(intermediate_size=128))
    check(framework="megatron", zero_stage=1, precision="bf16-mixed")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"framework": "megatron", "zero_stage": 1}, "/training/precision"),
        ({"tensor_parallel": 2}, "/layout/tensor_parallel"),  # 88 features of 176 on each rank
        ({"config": config(model_type="mixtral")}, "/training/precision"),
    ],
)
def test_other_products_in_fp8_are_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**changes)
    assert refusal.value.pointer == pointer
