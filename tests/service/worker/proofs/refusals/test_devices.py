import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.every import refuse
from tests.service.worker.cases import asked


def test_a_plain_job_runs():
    refuse(asked(), on_device=True)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"method": "qlora"}, "/training/method"),
        ({"optimizer": "lion"}, "/training/optimizer"),
        ({"framework": "fsdp2", "precision": "fp8-mixed"}, "/training/precision"),
        ({"offload": "optimizer+parameters"}, "/layout/offload"),
        ({"activation_offload": True}, "/layout/activation_offload"),
    ],
)
def test_what_is_traced_by_shape_or_by_another_s_code_is_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        refuse(asked(**changes), on_device=True)
    assert refusal.value.pointer == pointer
