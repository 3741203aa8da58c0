import pytest

from plimsoll.planners.questions import Overlap, Recompute
from plimsoll.planners.search.violations import stack_violations
from plimsoll.planners.stacks.profile import load_profile, running_profile
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
        ("ddp", {"layout": {"pipeline_schedule": "gpipe"}}, ["/layout/pipeline_schedule"]),
        ("ddp", {"layout": {"shard_group": 2}}, ["/layout/shard_group"]),
        ("ddp", {"gpus": 8, "layout": {"overlap": Overlap(gradients=False)}}, ["/layout/overlap/gradients"]),
        (
            "megatron",
            {"optimizer": "muon", "layout": {"overlap": Overlap(gradients=True)}},
            ["/layout/overlap/gradients"],
        ),
        ("megatron", {"recompute": Recompute(mode="full", full_layers=4)}, []),
    ],
)
def test_a_framework_s_limits_point_at_the_field(framework, changes, pointers):
    asked = question(**changes)
    lacking = stack_violations(asked, running_profile(load_profile(framework), asked.kernels, asked.optimizer))
    assert [violation.pointer for violation in lacking] == pointers


@pytest.mark.parametrize(
    ("framework", "layout"),
    [
        ("ddp", {"pipeline_schedule": "1f1b"}),
        ("ddp", {"zero_stage": 0, "data_parallel": 8, "shard_group": 8}),
        ("ddp", {"data_parallel": 1, "context_parallel": 1, "overlap": Overlap(gradients=False, parameters=False)}),
        ("fsdp2", {"tensor_parallel": 8, "overlap": Overlap(gradients=False)}),
        ("reference", {"zero_stage": 0, "overlap": Overlap(parameters=False)}),
    ],
)
def test_what_a_layout_has_no_part_of_is_no_limit(framework, layout):
    assert not stack_violations(question(gpus=8, layout=layout), load_profile(framework))


def test_an_overlap_that_an_optimizer_rules_out_is_said_to_be_the_optimizers():
    asked = question(gpus=8, optimizer="muon", layout={"overlap": Overlap(gradients=True)})
    (lacking,) = stack_violations(asked, running_profile(load_profile("megatron"), None, "muon"))
    assert lacking.detail == (
        "megatron is not planned with an overlap of the reduction of gradients with optimizer muon; overlap.gradients "
        "must be false."
    )
