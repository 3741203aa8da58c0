import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.proofs.refusals.every import refuse
from plimsoll.service.worker.proofs.refusals.kernels import liger_model_types
from tests.service.worker.cases import asked, config


def check(kernels="fused", **changes):
    refuse(asked(kernels=kernels, **changes), on_device=False)


@pytest.mark.parametrize("framework", ["accelerate", "ddp", "fsdp2"])
@pytest.mark.parametrize("model_type", liger_model_types())
def test_the_families_that_liger_knows_are_traced(framework, model_type):
    check(framework=framework, config=config(model_type=model_type))


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"config": config(model_type="starcoder2")}, "/training/kernels"),
        ({"framework": "fsdp2", "tensor_parallel": 2}, "/training/kernels"),
        ({"framework": "fsdp2", "context_parallel": 2}, "/training/kernels"),
        ({"framework": "fsdp2", "pipeline_parallel": 2}, "/training/kernels"),
        ({"framework": "fsdp2", "recompute": "selective"}, "/layout/recompute"),
        ({"config": config(model_type="granite"), "fused_cross_entropy": True}, "/layout/fused_cross_entropy"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(changes, pointer):
    with pytest.raises(NotYetAvailable) as refusal:
        check(**changes)
    assert refusal.value.pointer == pointer


def test_attention_s_own_recomputation_is_not_refused():
    check(recompute="selective")


def test_a_fused_loss_over_a_split_vocabulary_is_refused_without_the_kernels_too():
    check(None, fused_cross_entropy=True)
    with pytest.raises(NotYetAvailable, match="softmax within one rank"):
        check(None, fused_cross_entropy=True, tensor_parallel=2)


def test_without_the_kernels_their_limits_do_not_count():
    check(None, framework="fsdp2", tensor_parallel=2)
    check(None, framework="fsdp2", config=config(model_type="starcoder2"))
