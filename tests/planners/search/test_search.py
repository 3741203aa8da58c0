from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import ImpossibleLayout, PlanningStopped
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import layout_of
from plimsoll.planners.memory.peak import FITS, needs_of, verdicts
from plimsoll.planners.questions import LayoutRequest, Recompute, TrainingQuestion
from plimsoll.planners.search.able import jobs_of
from plimsoll.planners.search.axes import grid_over
from plimsoll.planners.search.bases import with_micro_batches, with_shard_groups, with_stages
from plimsoll.planners.search.beyond import beyond_usual
from plimsoll.planners.search.rules.every import obey
from plimsoll.planners.search.search import search
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_seconds
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import LLAMA_3_70B, hardware, llama, question, small_llama
from tests.properties.trainings import described


def found(framework: str = "fsdp2", **changes):
    asked = question(framework=framework, **changes)
    return search(asked, jobs_of(asked))


def chosen_layouts(result):
    number, index = result.chosen
    return result.pools[number].layouts.take([index])


def one_by_one(framework: str, asked):
    """Return verdicts and seconds of every layout that obeys all rules, each worked out in a plain list."""
    through = training_job(asked, load_profile(framework))
    everything = beyond_usual(asked, through, np.array([asked.hardware.gpus.minimum]), with_offload=True)
    bases = with_shard_groups(with_stages(with_micro_batches(everything.meshes, asked), asked, through), asked, through)
    listed = grid_over(asked, through, bases, everything.choices).every()
    allowed = listed.take(obey(listed, through).allowed)
    needs = needs_of(allowed, through)
    seconds = step_seconds(allowed, through, asked.hardware, load_efficiency(framework), needs.peaks).total
    return verdicts(needs, through, asked.hardware), seconds


def test_states_that_no_stage_divides_are_held_whole():
    layouts = chosen_layouts(found("megatron", model=small_llama(), optimizer="sgd-momentum"))
    assert layouts.zero_stage.item() == 0
    # DeepSpeed's optimizer under the same parallelism wraps any other.
    fixed = found("megatron-deepspeed", model=small_llama(), optimizer="sgd-momentum", layout={"zero_stage": 1})
    assert chosen_layouts(fixed).zero_stage.item() == 1


@pytest.mark.parametrize(
    ("framework", "gpus", "batch"),
    [
        ("fsdp2", 8, 64),
        ("fsdp2", 48, 480),
        ("megatron", 8, 56),
        ("megatron", 48, 480),
        ("nanotron", 64, 256),
        ("accelerate", 24, 360),
        ("reference", 16, 48),
        ("deepspeed", 2, 30),
    ],
)
def test_what_is_passed_over_is_never_faster(framework: str, gpus: int, batch: int):
    asked = question(framework=framework, gpus=gpus, global_batch_size=batch)
    judged, seconds = one_by_one(framework, asked)
    result = found(framework, gpus=gpus, global_batch_size=batch)
    number, index = result.chosen
    pool, best = result.pools[number], judged.max()
    assert pool.verdicts[index] == best
    # Parts of layers that are recomputed are not among those that were worked out one by one.
    whole = result.pools[0]
    are_whole = (whole.verdicts == best) & (whole.layouts.module_set == 0)
    assert whole.seconds[are_whole].min() == pytest.approx(seconds[judged == best].min(), rel=1e-12)
    # The simpler of near equals may take a hundredth longer.
    assert pool.seconds[index] <= seconds[judged == best].min() * 1.01


def test_of_many_layouts_few_are_given_memory():
    # Without a bound the layouts of 48 GPUs are some twenty thousand.
    judged, _ = one_by_one("megatron", question(framework="megatron", gpus=48, global_batch_size=480))
    assert found("megatron", gpus=48, global_batch_size=480).considered < judged.size


def test_the_same_question_has_the_same_answer():
    assert found("any").chosen == found("any").chosen


def test_fewest_gpus_stops_at_the_first_count_that_fits():
    # 16 bytes for each of 8.03e9 parameters are 119.7 GiB: one card cannot, four hold a quarter each.
    gpus = int(chosen_layouts(found("fsdp2", gpus=None)).gpus[0])
    assert gpus in (2, 3, 4)
    assert not found("fsdp2", gpus=gpus - 1, layout={"offload": "none"}).fits
    assert found("fsdp2", gpus=gpus, layout={"offload": "none"}).fits


def test_nothing_fits_gives_the_closest():
    result = found("fsdp2", gpus=1, layout={"offload": "none"})
    assert not result.fits
    number, index = result.chosen
    assert result.pools[number].peaks[index] <= 1.05 * min(pool.peaks.min() for pool in result.pools)
    assert result.alternatives == ()


@pytest.mark.parametrize(
    ("framework", "gpus"), [("deepspeed", 1), ("accelerate", 1), ("fsdp2", 2), ("torchtune", 2), ("reference", 1)]
)
def test_offload_is_found_where_nothing_else_fits(framework: str, gpus: int):
    # States of 16 bits alone are half as large.
    precision, layers = ("bf16", 64) if framework == "torchtune" else ("bf16-mixed", 32)
    result = found(framework, gpus=gpus, model=llama(num_hidden_layers=layers * gpus), precision=precision)
    assert result.fits
    assert chosen_layouts(result).offload[0] > 0


def test_context_parallelism_is_found_for_short_sequences_too():
    # 8 sequences a step leave 16 GPUs no more than 8 replicas; the other factor of two may be a context rank.
    asked = {"gpus": 16, "global_batch_size": 8, "sequence_length": 4096, "layout": {"tensor_parallel": 1}}
    result = found("fsdp2", **asked)
    assert result.fits
    assert 2 in {int(degree) for pool in result.pools for degree in pool.layouts.context_parallel}


def test_layers_are_recomputed_one_by_one_where_eighths_are_too_coarse():
    asked = {"gpus": 4, "sequence_length": 32_768, "micro_batch_size": 1, "layout": {"tensor_parallel": 4}}
    numbers = (found("megatron", **asked, recompute=Recompute(mode="full", full_layers=n)) for n in range(1, 33))
    with_room = [each for each in numbers if each.pools[0].verdicts[each.chosen[1]] == FITS]
    fastest = min(each.pools[0].seconds[each.chosen[1]] for each in with_room)
    result = found("megatron", **asked)
    assert result.pools[0].seconds.min() <= result.pools[0].seconds[result.chosen[1]] <= fastest * 1.01


def test_a_range_is_never_slower_than_a_number_inside_it():
    # 20 nodes take 160 sequences at once, a divisor of 480; no power of two does as well.
    few = found("megatron", gpus=160, global_batch_size=480)
    some = found("megatron", gpus=(8, 200), global_batch_size=480)
    assert some.pools[some.chosen[0]].seconds[some.chosen[1]] <= few.pools[0].seconds[few.chosen[1]] * 1.01


def test_offload_that_was_refused_is_not_found():
    assert not found("deepspeed", gpus=2, layout={"offload": "none"}).fits


def test_rules_that_leave_nothing_name_the_commonest():
    # One sequence a step cannot be shared by eight replicas, and this stack has only replicas.
    with pytest.raises(ImpossibleLayout) as caught:
        found("ddp", global_batch_size=1)
    assert caught.value.rule == "batch_divides"
    assert caught.value.pointer == "/layout/data_parallel"


def test_degrees_that_cannot_multiply_are_named():
    with pytest.raises(ImpossibleLayout, match="no layout uses 8 GPUs"):
        found("ddp", layout={"data_parallel": 4})


def test_a_range_uses_more_gpus_for_more_speed():
    result = found("fsdp2", model=small_llama(hidden_size=1024, intermediate_size=4096), gpus=(1, 8))
    assert chosen_layouts(result).gpus[0] == 8


def test_a_thousand_gpus_are_searched_over_every_axis():
    result = found("any", model=llama(LLAMA_3_70B), gpus=1024, global_batch_size=2048)
    assert result.fits
    assert result.considered > 5_000


def test_a_search_that_nobody_waits_for_stops_before_its_next_chunk():
    asked = question(framework="any")
    jobs = jobs_of(asked)
    answers = iter([False, False, True])
    with pytest.raises(PlanningStopped):
        search(asked, jobs, lambda: next(answers))
    assert next(answers, None) is None


@pytest.mark.parametrize("framework", ["megatron", "torchtune"])
def test_sequence_parallelism_that_is_asked_for_is_in_the_answer(framework: str):
    precision = {"torchtune": "bf16"}.get(framework, "bf16-mixed")
    result = found(framework, layout={"sequence_parallel": True}, precision=precision)
    assert all(pool.layouts.sequence_parallel.all() for pool in result.pools)
    assert all((pool.layouts.tensor_parallel > 1).all() for pool in result.pools)


@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "fsdp2"])
def test_encoder_decoder_models_are_searched_without_pipelines(framework: str):
    # Megatron-LM, examples/t5/pretrain_t5.py: "Pipeline parallelism is not supported for T5."; Megatron-DeepSpeed's
    # only pipeline is GPTModelPipe, and torchtitan cuts tok_embeddings, layers, norm and output alone.
    t5 = describe_config(catalogue().model("google-t5/t5-11b").config, name="google-t5/t5-11b")
    result = found(framework, gpus=8, model=t5, sequence_length=512, global_batch_size=256)
    assert result.fits
    assert all((pool.layouts.pipeline_parallel == 1).all() for pool in result.pools)


def test_sequence_parallelism_on_one_gpu_names_the_tensor_parallelism_it_needs():
    with pytest.raises(ImpossibleLayout) as refusal:
        found("megatron", gpus=1, layout={"sequence_parallel": True})
    assert refusal.value.rule == "sequence_parallel_needs_tensor"


def deepseek(**changes):
    return question(
        framework="megatron",
        model=described("deepseek-ai/DeepSeek-V3"),
        gpus=384,
        global_batch_size=4096,
        sequence_length=4096,
        **changes,
    )


def test_parts_of_layers_are_recomputed_where_that_is_fastest():
    layouts, seconds = {}, {}
    for name, changes in {
        "free": {},
        "whole layers": {"recompute": Recompute(mode="full")},
        "none": {"recompute": Recompute(mode="none")},
        "norms": {"recompute": Recompute(mode="selective", modules=("layernorm",))},
        "two": {"recompute": Recompute(mode="selective", modules=("layernorm", "mla_up_proj"))},
        "three": {"recompute": Recompute(mode="selective", modules=("layernorm", "moe_act", "mla_up_proj"))},
    }.items():
        asked = deepseek(**changes)
        result = search(asked, [training_job(asked, load_profile("megatron"))])
        assert result.fits, name
        number, index = result.chosen
        pool = result.pools[number]
        layouts[name], seconds[name] = layout_of(pool.layouts, index, pool.job), pool.seconds[index]
    assert seconds["free"] == pytest.approx(min(seconds.values()), rel=0.01)
    assert layouts["free"].recompute == "selective"
    assert layouts["free"].recompute_modules == layouts["two"].recompute_modules
    assert layouts["whole layers"].recompute_modules == ()


def test_experts_over_ranks_that_no_zero_stage_shards_are_searched():
    # Eight ranks of three replicas' worth of ZeRO stages each: what one base may have, its neighbour may not.
    model = described("moonshotai/Kimi-VL-A3B-Instruct")
    assert found("reference", model=model, gpus=24, global_batch_size=24, sequence_length=512).fits


QWEN3_235B = {
    "model": described("Qwen/Qwen3-235B-A22B"),
    "hardware": hardware(1000, gpu=catalogue().gpu("h100-sxm-80gb")),
    "framework": "megatron",
    "sequence_length": 4096,
    "global_batch_size": 4000,
}


def test_a_plan_left_open_is_no_slower_than_the_same_without_offload_of_either_kind():
    free = plan_without_advice(TrainingQuestion(**QWEN3_235B)).plan.step.seconds
    on_device = plan_without_advice(TrainingQuestion(**QWEN3_235B, activation_offload=False)).plan.step.seconds
    without_states = plan_without_advice(TrainingQuestion(**QWEN3_235B, layout=LayoutRequest(offload="none")))
    assert free <= on_device
    assert free <= without_states.plan.step.seconds


def test_a_plan_that_has_room_but_for_what_waits_for_its_copies_fits_tightly():
    # Each micro-batch in flight sends more than a forward pass leaves time for: 89 GiB of the 87 that are free.
    card = catalogue().gpu("h200-sxm-141gb")
    asked = TrainingQuestion(
        **QWEN3_235B | {"hardware": hardware(1000, gpu=card, reserve_bytes=round(52.5 * 2**30))},
        activation_offload=True,
        micro_batch_size=2,
        recompute=Recompute(mode="selective", modules=("layernorm", "moe")),
        layout=LayoutRequest(
            data_parallel=200, pipeline_parallel=5, virtual_pipeline=10, expert_parallel=8, offload="none"
        ),
    )
    answer = plan_without_advice(asked)
    waiting = next(said for said in answer.assumptions if "wait for theirs" in said)
    more = float(waiting.split("up to ")[1].split(" GiB")[0]) * 2**30
    memory = answer.plan.memory
    assert memory.peak_high_bytes < memory.limit_bytes < memory.peak_bytes + more
    assert answer.verdict == "tight"


@pytest.mark.parametrize(
    ("name", "sequence_length", "exchanging"), [("openai/gpt-oss-20b", 32768, 4), ("google/gemma-3-4b-it", 512, 1)]
)
def test_context_ranks_of_a_window_all_exchange_heads(name: str, sequence_length: int, exchanging: int):
    # A ring has no windows; Gemma 3's of 1,024 tokens are none in sequences of 512, where the ring is simpler.
    asked = question(
        model=described(name),
        gpus=16, global_batch_size=8, framework="megatron", sequence_length=sequence_length,
        layout={"context_parallel": 4},
    )  # fmt: skip
    assert plan_without_advice(asked).plan.layout.context_all_to_all == exchanging


def test_the_most_ranks_of_a_node_exchange_heads_where_that_is_faster():
    # Two nodes of eight: 1,024 tokens a rank are too few for attention to hide fifteen hops of a ring.
    asked = question(
        gpus=16, global_batch_size=8, framework="megatron", sequence_length=16384, layout={"context_parallel": 16},
        micro_batch_size=1,
    )  # fmt: skip
    free, ring = (
        plan_without_advice(each).plan
        for each in (asked, replace(asked, layout=replace(asked.layout, context_all_to_all=1)))
    )
    assert (free.layout.context_all_to_all, ring.layout.context_all_to_all) == (8, 1)
    assert free.step.seconds < ring.step.seconds
