import itertools
from dataclasses import replace

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, PlanningStopped
from plimsoll.planners.plans import Alternative
from plimsoll.planners.questions import Recompute
from plimsoll.planners.training.advice import advice_for
from plimsoll.planners.training.changes import changing_more, in_pairs, keeping_the_result
from plimsoll.planners.training.planning import plan_training
from tests.planners.factories import LLAMA_3_70B, hardware, llama, question

NO_RECOMPUTE = Recompute(mode="none")
LONG_FIRST_STAGE = "Et*26|(t*6|)*11t*7|t*7|t*8|t*12L"


def changes(asked) -> list[str]:
    return [next(iter(advice.change)) for advice in plan_training(asked).advice]


def test_advice_comes_in_practitioners_order():
    asked = question(
        framework="accelerate",
        gpus=8,
        micro_batch_size=8,
        attention="eager",
        recompute=Recompute(mode="none"),
        global_batch_size=64,
    )
    offered = changes(asked)
    order = [
        "training.attention",
        "training.micro_batch_size",
        "training.recompute",
        "layout",
        "framework",
        "training.precision",
        "training.optimizer",
        "training.method",
        "training.sequence_length",
        "hardware.gpus",
        "hardware.gpu",
    ]
    assert offered
    assert [order.index(change) for change in offered] == sorted(order.index(change) for change in offered)


def test_the_fewest_gpus_that_fit_are_advised_by_number():
    answer = plan_training(question(framework="fsdp2", gpus=1))
    advised = next(advice for advice in answer.advice if "hardware.gpus" in advice.change)
    # 119.7 GiB of weights and states: one card cannot, four hold a quarter each.
    assert advised.change["hardware.gpus"] in (2, 3, 4)
    assert plan_training(question(framework="fsdp2", gpus=advised.change["hardware.gpus"])).fits


def test_the_longest_shorter_sequence_is_advised_once():
    asked = question(framework="fsdp2", gpus=8, sequence_length=524_288, layout={"context_parallel": 1})
    offered = [change for change in changes(asked) if change == "training.sequence_length"]
    assert len(offered) <= 1


def test_a_change_that_cannot_be_planned_is_left_out():
    def refuse(asked, **_):
        raise InvalidQuestion("never", pointer="/x")

    assert tuple(advice_for(question(gpus=1), UNFIT, refuse)) == ()


UNFIT = plan_training(question(gpus=1, framework="megatron", method="full", sequence_length=65_536))


def planned(verdict: str) -> Alternative:
    """Return the layout of UNFIT, judged otherwise."""
    plan = UNFIT.plan
    return Alternative(
        layout=plan.layout,
        peak_bytes=plan.memory.peak_bytes,
        margin_bytes=plan.memory.margin_bytes,
        step_seconds=plan.step.seconds,
        verdict=verdict,
    )


def test_a_change_that_does_not_fit_is_left_out():
    assert not UNFIT.fits
    assert tuple(advice_for(question(gpus=1), UNFIT, lambda changed, **_: planned("no"))) == ()


def test_a_change_that_fits_no_better_than_a_tight_plan_is_left_out():
    tight = replace(UNFIT, verdict="tight")
    assert tuple(advice_for(question(gpus=1), tight, lambda changed, **_: planned("tight"))) == ()
    better = tuple(advice_for(question(gpus=1), tight, lambda changed, **_: planned("fits")))
    assert {offer.verdict for offer in better} == {"fits"}


def tried(asked) -> list[dict]:
    """Return every change that is planned, in its order."""
    changes = (*keeping_the_result(asked), *changing_more(asked, asked, UNFIT))
    return [dict(change.change) for change in changes]


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        ({}, []),
        ({"zero_stage": 1}, [(2, None), (2, "optimizer"), (3, None), (3, "optimizer"), (3, "optimizer+parameters")]),
        ({"zero_stage": 2, "offload": "optimizer"}, [(3, None), (3, None), (3, "optimizer+parameters")]),
        ({"offload": "none"}, [(2, "optimizer"), (3, "optimizer"), (3, "optimizer+parameters")]),
        ({"zero_stage": 3, "offload": "optimizer+parameters"}, []),
    ],
)
def test_zero_rises_step_by_step_with_offload_between(layout, steps):
    found = [
        change for change in tried(question(layout=layout)) if {"layout.zero_stage", "layout.offload"} & set(change)
    ]
    now = layout.get("zero_stage")
    assert [(change.get("layout.zero_stage", now), change.get("layout.offload")) for change in found] == steps


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_wide_precisions_are_advised_to_mix_before_bf16_alone(precision: str):
    offered = [change for change in tried(question(gpus=1, precision=precision)) if "training.precision" in change]
    assert [change["training.precision"] for change in offered] == ["bf16-mixed", "bf16"]


def test_the_products_own_levers_come_before_hardware():
    offered = [next(iter(change)) for change in tried(question(gpus=1, framework="accelerate"))]
    hardware = offered.index("hardware.gpus")
    for lever in ("framework", "training.precision", "training.optimizer", "training.method"):
        assert offered.index(lever) < hardware


def test_a_plan_with_room_only_through_offload_is_advised_what_spares_it():
    # 1.56 billion parameters take 16 bytes each, 23.2 GiB, of a card with 23.6. Optimizers of 8 bits, which Hugging
    # Face's stack has, would leave too little room for how far its peaks lie apart.
    xl = describe_config(catalogue().model("openai-community/gpt2-xl").config, name="openai-community/gpt2-xl")
    card = replace(hardware(1), gpu=catalogue().gpu("rtx-4090-24gb"))
    answer = plan_training(question(model=xl, hardware=card, sequence_length=1024, global_batch_size=16))
    assert (answer.verdict, answer.plan.layout.offload != "none") == ("fits", True)
    offers = {next(iter(offer.change)): offer for offer in answer.advice}
    assert offers["training.precision"].change["training.precision"] == "bf16"
    assert offers["training.precision"].step_seconds_difference < 0
    assert "training.optimizer" not in offers


def test_four_bits_that_gain_nothing_over_sixteen_are_not_offered():
    offers = plan_training(question(framework="fsdp2", gpus=1)).advice
    by_method = {offer.change["training.method"]: offer for offer in offers if "training.method" in offer.change}
    if {"lora", "qlora"} <= set(by_method):
        lora, qlora = by_method["lora"], by_method["qlora"]
        assert qlora.peak_bytes < lora.peak_bytes or qlora.step_seconds < lora.step_seconds


def test_a_loss_that_keeps_its_logits_is_the_first_to_go():
    asked = question(gpus=1, fused_cross_entropy=False, precision="fp32", attention="eager", micro_batch_size=4)
    assert [next(iter(change)) for change in tried(asked)[:4]] == [
        "training.fused_cross_entropy", "training.attention", "training.micro_batch_size", "training.precision",
    ]  # fmt: skip


def test_activations_that_may_not_leave_are_advised_to_the_host_before_any_gpu():
    asked = question(
        framework="megatron",
        gpus=8,
        global_batch_size=8,
        sequence_length=24_576,
        micro_batch_size=1,
        recompute=NO_RECOMPUTE,
        activation_offload=False,
        layout={"data_parallel": 8},
    )
    offered = [each.change for each in keeping_the_result(asked)]
    assert {"training.activation_offload": True} in offered
    assert not any("hardware.gpus" in change for change in offered)
    assert "training.activation_offload" not in [
        name for each in keeping_the_result(replace(asked, activation_offload=None)) for name in each.change
    ]


def test_differences_are_those_to_the_plan_that_does_not_fit():
    answer = plan_training(question(framework="fsdp2", gpus=1))
    for offer in answer.advice:
        assert offer.peak_bytes_difference == offer.peak_bytes - answer.plan.memory.peak_bytes
        assert offer.step_seconds_difference == pytest.approx(offer.step_seconds - answer.plan.step.seconds)


def test_a_larger_gpu_of_the_catalogue_is_advised_by_name():
    answer = plan_training(question(framework="fsdp2", gpus=1, layout={"offload": "none"}))
    advised = next(offer.change["hardware.gpu"] for offer in answer.advice if "hardware.gpu" in offer.change)
    assert catalogue().gpu(advised).memory_bytes > 85_029_158_912


def test_smaller_models_of_the_family_are_tried_from_the_largest_down():
    large = describe_config(catalogue().model("Qwen/Qwen2.5-32B").config, name="Qwen/Qwen2.5-32B")
    names = [change["model"] for change in tried(question(model=large)) if "model" in change]
    assert names == ["Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-1.5B"]


def test_a_model_of_no_known_family_has_no_smaller_one():
    assert not [change for change in tried(question()) if "model" in change]


def test_a_fixed_degree_is_freed_and_the_chosen_one_named():
    # 80 layers in even stages on 32 GPUs are at most 16 stages, which fit only tightly.
    even = {"tensor_parallel": 1, "pipeline_layout": "even", "offload": "none"}
    asked = question(framework="megatron", model=llama(LLAMA_3_70B), gpus=32, layout=even)
    offers = [offer.change for offer in plan_training(asked).advice]
    (freed,) = (change["layout.tensor_parallel"] for change in offers if "layout.tensor_parallel" in change)
    assert freed > 1


def asking_much(**changes):
    """Eager scores, kept logits, large micro-batches and unsharded states: no one of them alone is too much."""
    return question(
        framework="ddp",
        layout={"tensor_parallel": 1},
        fused_cross_entropy=False,
        attention="eager",
        micro_batch_size=8,
        recompute=NO_RECOMPUTE,
        **changes,
    )


def test_where_no_single_change_will_do_the_first_two_that_do_are_offered():
    (offer,) = plan_training(asking_much(gpus=8)).advice
    assert offer.change == {"training.attention": "flash", "framework": "any"}
    assert offer.fits
    assert "with both changes, and with neither of them alone" in offer.reason


def test_a_version_is_left_away_with_the_framework_that_it_was_of():
    asked = question(gpus=1, sequence_length=4096, framework="fsdp2", framework_version="2025-01")
    offers = [advice.change for advice in plan_training(asked).advice]
    assert {"framework": "any", "framework_version": None} in offers
    assert all(change.get("framework_version", "kept") is None for change in offers if "framework" in change)
    assert all("framework_version" not in change for change in offers if "framework" not in change)


def test_two_changes_of_one_thing_are_no_pair():
    asked = question(framework="deepspeed", gpus=2, layout={"zero_stage": 1, "offload": "none"}, recompute=NO_RECOMPUTE)
    pairs = [pair.change for pair in in_pairs(asked)]
    assert {"training.recompute": "full", "layout.zero_stage": 3, "layout.offload": "optimizer"} in pairs
    # A layout that is freed leaves nothing of itself fixed, and a later step of ZeRO is no second change.
    assert all(not ("layout" in pair and any(field.startswith("layout.") for field in pair)) for pair in pairs)
    assert len(pairs) == len({str(sorted(pair.items(), key=str)) for pair in pairs})


def test_where_no_two_changes_will_do_they_are_offered_together():
    asked = asking_much(gpus=8, sequence_length=65_536, global_batch_size=64)
    together = {"layout", "framework", "training.attention", "training.micro_batch_size"}
    (offer,) = (offer for offer in plan_training(asked).advice if together <= set(offer.change))
    assert offer.fits
    assert offer.change["training.micro_batch_size"] >= 1


def test_a_tight_plan_is_advised_the_fewest_more_gpus_that_leave_room():
    answer = plan_training(question(gpus=2, layout={"offload": "none"}))
    assert answer.verdict == "tight"
    advised = next(offer.change["hardware.gpus"] for offer in answer.advice if "hardware.gpus" in offer.change)
    assert advised == 3


@pytest.mark.parametrize(
    ("now", "tried"), [(1, [2, 3, 4, 6, 8]), (6, [8, 16, 24, 40, 48]), (8, [16, 24, 32, 48, 64]), (64, [80, 96, 128])]
)
def test_a_tight_plan_is_tried_on_ever_more_gpus_in_whole_nodes(now: int, tried: list[int]):
    asked = question(gpus=now, global_batch_size=1024)
    tight = replace(plan_training(asked, stop_advising=lambda: True), verdict="tight", fits=True)
    changed = (change for change in changing_more(asked, asked, tight) if change.kind == "gpus")
    assert [change.question.hardware.gpus.minimum for change in changed][: len(tried)] == tried


def test_no_change_is_tried_once_nobody_waits():
    def stopped(_question, **_):
        raise PlanningStopped

    asked = question(framework="fsdp2", gpus=1)
    with pytest.raises(PlanningStopped):
        tuple(advice_for(asked, plan_training(asked), stopped))


def test_advice_with_an_end_of_its_own_is_what_was_found_until_then():
    asked = question(framework="fsdp2", gpus=1, sequence_length=65_536)
    whole = plan_training(asked).advice
    tries = itertools.count()
    # As in a search that is asked once for each change: the third one is not planned to its end.
    some = plan_training(asked, stop_advising=lambda: next(tries) >= 3)
    assert some.advice == whole[: len(some.advice)]
    assert plan_training(asked, stop_advising=lambda: True).advice == ()


def test_the_host_memory_that_a_plan_needs_is_offered_in_whole_gib():
    # 8 billion parameters with fp32 weights, gradients and states on the host, 16 bytes and more each, need 120 GiB.
    asked = question(framework="accelerate", layout={"offload": "optimizer+parameters"}, gpus=1)
    asked = replace(asked, hardware=replace(asked.hardware, host_memory_bytes=32 * 2**30))
    answer = plan_training(asked)
    assert answer.verdict == "no"
    (offer,) = (offer for offer in answer.advice if "hardware.host_memory_bytes" in offer.change)
    needed = offer.change["hardware.host_memory_bytes"]
    assert (offer.verdict, needed % 2**30) == ("fits", 0)
    assert 0 <= needed - answer.plan.memory.node_host_bytes < 2**30
    roomy = replace(asked, hardware=replace(asked.hardware, host_memory_bytes=needed))
    assert plan_training(roomy).verdict == "fits"


@pytest.mark.slow
def test_no_gpus_are_offered_that_take_longer_than_states_on_the_host():
    # On 96 H100 with 94 GB it would fit without the host, and take eight times as long.
    largest = describe_config(catalogue().model("meta-llama/Llama-3.1-405B").config, name="meta-llama/Llama-3.1-405B")
    answer = plan_training(question(model=largest, gpus=96, global_batch_size=15_360))
    assert answer.plan.layout.offload != "none"
    bought = [each for each in answer.advice if any(field.startswith("hardware.") for field in each.change)]
    assert all(each.step_seconds < answer.plan.step.seconds for each in bought)
    assert {field for each in bought for field in each.change} >= {"hardware.gpus"}


@pytest.mark.slow
def test_stages_that_no_gpu_has_room_for_are_divided_otherwise_before_anything_is_bought():
    largest = describe_config(catalogue().model("meta-llama/Llama-3.1-405B").config, name="meta-llama/Llama-3.1-405B")
    # 26 of 126 layers on the first of 16 stages; without them all fits.
    layout = {"pipeline_parallel": 16, "tensor_parallel": 8, "pipeline_layout": LONG_FIRST_STAGE, "offload": "none"}
    asked = question(model=largest, gpus=128, global_batch_size=96, framework="megatron", layout=layout)
    offers = plan_training(asked).advice
    assert list(offers[0].change) == ["layout.pipeline_layout"]
    assert offers[1].change == {"layout": {"offload": "none"}}
    assert not any(field.startswith("hardware.") for each in offers for field in each.change)


def test_no_host_memory_is_offered_to_what_lacks_none():
    assert "hardware.host_memory_bytes" not in changes(question(framework="ddp", gpus=8))


@pytest.mark.slow
def test_offers_beside_a_plan_on_the_host_need_nothing_there():
    machine = hardware(8, host_memory_bytes=2**41)
    answer = plan_training(replace(question(model=llama(LLAMA_3_70B), gpus=8), hardware=machine))
    assert answer.verdict == "fits"
    assert answer.plan.layout.offload != "none"
    assert answer.advice
    for offer in answer.advice:
        assert offer.change.get("layout.offload") == "none"
        assert "states on the host" not in offer.reason


def test_the_nearest_batches_that_all_gpus_share_are_tried_where_this_one_is_none():
    # 15,360 lies between 15 and 16 times 1,000, nearer to 15.
    sequences = [
        change.get("training.global_batch_size") for change in tried(question(gpus=1000, global_batch_size=15_360))
    ]
    assert [batch for batch in sequences if batch is not None] == [15_000, 16_000]
    assert not any("training.global_batch_size" in change for change in tried(question(gpus=8, global_batch_size=64)))
    # Fewer sequences than GPUs: there is no lower multiple.
    few = [change.get("training.global_batch_size") for change in tried(question(gpus=8, global_batch_size=4))]
    assert [batch for batch in few if batch is not None] == [8]


def on_consumer_cards(model: str, gpus: int, **asked):
    facts = catalogue()
    card = next(gpu for gpu in facts.gpus if gpu.id == "rtx-4090-24gb")
    described = describe_config(next(each.config for each in facts.models if each.id == model), name=model)
    return question(model=described, sequence_length=2048, **asked, hardware=hardware(gpus, gpu=card))


def test_the_same_stack_is_no_other_framework():
    asked = on_consumer_cards(
        "meta-llama/Llama-3.1-8B",
        1,
        framework="accelerate",
        method="qlora",
        global_batch_size=16,
        micro_batch_size=1,
        activation_offload=False,
    )
    # At PCIe 5's rate weights on the host take less than computing a layer again.
    card = replace(asked.hardware.gpu, pcie_bytes_per_second=63e9)
    answer = plan_training(replace(asked, hardware=replace(asked.hardware, gpu=card)))
    assert answer.plan.layout.offload != "none"
    assert {"layout.offload": "none"} in [dict(each.change) for each in answer.advice]
    others = [each for each in answer.advice if "framework" in each.change]
    assert all(each.change["framework"] != "any" or "accelerate" not in each.reason for each in others)


def test_no_change_is_offered_twice():
    # Stage 3 with the offload that was asked for is one question, whichever step leads to it.
    asked = on_consumer_cards(
        "Qwen/Qwen2.5-7B",
        4,
        framework="deepspeed",
        global_batch_size=32,
        layout={"zero_stage": 2, "offload": "optimizer"},
    )
    offered = [str(sorted(advice.change.items(), key=str)) for advice in plan_training(asked).advice]
    assert len(offered) == len(set(offered)) > 0


def test_states_on_nvme_are_not_said_to_lie_on_the_host():
    asked = on_consumer_cards(
        "Qwen/Qwen2.5-7B",
        4,
        framework="deepspeed",
        global_batch_size=32,
        layout={"zero_stage": 3, "offload": "optimizer+parameters", "offload_target": "nvme"},
    )
    asked = replace(asked, hardware=replace(asked.hardware, host_memory_bytes=64 * 2**30))
    offered = [advice for advice in plan_training(asked).advice if "deepspeed" in advice.reason]
    assert offered
    assert all(advice.reason.endswith("optimizer states and parameters on NVMe.") for advice in offered)


def on_short_hosts(**changes):
    """Llama 3 70B on eight GPUs whose host has no memory for its states."""
    asked = question(model=llama(LLAMA_3_70B), gpus=8, sequence_length=2048, global_batch_size=512, **changes)
    return replace(asked, hardware=replace(asked.hardware, host_memory_bytes=512 * 2**30))


@pytest.mark.parametrize(
    ("fixed", "change"),
    [
        ({"framework": "any"}, {"layout.offload_target": "nvme"}),
        ({"framework": "deepspeed"}, {"layout.offload_target": "nvme"}),
        ({"framework": "fsdp2"}, {"layout.offload_target": "nvme", "framework": "deepspeed"}),
        (
            {"framework": "deepspeed", "layout": {"zero_stage": 3, "offload": "optimizer"}},
            {"layout": {"offload_target": "nvme"}},
        ),
    ],
)
def test_drives_are_the_last_lever_before_other_gpus(fixed, change):
    advice = plan_training(on_short_hosts(**fixed)).advice
    changes = [dict(entry.change) for entry in advice]
    place = changes.index(change)
    assert advice[place].reason.endswith("on NVMe.")
    assert "Set hardware.nvme_bytes_per_second" in advice[place].reason
    assert not any("hardware.gpus" in each or "model" in each for each in changes[:place])
    assert not any("training.method" in each for each in changes[place:])


def test_drives_that_were_searched_are_not_advised():
    asked = on_short_hosts(framework="any")
    asked = replace(asked, hardware=replace(asked.hardware, nvme_bytes_per_second=3e9))
    answer = plan_training(asked)
    assert answer.plan.layout.offload_target == "nvme"
    assert all("nvme" not in str(advice.change) for advice in answer.advice)


def test_a_job_that_fits_on_fewer_gpus_alone_is_advised_those_too():
    # In even stages 512 GPUs have no divisor of 126 layers but 2; 288 and 576 have 9 and 18.
    model = describe_config(catalogue().model("llama-3.1-405b").config, name="llama-3.1-405b")
    even = {"pipeline_layout": "even"}
    asked = question(model=model, framework="megatron", gpus=512, global_batch_size=2048, layout=even)
    offers = plan_training(asked).advice
    free = next(offer for offer in offers if "layout.pipeline_layout" in offer.change)
    fewer, *more = [offer for offer in offers if "hardware.gpus" in offer.change]
    assert fewer.change["hardware.gpus"] < 512
    assert fewer.reason.startswith("The job fits on fewer GPUs: this is the smallest number tried from 256 on.")
    for offer in more:
        assert offer.change["hardware.gpus"] > 512
        assert offer.step_seconds < free.step_seconds
        assert offer.reason.startswith("The next larger number of GPUs tried on which the job fits.")


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_within_a_node_fewer_gpus_are_not_looked_for(gpus):
    model = describe_config(catalogue().model("llama-3.1-405b").config, name="llama-3.1-405b")
    answer = plan_training(question(model=model, framework="megatron", gpus=gpus))
    assert not any("fewer GPUs" in offer.reason for offer in answer.advice)


def test_an_offer_that_names_a_framework_is_the_plan_of_that_framework_alone():
    # Among all stacks 3 s come first; of the one that is named, asked for by itself, 2 s do.
    def best(changed, **_):
        found = planned("fits")
        seconds = 3.0 if changed.framework == "any" else 2.0
        return replace(found, layout=replace(found.layout, framework="accelerate"), step_seconds=seconds)

    offers = advice_for(question(gpus=1, framework="megatron"), UNFIT, best)
    named = {offer.change["framework"]: offer.step_seconds for offer in offers if "framework" in offer.change}
    assert named == {"accelerate": 2.0, "any": 3.0}


def test_an_offer_of_another_framework_says_the_precision_that_was_the_first_ones_own():
    # torchtune computes in bf16 where nothing is said, and the others in bf16-mixed.
    def best(_changed, **_):
        found = planned("fits")
        return replace(found, layout=replace(found.layout, framework="accelerate"))

    asked = question(gpus=1, framework="torchtune", precision="bf16")
    offers = [offer for offer in advice_for(asked, UNFIT, best) if "framework" in offer.change]
    assert {offer.change["training.precision"] for offer in offers} == {"bf16"}


def test_a_freed_degree_that_comes_back_as_it_was_is_no_other_one():
    def best(_changed, **_):
        found = planned("fits")
        return replace(found, layout=replace(found.layout, pipeline_parallel=8, tensor_parallel=2))

    asked = question(gpus=8, framework="megatron", layout={"pipeline_parallel": 8, "tensor_parallel": 1})
    reasons = [offer.reason for offer in advice_for(asked, UNFIT, best)]
    assert any(reason.startswith("Another tensor_parallel") for reason in reasons)
    assert not any(reason.startswith("Another pipeline_parallel") for reason in reasons)
