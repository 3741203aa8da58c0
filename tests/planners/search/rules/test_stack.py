import pytest

from plimsoll.planners.questions import Recompute
from plimsoll.planners.search.violations import stack_violations
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question


@pytest.mark.parametrize(
    ("framework", "changes", "pointers"),
    [
        ("ddp", {"layout": {"tensor_parallel": 2}}, ["/layout/tensor_parallel"]),
        ("megatron", {"layout": {"zero_stage": 3}}, ["/layout/zero_stage"]),
        ("fsdp2", {"layout": {"offload": "optimizer"}}, ["/layout/offload"]),
        ("accelerate", {"layout": {"sequence_parallel": True}}, ["/layout/sequence_parallel"]),
        ("megatron", {"fused_cross_entropy": True}, ["/training/fused_cross_entropy"]),
        ("accelerate", {"recompute": Recompute(mode="selective")}, ["/training/recompute"]),
        ("fsdp2", {"recompute": Recompute(mode="full", full_layers=4)}, ["/training/recompute"]),
        ("megatron", {"recompute": Recompute(mode="full", every=2)}, ["/training/recompute"]),
        ("fsdp2", {"recompute": Recompute(mode="selective", modules=("mlp",))}, ["/training/recompute"]),
        ("megatron", {"layout": {"pipeline_schedule": "gpipe"}}, ["/layout/pipeline_schedule"]),
        ("ddp", {"layout": {"pipeline_schedule": "1f1b"}}, ["/layout/pipeline_schedule"]),
        ("megatron", {"recompute": Recompute(mode="full", full_layers=4)}, []),
    ],
)
def test_a_framework_s_limits_point_at_the_field(framework, changes, pointers):
    lacking = stack_violations(question(**changes), load_profile(framework))
    assert [violation.pointer for violation in lacking] == pointers
