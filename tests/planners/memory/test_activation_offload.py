"""Activations on the host: what stays on the device, what the host holds, and what the copies take."""

from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import deciding_stages
from plimsoll.planners.memory.activation_offload import micro_batch_offload_bytes
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.peak import memory_of, peak_bytes
from plimsoll.planners.search.axes import offload_choices
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.activation_traffic import activation_offload_seconds, waiting_bytes
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import hardware, question, small_llama

ASKED = question(model=small_llama(), gpus=1, sequence_length=128, global_batch_size=2)
FULL = 2


def _job(framework="accelerate"):
    return training_job(ASKED, load_profile(framework))


def test_with_full_recompute_trl_sends_every_layers_input_the_last_norm_s_tensors_and_the_log_softmax():
    # 4 layers keep 16,384 tokens x 64 features x 4 bytes (autocast's stream is fp32) = 4,194,304 bytes each. The last
    # norm keeps its input twice in fp32 (8 x 64), a statistic (4) and its output in 16 bits (2 x 64) for each token:
    # 644 bytes. The log-softmax is 16,384 x 1,000 in fp32.
    rows = candidates_from_rows([{"recompute": FULL, "activation_offload": moved} for moved in (False, True)])
    long = question(model=small_llama(), gpus=1, sequence_length=16_384, global_batch_size=2)
    job = training_job(long, load_profile("accelerate"))
    sent = 4 * 4_194_304 + 16_384 * (644 + 4 * 1000)
    assert micro_batch_offload_bytes(rows, job).tolist() == [0, sent]
    assert memory_of(rows, 1, job, hardware(1)).host_bytes == sent


def test_the_device_is_relieved_of_all_layers_but_the_one_at_work():
    # Backwards the top layer is whole, its input among what it saves, and the fp32 inputs of the three below are gone.
    wide = question(model=small_llama(vocab_size=8), gpus=1, sequence_length=4096, global_batch_size=2)
    job = training_job(wide, load_profile("ddp"))
    rows = candidates_from_rows([{"recompute": FULL, "activation_offload": moved} for moved in (False, True)])
    plain, moved = (memory_of(rows, index, job, hardware(1)) for index in (0, 1))
    assert plain.phase == moved.phase == "backward"
    assert plain.items.activations - moved.items.activations == 3 * 4096 * 64 * 4


def test_a_synchronous_copy_takes_the_link_down_and_up():
    # 4 layers x 128 tokens x 64 features x 4 bytes = 131,072 bytes; of the head 128 x 644 = 82,432, its matrix cast,
    # 2 x 64,000, and the log-softmax twice, 2 x 4 x 128,000: 1,365,504 bytes down and up for each of two micro-batches
    # at 64 GB/s x 0.8 = 51.2 GB/s: 106.68 us.
    rows = candidates_from_rows([{"recompute": FULL, "activation_offload": True}])
    busy = np.array([1.0])
    seconds = activation_offload_seconds(
        rows, _job("ddp"), hardware(1), load_efficiency("ddp", "test-80gb"), forward=busy, backward=busy
    )
    assert seconds[0] == pytest.approx(106.68e-6)


# 131,072 bytes of inputs, 82,432 of the last norm and 512,000 of log-softmax, twice, at 51.2 GB/s.
ONE_WAY_SECONDS = 2 * 725_504 / 51.2e9


@pytest.mark.parametrize(
    ("pass_seconds", "exposed"),
    [(1.0, 0.0), (ONE_WAY_SECONDS, 0.0), (ONE_WAY_SECONDS - 3e-6, 2 * 3e-6)],
)
def test_an_overlapped_copy_shows_only_what_the_pass_does_not_hide(pass_seconds, exposed):
    rows = candidates_from_rows([{"recompute": FULL, "activation_offload": True}])
    busy = np.array([pass_seconds])
    seconds = activation_offload_seconds(
        rows, _job(), hardware(1), load_efficiency("accelerate", "test-80gb"), forward=busy, backward=busy
    )
    assert seconds[0] == pytest.approx(exposed, abs=1e-12)


def test_first_layers_that_send_all_they_keep_leave_what_the_others_keep():
    # Llama 3 8B, 8,192 tokens: a layer of 32 keeps so much, and 20 of them send it; at the loss 12 layers' are there.
    whole = {"framework": "megatron", "gpus": 8, "global_batch_size": 16}
    asked = question(**whole, activation_offload=True, offload_layers=20)
    plain, own = (training_job(each, load_profile("megatron")) for each in (question(**whole), asked))
    rows = candidates_from_rows(
        [{"data_parallel": 8, "zero_stage": 1, "activation_offload": moved} for moved in (0, 1)]
    )
    kept = activity(rows, deciding_stages(rows, plain), plain).stage.max()
    there, left = (memory_of(rows, index, own, hardware(8)) for index in (0, 1))
    # The layer at work is there whole, so that no more than one layer's is counted twice.
    freed = there.items.activations - left.items.activations
    assert kept * 19 / 32 <= freed <= kept * 20 / 32
    assert left.host_bytes == pytest.approx(kept * 20 / 32, rel=1e-6)
    assert micro_batch_offload_bytes(rows, own).tolist() == pytest.approx([0, kept * 20 / 32])
    efficiency = load_efficiency("megatron", "test-80gb")
    assert waiting_bytes(rows, own, hardware(8), efficiency, forward=np.array([0.0])).max() == 0


@pytest.mark.parametrize("layers", [0, 32])
def test_layers_that_are_sent_leave_one_and_are_some(layers):
    with pytest.raises(InvalidQuestion, match="at least 1 and at most 31") as refusal:
        plan_without_advice(question(framework="megatron", activation_offload=True, offload_layers=layers))
    assert refusal.value.pointer == "/training/activation_offload/layers"


def test_a_plan_of_whole_layers_on_the_host_has_no_pipeline_and_recomputes_nothing():
    layout = plan_without_advice(question(framework="megatron", activation_offload=True, offload_layers=20)).plan.layout
    assert (layout.pipeline_parallel, layout.recompute, layout.offload_modules) == (1, "none", ())
    assert layout.activation_offload_asked == {"layers": 20}


def test_a_stack_that_sends_no_whole_layers_says_so():
    with pytest.raises(InvalidQuestion, match="offloads no number of whole layers"):
        plan_without_advice(question(framework="accelerate", activation_offload=True, offload_layers=2))


@pytest.mark.parametrize(("forward_seconds", "waiting"), [(1.0, 0), (40.96e-6, 8_388_608), (0.0, 16_777_216)])
def test_copies_that_megatrons_passes_leave_no_time_for_wait_on_the_device(forward_seconds, waiting):
    # A stage's one layer sends queries and attention's output, 16,384 tokens x 64 features x 2 bytes each; keys have
    # half the 2^20 elements that are sent at the least. That is 4,194,304 bytes; 40.96 us at 51.2 GB/s copy half of
    # them, and the first of four stages has four micro-batches in flight.
    asked = question(
        model=small_llama(),
        gpus=4,
        sequence_length=16_384,
        global_batch_size=8,
        framework="megatron",
        activation_offload=True,
        offload_modules=("core_attn",),
    )
    rows = candidates_from_rows([{"pipeline_parallel": 4, "activation_offload": True}])
    job, efficiency = training_job(asked, load_profile("megatron")), load_efficiency("megatron", "test-80gb")
    found = waiting_bytes(rows, job, hardware(4), efficiency, forward=np.array([8 * forward_seconds]))
    assert found[0] == pytest.approx(waiting)


def test_no_copies_wait_where_a_stack_waits_for_them():
    rows = candidates_from_rows([{"recompute": FULL, "activation_offload": True}])
    found = waiting_bytes(
        rows, _job(), hardware(1), load_efficiency("accelerate", "test-80gb"), forward=np.array([0.0])
    )
    assert found[0] == 0


@pytest.mark.parametrize(
    ("asked", "choices"),
    [
        # Nothing on the host first, then optimizer and parameters (2), each without and with activations.
        (None, [(0, False), (0, True), (2, False), (2, True)]),
        (True, [(0, True), (2, True)]),
        (False, [(0, False), (2, False)]),
    ],
)
def test_what_is_asked_for_is_tried_first_and_what_is_refused_never(asked, choices):
    assert list(offload_choices(question(activation_offload=asked), load_profile("accelerate").can)) == choices


def test_a_stack_that_cannot_offload_activations_is_refused():
    with pytest.raises(InvalidQuestion) as refusal:
        plan_without_advice(question(framework="fsdp2", activation_offload=True))
    assert refusal.value.pointer == "/training/activation_offload"


def test_a_plan_that_offloads_activations_says_so():
    plan = plan_without_advice(question(framework="accelerate", activation_offload=True)).plan
    assert plan.layout.activation_offload
    assert plan.memory.host_bytes > 0


def _activations_left(framework, layers, **row):
    model = small_llama(num_hidden_layers=layers, vocab_size=8)
    asked = question(model=model, gpus=2, sequence_length=4096, global_batch_size=2, precision="bf16-mixed")
    job = training_job(asked, load_profile(framework))
    rows = candidates_from_rows([{"activation_offload": True, "data_parallel": 2, "shard_group": 2, **row}])
    return memory_of(rows, 0, job, hardware(2)).items.activations


def test_trl_leaves_what_comes_twice_of_every_layer_below():
    # Of each further layer: two norms' inputs in fp32, their outputs and attention's output: 64 x (8 + 4 + 2) bytes.
    grown = _activations_left("accelerate", 5, zero_stage=3) - _activations_left("accelerate", 4, zero_stage=3)
    assert grown == 4096 * 64 * 14


def test_torch_s_hook_leaves_nothing_of_other_layers():
    assert _activations_left("ddp", 5, zero_stage=0) == _activations_left("ddp", 4, zero_stage=0)


# 65,536 tokens of 64 features are 4 Mi elements, of which Megatron-Core sends any tensor of 1 Mi or more: queries and
# attention's output of 64 features, keys and values of 32. Of the 4 heads' statistics there are too few.
LONG = question(model=small_llama(vocab_size=8), gpus=1, sequence_length=65_536, global_batch_size=2)
FEATURE = 65_536 * 2
ROW = {"activation_offload": True}


def _by_parts(*modules, **row):
    job = training_job(replace(LONG, activation_offload=True, offload_modules=modules), load_profile("megatron"))
    rows = candidates_from_rows([{**row, **moved} for moved in ({}, ROW)])
    return job, rows


def test_megatron_sends_a_part_s_tensors_as_often_as_they_are_kept_of_all_layers_but_the_next_one():
    # Of 4 layers the highest stays: 3 x (operands of 128 features, and the output of 64 twice).
    job, rows = _by_parts("core_attn", "attn_proj")
    assert micro_batch_offload_bytes(rows, job).tolist() == [0, 3 * 256 * FEATURE]


def test_the_host_has_a_megatron_layer_s_parts_of_all_layers_as_the_first_step_sends_them():
    job, rows = _by_parts("core_attn", "attn_proj")
    assert memory_of(rows, 1, job, hardware(1)).host_bytes == 4 * 256 * FEATURE


@pytest.mark.parametrize(
    ("modules", "features"),
    [
        # Attention's output stays for the projection behind it, unless that sends it too.
        (("core_attn",), 128),
        (("core_attn", "attn_proj"), 192),
        # The norm's input and output; the model's own code names the first layer's input until the loss is known.
        (("qkv_linear",), 128),
    ],
)
def test_the_device_is_relieved_of_a_megatron_layer_s_parts_below_the_highest(modules, features):
    job, rows = _by_parts(*modules)
    plain, moved = (memory_of(rows, index, job, hardware(1)) for index in (0, 1))
    assert plain.phase == moved.phase == "backward"
    assert plain.items.activations - moved.items.activations == 3 * features * FEATURE


def test_tensors_of_too_few_elements_stay():
    # 16,384 tokens: 1 Mi elements of 64 features are sent, half as many of keys and values are not.
    few = replace(LONG, sequence_length=16_384, activation_offload=True, offload_modules=("core_attn",))
    job = training_job(few, load_profile("megatron"))
    assert micro_batch_offload_bytes(candidates_from_rows([ROW]), job) == 3 * 128 * 16_384 * 2


def test_a_plan_names_the_parts_that_it_offloads():
    asked = replace(LONG, framework="megatron", activation_offload=True, offload_modules=("core_attn",))
    assert plan_without_advice(asked).plan.layout.offload_modules == ("core_attn",)
    assert plan_without_advice(replace(asked, offload_modules=())).plan.layout.offload_modules == (
        "qkv_linear",
        "core_attn",
        "attn_proj",
    )


def test_parts_by_name_are_refused_of_a_stack_that_offloads_all_at_once():
    with pytest.raises(InvalidQuestion, match="no parts of layers by name") as refusal:
        plan_without_advice(
            replace(LONG, framework="accelerate", activation_offload=True, offload_modules=("core_attn",))
        )
    assert refusal.value.pointer == "/training/activation_offload"


def test_a_layout_that_keeps_its_activations_needs_the_same_beside_one_that_does_not():
    # Of a wide vocabulary the logits decide, as the first layer's input is named still.
    wide = replace(LONG, model=small_llama(vocab_size=64_000), sequence_length=16_384, offload_modules=("qkv_linear",))
    job = training_job(replace(wide, activation_offload=True), load_profile("megatron"))
    alone, beside = candidates_from_rows([{}]), candidates_from_rows([{}, ROW])
    assert peak_bytes(alone, job)[0] == peak_bytes(beside, job)[0]
