"""What a client fixes never beats what is left free, by the planner's own model.

The laws hold for every degree, size and choice of the request but five, which no search tries: `recompute.every`,
`recompute.modules`, a pipeline schedule other than 1F1B, groups with a second copy of the weights that are no part of a
node, and NVMe in place of the host where the request does not say what drives give. `any` prefers stacks that were
measured: an unmeasured one may be faster only where a measured one has room on the device and is in time.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.memory.peak import FITS, UNSURE
from plimsoll.planners.questions import LayoutRequest, Recompute, TrainingQuestion
from plimsoll.planners.search.able import jobs_of, problems
from plimsoll.planners.search.search import Found, search
from plimsoll.planners.search.violations import check_fixed
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question
from tests.properties.laws import law
from tests.properties.trainings import STACKS, described, fixed, on, questions

# The simpler of near equals may take a hundredth longer (`planners/search/ranking.py`).
NEAR_EQUAL = 1.01
ROUNDING = 1.0 + 1e-9


def planned(asked: TrainingQuestion) -> Found | None:
    """What the search finds; None where no layout can exist."""
    try:
        check_fixed(asked)
        return search(asked, jobs_of(asked))
    except PlimsollError:
        return None


def chosen(found: Found) -> tuple[int, int, float]:
    """Verdict, GPUs and seconds of the plan."""
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    return int(pool.verdicts[index]), int(pool.layouts.gpus[index]), float(pool.seconds[index])


def is_offloaded(found: Found) -> bool:
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    return bool(pool.layouts.offload[index] > 0)


def sends_activations(found: Found) -> bool:
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    return bool(pool.layouts.activation_offload[index])


def assert_no_worse(free: Found | None, other: Found, *, per_gpu: bool = False) -> None:
    """Whatever fits elsewhere fits here, with as much room or faster, and with as much room is no slower."""
    assert free is not None
    assert free.fits
    (verdict, gpus, seconds), (other_verdict, other_gpus, other_seconds) = chosen(free), chosen(other)
    times = (gpus, other_gpus) if per_gpu else (1, 1)
    if verdict < other_verdict:
        # Room is not bought with offload: a tight plan on the device goes first where it is faster.
        assert is_offloaded(other) or sends_activations(other)
        assert seconds * times[0] < other_seconds * times[1]
    if verdict == other_verdict:
        assert seconds * times[0] <= other_seconds * times[1] * NEAR_EQUAL * ROUNDING
        least = min(
            float((pool.seconds * (pool.layouts.gpus if per_gpu else 1))[pool.verdicts == verdict].min())
            for pool in free.pools
            if (pool.verdicts == verdict).any()
        )
        assert least <= other_seconds * times[1] * ROUNDING


def assert_any_is_no_worse(found: Found | None, other: Found, stack: str, *, per_gpu: bool) -> None:
    """As above, unless `stack` is unmeasured, and a measured one has room on the device."""
    assert found is not None
    if stack in found.searched:
        assert_no_worse(found, other, per_gpu=per_gpu)
        return
    assert not load_profile(stack).measured
    assert load_profile(found.pools[found.chosen[0]].job.profile.name).measured
    assert chosen(found)[0] == FITS
    assert not is_offloaded(found)


@given(st.data())
@law(few=60, many=4000)
def test_no_layout_that_a_client_fixes_beats_the_free_one(data: st.DataObject):
    asked = data.draw(questions())
    other = planned(fixed(data.draw, asked, asked.framework))
    assume(other is not None and other.fits)
    assert_no_worse(planned(asked), other, per_gpu=asked.objective == "cost")


def test_no_second_copy_of_weights_beats_the_free_one():
    asked = question(
        model=described("meta-llama/Llama-3.1-70B"),
        gpus=64,
        sequence_length=4096,
        global_batch_size=256,
        framework="deepspeed",
    )
    found = {
        group: planned(replace(asked, layout=LayoutRequest(zero_stage=3, secondary_shard_group=group)))
        for group in (1, 2, 4, 8)
    }
    free = planned(asked)
    for other in found.values():
        assert other is not None
        assert other.fits
        assert_no_worse(free, other)
    seconds = {group: chosen(other)[2] for group, other in found.items() if other is not None}
    assert min(seconds[2], seconds[4], seconds[8]) < seconds[1]


def test_no_ranks_that_exchange_heads_beat_the_free_ones():
    # A batch of 96 leaves most of the GPUs to what divides a sequence, 17 stages of 128 of them each.
    asked = question(
        model=described("deepseek-ai/DeepSeek-V3"),
        gpus=2176,
        sequence_length=4096,
        global_batch_size=96,
        framework="megatron",
    )
    free = planned(asked)
    for ranks in (1, 2, 4, 8, 16, 32, 64):
        other = planned(replace(asked, layout=LayoutRequest(context_all_to_all=ranks)))
        assert other is not None
        assert_no_worse(free, other)


def test_no_layout_on_drives_beats_the_free_one_where_the_host_has_no_memory():
    asked = question(
        model=described("meta-llama/Llama-3.1-8B"),
        gpus=2,
        sequence_length=2048,
        global_batch_size=64,
        framework="deepspeed",
    )
    asked = replace(
        asked, hardware=replace(asked.hardware, gpu=catalogue().gpu("rtx-4090-24gb"), nvme_bytes_per_second=3e9)
    )
    asked = replace(asked, hardware=replace(asked.hardware, host_memory_bytes=64 * 2**30))
    other = planned(replace(asked, layout=LayoutRequest(zero_stage=3, offload_target="nvme")))
    assert other is not None
    assert other.fits
    assert_no_worse(planned(asked), other)


def test_no_number_of_recomputed_layers_beats_the_free_one_where_layouts_are_few():
    few = question(
        model=described("meta-llama/Llama-3.1-8B"),
        gpus=2,
        sequence_length=2048,
        global_batch_size=64,
        framework="megatron",
    )
    other = planned(replace(few, recompute=Recompute(mode="full", full_layers=10)))
    assert other is not None
    assert other.fits
    assert_no_worse(planned(few), other)


@given(st.data())
@law(few=6, many=300)
def test_a_range_of_gpus_is_never_worse_than_a_number_in_it(data: st.DataObject):
    asked = data.draw(questions())
    objective = data.draw(st.sampled_from(("throughput", "cost", "fewest_gpus", "deadline")))
    tokens = asked.global_batch_size * asked.sequence_length
    # Every number up to 64, whole nodes beyond.
    point = data.draw(st.one_of(st.integers(1, 64), st.integers(9, 40).map(lambda nodes: 8 * nodes)))
    low, high = data.draw(st.integers(1, point)), point + data.draw(st.integers(0, 40))
    one = replace(on(asked, point, point), tokens=tokens)
    one = replace(one, objective="cost" if objective == "cost" else "throughput")
    named = fixed(data.draw, one, one.framework) if data.draw(st.booleans()) else one
    other = planned(named)
    assume(other is not None and other.fits)
    _, gpus, seconds = chosen(other)
    some = replace(on(one, low, high), objective=objective, deadline_seconds=seconds * ROUNDING)
    found = planned(some)
    if objective in ("throughput", "cost"):
        assert_no_worse(found, other, per_gpu=objective == "cost")
        return
    # The number inside the range keeps the deadline, which is its own step, so that no more GPUs than that are needed,
    # unless its host may lack memory.
    assert found is not None
    assert found.fits
    is_surer = chosen(found)[0] > UNSURE == chosen(other)[0]
    assert is_surer or chosen(found)[1] <= gpus


@given(st.data())
@law(few=12, many=600)
def test_any_stack_is_never_worse_than_a_stack_that_is_named(data: st.DataObject):
    asked = data.draw(questions(framework="any"))
    stack = data.draw(st.sampled_from([each for each in STACKS if each != "reference"]))
    named = replace(asked, framework=stack)
    assume(not problems(named, load_profile(stack)))
    other = planned(fixed(data.draw, named, stack) if data.draw(st.booleans()) else named)
    assume(other is not None and other.fits)
    assert_any_is_no_worse(planned(asked), other, stack, per_gpu=asked.objective == "cost")


def test_a_measured_stack_with_room_by_offload_alone_does_not_keep_out_one_with_room_on_the_device():
    model = described("google/gemma-3n-E4B")
    job = replace(
        question(model=model, gpus=8, sequence_length=4096, global_batch_size=32), method="lora", precision="bf16"
    )
    asked = replace(job, hardware=replace(job.hardware, gpu=catalogue().gpu("rtx-4090-24gb")), framework="any")
    other = planned(replace(asked, framework="torchtune"))
    assert other is not None
    assert_any_is_no_worse(planned(asked), other, "torchtune", per_gpu=False)
