import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.questions import Recompute
from plimsoll.planners.search.rules.request import check_values
from tests.planners.factories import question


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"layout": {"offload": "disk"}}, "/layout/offload"),
        ({"layout": {"offload_target": "tape"}}, "/layout/offload_target"),
        ({"layout": {"offload": "none", "offload_target": "nvme"}}, "/layout/offload_target"),
        ({"recompute": Recompute(mode="some")}, "/training/recompute"),
        ({"recompute": Recompute(mode="full", full_layers=0)}, "/training/recompute/full_layers"),
        ({"layout": {"pipeline_schedule": "zero-bubble"}}, "/layout/pipeline_schedule"),
        ({"recompute": Recompute(mode="full", every=0)}, "/training/recompute/every"),
        ({"micro_batch_size": 0}, "/training/micro_batch_size"),
    ],
)
def test_values_out_of_range_are_refused(changes, pointer):
    with pytest.raises(InvalidQuestion) as caught:
        check_values(question(**changes))
    assert caught.value.pointer == pointer
