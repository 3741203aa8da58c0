"""What a client fixes never beats what is left free, by the planner's own model.

The laws hold for every degree, size and choice of the request but four, which no search tries: `recompute.every`,
`recompute.modules`, a pipeline schedule other than 1F1B, and NVMe in place of the host.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from planners.catalogue.catalogue import catalogue
from planners.errors import PlimsollError
from planners.hardware import GpuCount, Hardware
from planners.huggingface import describe_config
from planners.layout.bases import divisors
from planners.layout.fixed import check_fixed, check_framework
from planners.layout.search import Found, search
from planners.memory.job import training_job, why_unsupported
from planners.memory.peak import FITS, UNSURE
from planners.memory.profile import load_profile, profiles_to_search
from planners.questions import LayoutRequest, Recompute, TrainingQuestion
from planners.training import check_question
from tests.properties.laws import law

GPUS = ("h100-sxm-80gb", "a100-sxm-40gb", "rtx-4090-24gb", "h200-sxm-141gb")
COUNTS = (1, 2, 4, 8, 16, 24, 48, 96, 128, 1000, 1024, 1152)
HOST_BYTES = (64 * 2**30, 512 * 2**30, 2**41)
LENGTHS = (512, 1024, 4096, 8192, 12288, 32768, 131072)
STACKS = ("fsdp2", "megatron", "nanotron", "accelerate", "litgpt", "deepspeed", "torchtune", "ddp", "reference")
# The simpler of near equals may take a hundredth longer (`planners/layout/ranking.py`).
NEAR_EQUAL = 1.01
ROUNDING = 1.0 + 1e-9


@st.composite
def questions(draw: st.DrawFn, framework: str | None = None) -> TrainingQuestion:
    """A job of any model of the catalogue that a stack can run, everything free."""
    listed = draw(st.sampled_from(catalogue().models))
    gpus = draw(st.sampled_from(COUNTS))
    batch = draw(st.sampled_from((gpus, 3 * gpus, 5 * gpus, 7 * gpus, 15 * gpus, 64, 480, 2048)))
    card = catalogue().gpu(draw(st.sampled_from(GPUS)))
    stack = framework or draw(st.sampled_from(STACKS))
    try:
        asked = TrainingQuestion(
            model=describe_config(listed.config, name=listed.id),
            hardware=Hardware(
                gpu=card,
                gpus=GpuCount(minimum=gpus, maximum=gpus),
                gpus_per_node=8,
                host_memory_bytes=draw(st.sampled_from((None, None, *HOST_BYTES))),
            ),
            sequence_length=draw(st.sampled_from(LENGTHS)),
            global_batch_size=batch,
            method=draw(st.sampled_from(("full", "full", "lora", "qlora"))),
            objective=draw(st.sampled_from(("throughput", "throughput", "cost"))),
            framework=stack,
        )
        check_question(asked)
    except PlimsollError:
        assume(False)
    assume(stack == "any" or why_unsupported(asked, load_profile(stack)) is None)
    return asked


def fixed(draw: st.DrawFn, asked: TrainingQuestion) -> TrainingQuestion:
    """The same job with a layout that its stack may run; some degrees may be left free."""
    can, model, gpus = load_profile(asked.framework).can, asked.model, asked.hardware.gpus.minimum

    def degree(able: bool, of: int) -> int:
        return draw(st.sampled_from(divisors(of))) if able else 1

    tensor = degree(can.tensor_parallel, gpus)
    pipeline = degree(can.pipeline_parallel, gpus // tensor)
    context = degree(can.context_parallel, gpus // tensor // pipeline)
    data = gpus // tensor // pipeline // context
    assume(asked.global_batch_size % data == 0 and pipeline <= model.num_layers)
    stage = draw(st.sampled_from(can.zero_stages))
    layers = max(model.num_layers // pipeline, 1)
    degrees = {
        "data_parallel": data,
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "virtual_pipeline": degree(can.virtual_pipeline and pipeline > 1, layers),
        "expert_parallel": draw(st.sampled_from((1, 2, 4, 8, 16, 64))) if model.experts_per_token else 1,
        "zero_stage": stage,
        "shard_group": degree(True, data) if can.shard_group and stage else None,
        "sequence_parallel": draw(st.sampled_from(can.sequence_parallel)) if tensor > 1 else None,
        "offload": draw(st.sampled_from(can.offload)),
    }
    left_free = draw(st.sets(st.sampled_from(sorted(degrees)), max_size=4))
    modes = [mode for mode in can.recompute if mode not in ("every", "modules")]
    mode = draw(st.sampled_from(modes))
    partly = Recompute(mode="full", full_layers=draw(st.integers(1, layers)))
    return replace(
        asked,
        layout=LayoutRequest(**{name: value for name, value in degrees.items() if name not in left_free}),  # type: ignore[arg-type]
        micro_batch_size=draw(st.sampled_from(divisors(asked.global_batch_size // data))),
        recompute=partly if mode == "full_layers" else Recompute(mode=mode),
        fused_cross_entropy=can.fused_cross_entropy and draw(st.booleans()),
        activation_offload=can.activation_offload != "none" and draw(st.booleans()),
    )


def planned(asked: TrainingQuestion) -> Found | None:
    """What the search finds; None where no layout can exist."""
    try:
        check_fixed(asked)
        able = [p for p in profiles_to_search(asked.framework) if why_unsupported(asked, p) is None]
        jobs = [training_job(asked, profile) for profile in able if check_framework(asked, profile) is None]
        return search(asked, jobs) if jobs else None
    except PlimsollError:
        return None


def chosen(found: Found) -> tuple[int, int, float]:
    """Verdict, GPUs and seconds of the plan."""
    pool, index = found.pools[found.chosen[0]], found.chosen[1]
    return int(pool.verdicts[index]), int(pool.layouts.gpus[index]), float(pool.seconds[index])


def assert_no_worse(free: Found | None, other: Found, *, per_gpu: bool = False) -> None:
    """Whatever fits elsewhere fits here, with as much room or faster, and with as much room is no slower."""
    assert free is not None
    assert free.fits
    (verdict, gpus, seconds), (other_verdict, other_gpus, other_seconds) = chosen(free), chosen(other)
    times = (gpus, other_gpus) if per_gpu else (1, 1)
    if verdict < other_verdict:
        # Room is not bought with offload: a tight plan on the device goes first where it is faster.
        assert other.pools[other.chosen[0]].layouts.offload[other.chosen[1]] > 0
        assert seconds * times[0] < other_seconds * times[1]
    if verdict == other_verdict:
        assert seconds * times[0] <= other_seconds * times[1] * NEAR_EQUAL * ROUNDING
        least = min(
            float((pool.seconds * (pool.layouts.gpus if per_gpu else 1))[pool.verdicts == verdict].min())
            for pool in free.pools
            if (pool.verdicts == verdict).any()
        )
        assert least <= other_seconds * times[1] * ROUNDING


@given(st.data())
@law(few=60, many=4000)
def test_no_layout_that_a_client_fixes_beats_the_free_one(data: st.DataObject):
    asked = data.draw(questions())
    named = fixed(data.draw, asked)
    other = planned(named)
    assume(other is not None and other.fits)
    assert_no_worse(planned(asked), other, per_gpu=asked.objective == "cost")


@given(st.data())
@law(few=6, many=200)
def test_a_range_of_gpus_is_never_worse_than_a_number_in_it(data: st.DataObject):
    asked = data.draw(questions())
    objective = data.draw(st.sampled_from(("throughput", "cost", "fewest_gpus", "deadline")))
    tokens = asked.global_batch_size * asked.sequence_length
    # Every number up to 64, whole nodes beyond.
    point = data.draw(st.one_of(st.integers(1, 64), st.integers(9, 40).map(lambda nodes: 8 * nodes)))
    low, high = data.draw(st.integers(1, point)), point + data.draw(st.integers(0, 40))
    one = replace(asked, hardware=replace(asked.hardware, gpus=GpuCount(minimum=point, maximum=point)), tokens=tokens)
    one = replace(one, objective="cost" if objective == "cost" else "throughput")
    other = planned(one)
    assume(other is not None and other.fits)
    _, gpus, seconds = chosen(other)
    many = replace(one.hardware, gpus=GpuCount(minimum=low, maximum=high))
    some = replace(one, hardware=many, objective=objective, deadline_seconds=seconds * ROUNDING)
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
@law(few=6, many=300)
def test_any_stack_is_never_worse_than_a_stack_that_is_named(data: st.DataObject):
    asked = data.draw(questions(framework="any"))
    stack = load_profile(data.draw(st.sampled_from(STACKS[:-1])))
    assume(why_unsupported(asked, stack) is None)
    other = planned(replace(asked, framework=stack.name))
    assume(other is not None and other.fits)
    found = planned(asked)
    if stack.measured:
        assert_no_worse(found, other, per_gpu=asked.objective == "cost")
    else:
        assert found is not None
        assert found.fits
        verdict, _, seconds = chosen(found)
        is_offloaded = other.pools[0].layouts.offload[other.chosen[1]] > 0
        assert verdict >= chosen(other)[0] or (is_offloaded and seconds < chosen(other)[2])
        assert verdict == FITS or set(found.searched) >= {stack.name}
