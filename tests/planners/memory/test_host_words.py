"""What is said of a node's host memory, with its numbers and the field that settles it."""

from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.units import GIB
from plimsoll.planners.memory.host_words import host_notes, host_shortage, is_host_sure, lacking_host_bytes
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import hardware, question

H100 = catalogue().gpu("h100-sxm-80gb")
FIELD = "hardware.host_memory_bytes"


@pytest.fixture(scope="module")
def plan():
    asked = question(framework="accelerate", layout={"offload": "optimizer+parameters"}, gpus=1)
    return plan_without_advice(asked).plan


def memory(plan, needed, sure, most):
    sizes = {"node_host_bytes": needed, "node_host_sure_bytes": sure, "node_host_limit_bytes": most}
    return replace(plan.memory, **{name: size * GIB for name, size in sizes.items()})


def test_a_node_that_is_sure_to_have_it_is_not_spoken_of(plan):
    enough = memory(plan, 234, 234, 2048)
    assert is_host_sure(enough)
    assert (host_shortage(enough, is_given=False), lacking_host_bytes(enough)) == ("", 0)


def test_one_that_may_lack_it_has_both_bounds_and_the_field(plan):
    unsure = memory(plan, 1135, 234, 2048)
    assert lacking_host_bytes(unsure) == 0
    said = host_shortage(unsure, is_given=False)
    assert all(words in said for words in ("1,135.0 GiB", "234.0 GiB", "2,048.0 GiB", FIELD))


def test_one_that_lacks_it_has_what_is_there(plan):
    lacking = memory(plan, 4000, 234, 2048)
    assert lacking_host_bytes(lacking) == 1952 * GIB
    assert FIELD in host_shortage(lacking, is_given=False)
    given = host_shortage(memory(plan, 4000, 512, 512), is_given=True)
    assert all(words in given for words in ("needs 4,000.0 GiB", "has 512.0 GiB"))
    assert FIELD not in given


def test_what_is_assumed_names_the_clusters_it_comes_from(plan):
    (said,) = host_notes(plan, hardware(1, gpu=H100))
    assert all(words in said for words in ("234.0 GiB", "a3-highgpu-8g", "2,048.0 GiB", FIELD))
    (elsewhere,) = host_notes(plan, hardware(1))
    assert "The catalogue has no node with this GPU" in elsewhere
    (given,) = host_notes(plan, hardware(1, host_memory_bytes=512 * GIB))
    assert all(words in given for words in ("512.0 GiB", "as given"))


def test_loading_beyond_the_node_is_told_and_left_out_of_the_verdict():
    # DeepSpeed reads 2 bytes of each of 8.03 billion parameters on each of 8 ranks: 119.7 GiB of 100.
    machine = hardware(8, host_memory_bytes=100 * GIB)
    asked = replace(question(framework="deepspeed", layout={"offload": "none"}), hardware=machine)
    answer = plan_without_advice(asked)
    assert answer.verdict == "fits"
    assert any("119.7 GiB of host memory per node" in said for said in answer.assumptions)
