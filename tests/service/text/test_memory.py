from __future__ import annotations

from plimsoll.planners.ground.units import GIB
from plimsoll.service.text.memory import memory_text, spikes_text

SPIKE = {"name": "checkpoint", "device_bytes": 3 * GIB, "host_bytes": GIB // 2, "reason": "every rank writes its part"}


def test_each_moment_outside_the_steps_has_its_sizes_and_its_reason():
    lines = spikes_text({"spikes": [SPIKE]}).splitlines()
    assert lines[0] == "Moments outside the steps"
    assert lines[2].split() == ["checkpoint", "3.00", "GiB", "0.50", "GiB"]
    assert lines[3] == "  - checkpoint: every rank writes its part"


def test_a_plan_stored_before_there_were_such_moments_has_no_section():
    assert spikes_text({}) == ""


def test_parts_have_their_share_of_the_sum_and_empty_ones_are_left_out():
    # 1 GiB of 4 GiB is a quarter.
    memory = {
        "peak_bytes": 4 * GIB,
        "limit_bytes": 8 * GIB,
        "items": {"weights": GIB, "kv_cache": 3 * GIB, "runtime": 0},
    }
    text = memory_text(memory)
    assert "weights   1.00 GiB  25.0 %" in text
    assert "kv cache  3.00 GiB  75.0 %" in text
    assert "runtime" not in text


def test_a_node_s_host_memory_is_told_beside_what_there_is():
    plan = {"peak_bytes": GIB, "limit_bytes": 8 * GIB, "items": {"weights": GIB}, "node_host_bytes": 300 * GIB}
    assumed = memory_text({**plan, "node_host_sure_bytes": 234 * GIB, "node_host_limit_bytes": 2048 * GIB})
    assert "host memory of a node  300.00 GiB of 234.00 GiB to 2048.00 GiB" in assumed
    given = memory_text({**plan, "node_host_sure_bytes": 512 * GIB, "node_host_limit_bytes": 512 * GIB})
    assert "host memory of a node  300.00 GiB of 512.00 GiB" in given
    assert "host memory of a node" not in memory_text({**plan, "node_host_bytes": 0})


def test_the_peak_is_told_as_each_counter_shows_it():
    sizes = {"size_bytes": 3 * 2**30, "low_bytes": 2 * 2**30, "high_bytes": 4 * 2**30}
    plan = {"peak_bytes": 2**30, "limit_bytes": 2**30, "items": {"runtime": 2**30}}
    told = memory_text(plan | {"readings": [{"name": "reserved_expandable_segments", **sizes}]})
    (line,) = (line for line in told.splitlines() if "reserved expandable segments" in line)
    assert line.endswith("3.00 GiB  2.00 GiB to 4.00 GiB")
    assert "reads as" not in memory_text(plan)
