"""What an answer says in words: whole sentences, and every choice that changes what a layout holds or takes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.catalogue.failure_rates import failures_per_gpu_month, published_rates
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.hardware import Gpu, GpuCount, Hardware
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.plans import Alternative, HiddenTraffic, Layout, TrainingAnswer, TrainingPlan
from plimsoll.planners.questions import (
    GPU_FAILURES_PER_MONTH,
    Companion,
    CountedFailures,
    Evaluation,
    LayoutRequest,
    Lora,
    Overlap,
    Recompute,
    Resilience,
    TrainingQuestion,
)
from plimsoll.planners.stacks.profile import load_profile, stack_names, usual_precision
from plimsoll.planners.timing.efficiency import load_efficiency, shipped_generations
from plimsoll.planners.training.notes import NOTES, Told, counted, summary
from plimsoll.planners.training.planning import plan_training
from plimsoll.planners.training.tie_notes import tie_notes
from tests.planners.factories import question, small_llama, small_mixtral

# Where a sentence ends another may begin: with a capital, a figure, or the lower-case name of a field or stack.
ENDED = re.compile(r"[.!?]$")
LOWER_CASE_NAMES = (
    "host_bytes",
    "fsdp2",
    "torchtitan",
    "torchtune",
    "nanotron",
    "pcie_bytes_per_second",
    "memory_bytes",
)
# Two verbs that a template put into one clause, as in "rests on no timed run is on record".
TWO_VERBS = re.compile(r"\b(?:rests? on|follows?|comes? from) (?:no|an?|the)\b[^.;,:]*\b(?:is|are|has|have)\b")


def broken_sentence(text: str) -> str | None:
    """Return what is wrong with a text that should be whole sentences, None where nothing is."""
    first = text.split()[0] if text.split() else ""
    for wrong, holds in (
        ("empty", not text.strip()),
        (
            "does not begin like a sentence",
            not (first[:1].isupper() or first[:1].isdigit() or first in LOWER_CASE_NAMES),
        ),
        ("does not end like a sentence", not ENDED.search(text)),
        ("spaces", "  " in text or " ." in text or " ," in text or "()" in text or "''" in text),
        ("one of many", bool(re.search(r"(?<![\d.,])1 (?:GPUs|layers|nodes|stages|samples)\b", text))),
        ("a word twice", bool(re.search(r"\b([a-z]+) \1\b", text.lower()))),
        ("two verbs of a template", bool(TWO_VERBS.search(text))),
        ("a Python value", bool(re.search(r"\b(?:None|True|False|nan|inf)\b|[{}]", text))),
        ("a lower-case sentence", any(_begins_low(part) for part in re.split(r"(?<=[a-z\d)])[.] ", text)[1:])),
    ):
        if holds:
            return f"{wrong}: {text!r}"
    return None


def _begins_low(sentence: str) -> bool:
    word = sentence.split()[0]
    return word[:1].islower() and word.strip(",;:") not in LOWER_CASE_NAMES


def sentences(answer: TrainingAnswer) -> tuple[str, ...]:
    reasons = tuple(advice.reason for advice in answer.advice)
    return (answer.summary, *answer.assumptions, *reasons)


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("Step time assumes eager kernels.", True),
        ("Step time rests on no timed run of Accelerate is on record; its kernels are eager.", False),
        ("No timed run is on record", False),
        ("its kernels are eager.", False),
        ("It ran on 1 GPUs.", False),
        ("It ran on 11 GPUs.", True),
        ("It it ran.", False),
        ("It has None.", False),
    ],
)
def test_the_check_of_sentences_finds_fragments(text: str, is_whole: bool):
    assert (broken_sentence(text) is None) is is_whole


QUESTIONS: dict[str, dict[str, object]] = {
    "plain": {},
    "one GPU": {"gpus": 1, "global_batch_size": 1},
    "nothing fits": {"model": small_llama(num_hidden_layers=64, hidden_size=8192, intermediate_size=28672), "gpus": 1},
    "mixture": {"model": small_mixtral(), "expert_imbalance": 1.5},
    "mixture over ranks": {"model": small_mixtral(), "layout": {"expert_parallel": 2}},
    "long": {"model": replace(small_llama(), max_position_embeddings=256)},
    "adapters": {"method": "lora", "lora": Lora(rank=8)},
    "in four bits": {"method": "qlora"},
    "paged": {"optimizer": "paged_adamw_8bit"},
    "eager": {"attention": "eager"},
    "deadline": {"objective": "deadline", "tokens": 1e9, "deadline_seconds": 1.0},
    "recompute": {"recompute": Recompute(mode="full", full_layers=1)},
    "evaluation": {"evaluation": Evaluation()},
    "own failures": {"resilience": Resilience(gpu_failures_per_month=0.08, restart_seconds=60.0)},
    "several nodes": {"gpus": 16},
    "on NVMe": {"layout": {"offload": "optimizer+parameters", "offload_target": "nvme", "zero_stage": 3}},
    "offloaded": {"layout": {"offload": "optimizer"}},
    "fp8": {"precision": "fp8-mixed"},
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", stack_names())
def test_every_sentence_of_every_stack_is_whole(framework: str):
    found = 0
    for changes in QUESTIONS.values():
        common = {"model": small_llama(), "sequence_length": 512, "precision": usual_precision(framework)}
        asked = question(**{**common, "framework": framework, **changes})
        try:
            answer = plan_training(asked)
        except PlimsollError:
            continue
        found += 1
        assert answer.omitted == ()
        assert [wrong for text in sentences(answer) if (wrong := broken_sentence(text))] == []
    assert found >= 5


@pytest.mark.parametrize("card", catalogue().gpus, ids=[card.id for card in catalogue().gpus])
def test_every_sentence_of_every_card_is_whole(card: Gpu):
    on = Hardware(gpu=card, gpus=GpuCount(minimum=2, maximum=2), gpus_per_node=card.gpus_per_node)
    precision = "bf16-mixed" if "bf16" in card.peak_flops_per_second else "fp16-mixed"
    answer = plan_training(question(model=small_llama(), sequence_length=512, hardware=on, precision=precision))
    assert [wrong for text in sentences(answer) if (wrong := broken_sentence(text))] == []


def test_every_provenance_and_every_reason_is_a_sentence():
    texts = [load_profile(name).band.reason for name in stack_names()]
    texts += [load_efficiency(name).stack.provenance for name in stack_names()]
    texts += [load_efficiency(name).stack.band_reason for name in stack_names()]
    texts += [generation.provenance for generation in (*shipped_generations(), load_efficiency("megatron", "x").gpu)]
    assert [wrong for text in texts if (wrong := broken_sentence(text))] == []


def test_things_are_counted_in_the_number_they_have():
    assert (counted(1, "GPU"), counted(2, "GPU"), counted(2048, "layer")) == ("1 GPU", "2 GPUs", "2,048 layers")


# What names each choice of a layout that is not the plain one; degrees that multiply to the GPUs are always named.
NAMED = {
    "virtual_pipeline": lambda layout: (
        f"{layout.virtual_pipeline} virtual stages" if layout.virtual_pipeline > 1 else None
    ),
    "context_parallel": lambda layout: f"context {layout.context_parallel}" if layout.context_parallel > 1 else None,
    "expert_parallel": lambda layout: f"experts over {layout.expert_parallel}" if layout.expert_parallel > 1 else None,
    "sequence_parallel": lambda layout: "sequence parallel" if layout.sequence_parallel else None,
    "zero_stage": lambda layout: f"ZeRO {layout.zero_stage}",
    "shard_group": lambda layout: (
        f"over groups of {layout.shard_group}"
        if layout.zero_stage and layout.shard_group != layout.data_parallel
        else None
    ),
    "offload": lambda layout: "optimizer states" if layout.offload != "none" else None,
    "offload_target": lambda layout: (
        {"cpu": "host memory", "nvme": "NVMe"}[layout.offload_target] if layout.offload != "none" else None
    ),
    "micro_batch_size": lambda layout: f"micro-batch {layout.micro_batch_size}",
    "gradient_accumulation_steps": lambda layout: (
        f"x {layout.gradient_accumulation_steps} accumulated" if layout.gradient_accumulation_steps > 1 else None
    ),
    "recompute": lambda layout: f"recompute {layout.recompute}",
    "recompute_layers": lambda layout: (
        f"of {layout.recompute_layers} layer" if layout.recompute_layers is not None else None
    ),
    "recompute_modules": lambda layout: f"of {listed(layout.recompute_modules)}" if layout.recompute_modules else None,
    "recompute_every": lambda layout: f"of one layer in {layout.recompute_every}" if layout.recompute_every else None,
    "activation_offload": lambda layout: "offloaded to host memory" if layout.activation_offload else None,
    "offload_modules": lambda layout: (
        f"activations of {listed(layout.offload_modules)} offloaded" if layout.offload_modules else None
    ),
    "offload_layers": lambda layout: (
        f"activations of {layout.offload_layers} layers offloaded" if layout.offload_layers is not None else None
    ),
    "fused_cross_entropy": lambda layout: "fused loss" if layout.fused_cross_entropy else None,
    "pipeline_schedule": lambda layout: layout.pipeline_schedule if layout.pipeline_schedule != "1f1b" else None,
    "pipeline_layout": lambda layout: (
        f"stages {layout.pipeline_layout}" if layout.pipeline_layout not in (None, "even", "behind-first") else None
    ),
    "overlap": lambda layout: (
        "exchange with experts overlapped" if layout.overlap and layout.overlap.expert_parallel else None
    ),
    "context_all_to_all": lambda layout: (
        f"heads exchanged between {layout.context_all_to_all} ranks" if layout.context_all_to_all > 1 else None
    ),
    "secondary_shard_group": lambda layout: (
        f"a second copy of weights over {layout.secondary_shard_group}" if layout.secondary_shard_group > 1 else None
    ),
    "framework": lambda layout: f"with {layout.framework}",
    "framework_version": lambda layout: None,  # the assumptions name it
    "gpus": lambda layout: f"on {layout.gpus} x",
    "data_parallel": lambda layout: f"data {layout.data_parallel}",
    "tensor_parallel": lambda layout: f"tensor {layout.tensor_parallel}",
    "pipeline_parallel": lambda layout: f"pipeline {layout.pipeline_parallel}",
}


HIDDEN_EXCHANGE = HiddenTraffic(gradients=True, parameters=True, tensor_parallel=False, expert_parallel=True)
PLANNED = plan_training(question(model=small_llama(), sequence_length=512, framework="fsdp2"))


def with_layout(**changes: Any) -> TrainingPlan:
    return replace(PLANNED.plan, layout=replace(PLANNED.plan.layout, **changes))


def test_every_field_of_a_layout_has_a_word():
    assert set(NAMED) == set(Layout.__dataclass_fields__)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"virtual_pipeline": 2, "pipeline_parallel": 2},
        {"pipeline_schedule": "gpipe", "pipeline_parallel": 4},
        {"pipeline_layout": "even", "pipeline_parallel": 4},
        {"pipeline_layout": "Et*7|t*8|t*8|t*7L", "pipeline_parallel": 4},
        {"zero_stage": 3, "data_parallel": 8, "shard_group": 4},
        {"context_parallel": 4},
        {"context_parallel": 8, "context_all_to_all": 4},
        {"expert_parallel": 4},
        {"tensor_parallel": 4, "sequence_parallel": True},
        {"offload": "optimizer"},
        {"offload": "optimizer+parameters", "offload_target": "nvme"},
        {"recompute": "full", "recompute_layers": 1},
        {"recompute": "full", "recompute_layers": 7},
        {"recompute": "full", "recompute_every": 2},
        {"recompute": "selective", "recompute_modules": ("layernorm", "moe_act")},
        {"recompute": "selective"},
        {"activation_offload": True},
        {"activation_offload": True, "offload_modules": ("core_attn", "moe_act")},
        {"activation_offload": True, "offload_layers": 3},
        {"fused_cross_entropy": True},
        {"gradient_accumulation_steps": 7},
        {"overlap": HIDDEN_EXCHANGE},
    ],
)
def test_a_summary_names_every_choice_of_its_layout(changes: dict[str, Any]):
    plan = with_layout(**changes)
    said = summary(question(model=small_llama()), plan, "fits")
    assert [word for name in NAMED.values() if (word := name(plan.layout)) is not None and word not in said] == []


def test_a_summary_says_that_no_layers_are_recomputed_where_stages_have_fewer_than_one_in_so_many():
    plan = with_layout(recompute="full", recompute_layers=0)
    assert "recompute of no layers" in summary(question(model=small_llama()), plan, "fits")
    assert plan.layout.recompute_asked == "none"


def test_a_summary_says_how_much_host_memory_an_offload_takes():
    plan = with_layout(offload="optimizer")
    host = f"with {plan.memory.node_host_bytes / 2**30:,.1f} GiB of host memory per node"
    assert host in summary(question(model=small_llama()), plan, "fits")
    assert "of host memory" not in summary(question(model=small_llama()), with_layout(), "fits")
    assert ",," not in summary(question(model=small_llama()), plan, "no")


def chosen_by_search(asked: TrainingQuestion, **changes: Any) -> str:
    job = training_job(asked, load_profile("fsdp2"))
    told = Told(question=asked, job=job, plan=with_layout(**changes), efficiency=load_efficiency("fsdp2"))
    return " ".join(sentence for note in NOTES for sentence in note(told))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation_offload": True}, "set activation_offload to false to rule it out"),
        ({"offload": "optimizer"}, "set offload to none to rule it out"),
        ({"fused_cross_entropy": True}, "fused_cross_entropy true"),
        ({"recompute": "full"}, "recompute full"),
        ({"sequence_parallel": True}, "sequence_parallel true"),
        ({"virtual_pipeline": 4}, "virtual_pipeline 4"),
        ({"pipeline_parallel": 2, "pipeline_layout": "Et*17|t*15L"}, "pipeline_layout Et*17|t*15L"),
        ({"overlap": HIDDEN_EXCHANGE}, "overlap.expert_parallel true"),
        ({"zero_stage": 3, "data_parallel": 8, "shard_group": 4}, "shard_group 4"),
    ],
)
def test_what_the_search_switched_on_is_an_assumption(changes: dict[str, Any], words: str):
    asked = question(framework="fsdp2", model=small_llama(), sequence_length=512)
    assert words in chosen_by_search(asked, **changes)
    assert words not in chosen_by_search(asked)


def test_stages_that_a_stack_has_untold_are_no_choice_of_the_search():
    asked = question(framework="fsdp2", model=small_llama(), sequence_length=512)
    own = "first-less=1,last-less=1"
    assert "pipeline_layout" not in chosen_by_search(asked, pipeline_parallel=2, pipeline_layout=own)


def test_activation_offload_that_was_asked_for_is_said_and_is_not_the_search_s():
    asked = question(framework="fsdp2", model=small_llama(), sequence_length=512, activation_offload=True)
    said = chosen_by_search(asked, activation_offload=True)
    assert "Saved activations wait in host memory" in said
    assert "to rule it out" not in said


def test_whole_layers_on_the_host_name_the_release_that_sends_all_of_them():
    asked = question(framework="fsdp2", model=small_llama(), sequence_length=512)
    said = chosen_by_search(asked, activation_offload=True, offload_layers=3)
    assert "The first 3 layers send every tensor they keep, as Transformer Engine does from 2.10 on" in said
    assert "Transformer Engine does" not in chosen_by_search(asked, activation_offload=True)


def test_copies_to_the_host_that_wait_on_a_gpu_are_told():
    asked = question(framework="megatron", model=small_llama(), sequence_length=512, activation_offload=True)
    job = training_job(asked, load_profile("megatron"))
    told = Told(
        question=asked, job=job, plan=with_layout(activation_offload=True), efficiency=load_efficiency("megatron")
    )
    late = replace(told, waiting_bytes=3.25 * 2**30)
    both = [" ".join(sentence for note in NOTES for sentence in note(each)) for each in (told, late)]
    assert ["up to 3.2 GiB more per GPU wait for theirs" in said for said in both] == [False, True]


@pytest.mark.parametrize(("model", "is_said"), [(small_llama(), True), (small_mixtral(), False)])
def test_norms_that_nothing_recomputes_are_told(model: ModelSpec, is_said: bool):
    wanted = Recompute(mode="selective", modules=("layernorm",))
    answer = plan_training(question(framework="megatron", model=model, gpus=2, recompute=wanted))
    assert any("Recomputing layernorm saves nothing" in note for note in answer.assumptions) is is_said


def test_what_the_request_fixed_is_not_said_to_be_the_search_s():
    asked = question(framework="fsdp2", model=small_llama(), sequence_length=512, recompute=Recompute(mode="full"))
    answer = plan_training(asked)
    assert not any("The search chose what" in note and "recompute" in note for note in answer.assumptions)


def test_a_job_on_several_nodes_says_how_they_are_joined():
    def says_nodes(gpus: int) -> list[str]:
        asked: TrainingQuestion = question(model=small_llama(), sequence_length=512, gpus=gpus)
        return [note for note in plan_training(asked).assumptions if "nodes of" in note]

    assert says_nodes(8) == []
    assert says_nodes(16)[0].startswith("The 16 GPUs are 2 nodes of 8, with 50 GB/s per GPU between nodes")


def test_failures_nobody_gave_are_llama_3_s():
    # 419 unexpected interruptions in 54 days of 16,384 GPUs, in months of 30 days (arXiv:2407.21783, table 5).
    assert pytest.approx(419 / 54 * 30 / 16_384, rel=0.02) == GPU_FAILURES_PER_MONTH
    answer = plan_training(question(model=small_llama(), sequence_length=512))
    assert any("419 unexpected interruptions in 54 days" in note for note in answer.assumptions)
    assert any("lie between 0.00877 (rsc-2) and 0.0529 (opt-175b)" in note for note in answer.assumptions)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama-3", "The 90% Poisson interval of that count is "),
        ("jean-zay", "What the source says is "),
        ("rsc-1", None),
    ],
)
def test_failures_of_a_named_cluster_are_told_with_their_source_and_interval(name: str, said: str | None):
    given = Resilience(gpu_failures_per_month=failures_per_gpu_month(name), failures_like=name)
    notes = plan_training(question(model=small_llama(), sequence_length=512, resilience=given)).assumptions
    published = published_rates()[name]
    assert any(note.startswith("Failures follow ") and published.source in note for note in notes)
    told = [note for note in notes if "failures a day here" in note]
    assert [note.startswith(said) for note in told] == [True] if said else told == []


@pytest.mark.parametrize(
    ("expected_seconds", "words"),
    [
        (431_900.0, "it meets the deadline of 5 days."),
        (
            433_440.0,
            "or 5.017 days with the failures to expect: it meets the deadline of 5 days only if nothing fails.",
        ),
    ],
)
def test_a_run_near_its_deadline_is_told_in_digits_that_tell_it_apart(expected_seconds: float, words: str):
    # 5 days are 432,000 s; 431,760 s are 4.9972 days and 433,440 s are 5.0167.
    run = replace(with_layout().run, seconds=431_760.0, expected_seconds=expected_seconds)
    asked = question(model=small_llama(), objective="deadline", tokens=1e9, deadline_seconds=432_000.0)
    assert summary(asked, replace(with_layout(), run=run), "fits").endswith(words)


def test_a_step_of_many_minutes_is_told_in_minutes():
    # 1,184 s are 19.73 minutes.
    plan = with_layout()
    slow = replace(plan, step=replace(plan.step, seconds=1_184.0))
    assert "A step takes 19.7 min: " in summary(question(model=small_llama()), slow, "fits")


def test_a_tight_plan_says_how_high_its_peak_may_be():
    plan = with_layout()
    memory = replace(plan.memory, peak_bytes=70 * 2**30, peak_high_bytes=77 * 2**30, limit_bytes=75 * 2**30)
    said = summary(question(model=small_llama()), replace(plan, memory=memory), "tight")
    assert "Each GPU needs 70.0 GiB, perhaps up to 77.0 GiB, of 75.0 GiB;" in said


@pytest.mark.slow
def test_a_plan_that_counts_gpus_says_that_it_counts_those_without_offload():
    asked = question(gpus=8)
    free = replace(asked, hardware=replace(asked.hardware, gpus=GpuCount(minimum=1, maximum=64, is_free=True)))
    word = "the fewest that need no offload"
    assert any(word in note for note in plan_training(free).assumptions)
    assert not any(word in note for note in plan_training(asked).assumptions)
    fewest = plan_training(replace(free, objective="fewest_gpus"))
    assert not any(word in note for note in fewest.assumptions)


def test_code_that_a_stack_may_lack_is_said():
    bloom = describe_config(catalogue().model("bigscience/bloom-560m").config, name="bigscience/bloom-560m")
    said = plan_training(question(model=bloom, framework="megatron", sequence_length=2048)).assumptions
    assert any(note.startswith("Whether megatron has code for position biases such as ALiBi") for note in said)
    assert not any("has code for" in note for note in plan_training(question(framework="megatron")).assumptions)


def test_failures_that_a_client_counted_are_told_with_the_interval_of_the_count():
    counted_here = CountedFailures(failures=1, gpu_days=1000.0)
    given = Resilience(gpu_failures_per_month=counted_here.per_gpu_month, counted=counted_here)
    notes = plan_training(question(model=small_llama(), sequence_length=512, resilience=given)).assumptions
    assert "Failures are as you counted them, 1 failure in 1,000 days of a GPU, or 0.03 per GPU and month." in notes
    # 0.0513 and 4.744 of them in 1,000 days of a GPU: 0.00041 and 0.038 a day on 8.
    (bounds,) = (note for note in notes if "failures a day here" in note)
    assert bounds.startswith("The 90% Poisson interval of that count is 0.00041 to 0.038 failures a day here")


def test_ties_with_another_stack_are_told_by_the_bands_of_both():
    # Both bands are 0.65 to 1.55, so that the steps must be 1.614 times apart (tests/planners/timing/test_ties.py).
    h100 = Hardware(gpu=catalogue().gpu("h100-sxm-80gb"), gpus=GpuCount(minimum=8, maximum=8), gpus_per_node=8)
    asked = question(framework="ddp", model=small_llama(), sequence_length=512, hardware=h100)
    answer = plan_training(asked)
    other = Alternative(
        layout=replace(answer.plan.layout, framework="litgpt"),
        peak_bytes=1,
        margin_bytes=0,
        step_seconds=1.5 * answer.plan.step.seconds,
        verdict="fits",
        equal_within_band=True,
    )
    said = list(tie_notes(asked, answer.plan, [other]))
    assert said[0] == (
        "1 alternative on litgpt and the plan are equal within the band, which between these two stacks is 61%."
    )
    assert list(tie_notes(asked, answer.plan, [replace(other, equal_within_band=False)])) == []


@pytest.mark.parametrize(
    ("framework", "card", "said"),
    [
        ("megatron", "h100-sxm-80gb", None),
        ("fsdp2", "b200-sxm-180gb", "No timed run of fsdp2 on NVIDIA B200"),
        ("megatron", "l4-24gb", "No timed run on NVIDIA L4"),
        ("fsdp2", "mi300x-192gb", "No timed run on AMD Instinct MI300X"),
    ],
)
def test_a_pair_of_stack_and_card_that_nobody_timed_is_said(framework: str, card: str, said: str | None):
    gpu = catalogue().gpu(card)
    on = Hardware(gpu=gpu, gpus=GpuCount(minimum=8, maximum=8), gpus_per_node=8)
    answer = plan_training(question(model=small_llama(), sequence_length=512, framework=framework, hardware=on))
    notes = [note for note in answer.assumptions if note.startswith("No timed run")]
    assert [note[: len(said)] for note in notes] == [said] if said else notes == []
    assert answer.plan.step.timed_runs == load_efficiency(framework, card).timed_runs


def test_alternatives_that_measurements_do_not_tell_from_the_plan_are_said():
    answer = plan_training(question(framework="megatron", gpus=64))
    tie = 1 + load_efficiency("megatron").stack.tie_fraction
    seconds = answer.plan.step.seconds
    ratios = [max(each.step_seconds / seconds, seconds / each.step_seconds) for each in answer.alternatives]
    assert [each.equal_within_band for each in answer.alternatives] == [ratio <= tie for ratio in ratios]
    tied = [each for each in answer.alternatives if each.equal_within_band]
    assert 0 < len(tied) < len(ratios)
    (said,) = (note for note in answer.assumptions if "equal within the band" in note)
    assert said.startswith(f"{counted(len(tied), 'alternative')} and the plan are equal within the band")
    (roomy,) = (note for note in answer.assumptions if "has the most memory to spare" in note)
    most = max(each.margin_bytes for each in tied) - answer.plan.memory.margin_bytes
    assert f"{most / 2**30:.1f} GiB more per GPU" in roomy


@pytest.mark.parametrize(("price", "is_told"), [(None, True), (2.5, False)])
def test_a_cost_without_a_price_is_said_to_be_gpu_time(price: float | None, is_told: bool):
    asked = question(objective="cost")
    asked = replace(asked, hardware=replace(asked.hardware, usd_per_gpu_hour=price))
    assert any("usd_per_gpu_hour" in note for note in plan_training(asked).assumptions) is is_told


@pytest.mark.parametrize(
    ("heads", "attention", "padded"),
    [(4, "flash", False), (5, "flash", True), (5, "eager", False)],
)
def test_heads_that_flash_kernels_pad_are_named(heads: int, attention: str, padded: bool):
    # 500 / 5 = 100 features a head, 480 / 4 = 120 = 15 x 8.
    size = {4: 480, 5: 500}[heads]
    config = {
        "model_type": "llama", "vocab_size": 128, "hidden_size": size, "intermediate_size": 512,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": heads,
        "max_position_embeddings": 512,
    }  # fmt: skip
    asked = question(model=describe_config(config, name="small"), sequence_length=256, attention=attention)
    said = [sentence for sentence in plan_training(asked).assumptions if "pad heads of 100" in sentence]
    assert bool(said) is padded


def test_nothing_is_said_of_the_attention_of_a_model_without():
    model = describe_config(catalogue().model("state-spaces/mamba-2.8b-hf").config, name="mamba")
    assert not any("Attention runs" in said for said in plan_training(question(model=model)).assumptions)


@pytest.mark.parametrize(("method", "is_said"), [("lora", True), ("qlora", True), ("full", False)])
def test_a_reference_beside_adapters_is_said_to_be_a_model_of_its_own(method: str, is_said: bool):
    asked = question(
        framework="accelerate", model=small_llama(), method=method, gpus=2, companions=(Companion(role="reference"),)
    )
    assert is_said is any("adapters switched off" in note for note in plan_training(asked).assumptions)


def overlap_told(framework: str, asked: Overlap | None, hidden: HiddenTraffic | None = None, **changes: Any) -> str:
    posed = replace(
        question(framework=framework, model=small_llama(), sequence_length=512, **changes),
        layout=LayoutRequest(overlap=asked),
    )
    job = training_job(posed, load_profile(framework))
    told = Told(
        question=posed, job=job, plan=with_layout(overlap=hidden, zero_stage=1), efficiency=load_efficiency(framework)
    )
    return " ".join(sentence for note in NOTES for sentence in note(told))


def test_traffic_that_is_not_to_hide_is_not_said_to():
    said = overlap_told("megatron", Overlap(gradients=False, parameters=False))
    assert "of data-parallel traffic" not in said
    assert "The gathering of updated parameters overlaps nothing." in said
    assert "No traffic overlaps compute." in overlap_told("deepspeed", None)


def test_what_layers_hide_without_an_option_is_said_whether_it_is_on_or_not():
    hidden = "35% of tensor-parallel traffic under sequence parallelism"
    assert all(hidden in overlap_told("megatron", Overlap(tensor_parallel=on)) for on in (False, True))
    assert hidden not in overlap_told("fsdp2", None, kernels="compiled")


def test_an_exchange_that_is_hidden_is_said_to_cost_computation_and_memory():
    said = overlap_told("megatron", Overlap(expert_parallel=True), HIDDEN_EXCHANGE)
    assert "runs beside another micro-batch's computation, which loses 20%" in said
    assert "More memory is reserved for the second stream than is counted." in said


def test_an_overlap_that_no_run_of_the_stack_shows_is_said_to_be_assumed():
    assert "No timed run of fsdp2 that hides" in overlap_told(
        "fsdp2", Overlap(tensor_parallel=True), kernels="compiled"
    )
    assert "No timed run of megatron that hides" not in overlap_told("megatron", Overlap(tensor_parallel=True))


def test_a_fused_loss_that_no_patch_has_is_told_where_it_is_asked_for():
    asked = question(gpus=1, framework="accelerate", fused_cross_entropy=True, global_batch_size=1)
    other = replace(asked, model=replace(small_llama(), model_type="starcoder2"))
    told = [
        [each for each in plan_training(one).assumptions if "has no patch for" in each]
        for one in (replace(asked, model=small_llama()), other)
    ]
    assert told[0] == []
    assert told[1][0].startswith("What accelerate fuses losses with has no patch for 'starcoder2':")
