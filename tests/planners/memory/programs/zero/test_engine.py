"""A step of DeepSpeed's engine: numbers worked out by hand, and the program over runs against it over every layer."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.reserved_memory.planned_events import each_by_itself
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import FULL, NONE, candidates_from_rows
from plimsoll.planners.memory.programs.question import question_of
from plimsoll.planners.memory.programs.zero.engine import zero_engine
from plimsoll.planners.memory.programs.zero.stage import zero_engine_stage
from plimsoll.planners.memory.steps.at_stage import at_stage
from plimsoll.planners.memory.steps.layers import Part
from plimsoll.planners.memory.steps.record import RecordedStep
from plimsoll.planners.memory.steps.step import Step
from plimsoll.planners.questions import Lora
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama, small_mixtral

# Matrices of 4,096, 2,048, 2,048 and 4,096 and three of 8,192, two norms of 64; embedding and head of 64,000 each.
LAYER = 36_864 + 128
ELEMENTS = 4 * LAYER + 2 * 64_000 + 64
# The first half of all, which ends 32 elements into the third layer, touches that layer's query whole.
TOUCHED = 64_000 + 2 * LAYER + 4_096
BUCKET = 2 * 500_000_000  # reduce_bucket_size elements of 2 bytes


def _asked(*layouts, model=None, micro_batches=1, profile=None, **training):
    gpus = layouts[0]["data_parallel"]
    asked = question(
        model=model or small_llama(),
        gpus=gpus,
        global_batch_size=gpus * micro_batches,
        framework="deepspeed",
        **{"sequence_length": 8, **training},
    )
    job = training_job(asked, profile or load_profile("deepspeed"))
    candidates = candidates_from_rows(list(layouts))
    return question_of(candidates, job)


def _stage(zero_stage, *, gpus=2, offload=0, **asked):
    layout = {"data_parallel": gpus, "zero_stage": zero_stage, "offload": offload}
    return zero_engine_stage(_asked(layout, **asked))


@pytest.mark.parametrize(
    ("zero_stage", "optimizer", "gradients", "temporaries"),
    # AdamW at stage 0: each gradient in fp32, then all end to end; Lion has no second copy.
    [
        (0, "adamw", 2 * ELEMENTS, 8 * ELEMENTS),
        (0, "lion", 2 * ELEMENTS, 4 * ELEMENTS),
        (1, "adamw", 2 * TOUCHED, (2 + 4) * ELEMENTS // 2),
        (2, "adamw", 2 * TOUCHED, (2 + 4) * ELEMENTS // 2),
        # Everything divides by two; the parts make one sub-group.
        (3, "adamw", 2 * ELEMENTS // 2, (2 + 4) * ELEMENTS // 2),
    ],
)
def test_the_update_finds_and_makes_so_much(zero_stage, optimizer, gradients, temporaries):
    rest = _stage(zero_stage, optimizer=optimizer).rest
    assert rest.all_gradients.item() == gradients
    assert rest.temporaries.item() == temporaries


@pytest.mark.parametrize(
    ("zero_stage", "micro_batches", "before", "later", "throughout"),
    [(0, 1, 0, 0, 0), (1, 1, 0, 1, 0), (1, 4, 1, 1, 0), (2, 1, 0, 1, 0), (2, 4, 0, 1, 0), (3, 4, 0, 0, 1)],
)
def test_the_bucket_is_made_with_the_first_gradient_or_never_goes(zero_stage, micro_batches, before, later, throughout):
    stage = _stage(zero_stage, micro_batches=micro_batches)
    made = [stage.bucket_before.item(), stage.bucket.item(), stage.resting.item()]
    assert made == [before * BUCKET, later * BUCKET, throughout * BUCKET]


@pytest.mark.parametrize(("zero_stage", "micro_batches", "kept"), [(0, 1, 0), (1, 4, 2 * ELEMENTS), (3, 1, ELEMENTS)])
def test_what_micro_batches_before_have_left(zero_stage, micro_batches, kept):
    assert _stage(zero_stage, micro_batches=micro_batches).rest.kept_gradients.item() == kept


def test_a_later_micro_batch_of_stage_two_keeps_the_part_twice():
    stage = _stage(2, micro_batches=4)
    assert stage.rest.kept_gradients.item() == 2 * TOUCHED
    # All fits into one bucket, which both parts have of: it is copied as it is flushed at the end.
    assert stage.flush.item() == 2 * ELEMENTS


def test_of_all_ranks_the_fullest_decides():
    # DeepSpeed's own engine, every rank traced: GiB.
    model = small_llama(
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
    )
    of_all_ranks = {
        (1, 1): (11.76, 11.76, 12.17, 11.76),
        (2, 1): (9.18, 9.18, 10.54, 9.70, 9.61, 10.50, 10.14, 10.14),
        (2, 2): (10.16, 10.16, 11.93, 10.25, 10.06, 11.85, 11.11, 11.11),
    }
    for (zero_stage, micro_batches), traced in of_all_ranks.items():
        layout = {"data_parallel": 8, "zero_stage": zero_stage, "recompute": FULL}
        step = Step()
        asked = _asked(layout, model=model, micro_batches=micro_batches, sequence_length=512)
        zero_engine(step, zero_engine_stage(asked))
        assert step.peak.item() / 2**30 == pytest.approx(max(traced), abs=0.005)


def test_stage_zero_copies_all_gradients_at_the_end():
    assert _stage(0).at_boundary.item() == 2 * ELEMENTS


def test_a_small_model_is_gathered_throughout():
    stage = _stage(3)
    norms = 9 * 64
    # Every matrix is below what stays gathered from step to step.
    assert stage.persistent.item() == 2 * ELEMENTS > 2 * norms
    assert stage.embedding.most.item() == stage.head.most.item() == 0


def test_on_the_host_no_gradient_is_kept_and_the_largest_tensor_has_a_buffer():
    stage = _stage(2, offload=1)
    assert stage.resting.item() == 2 * 64_000
    assert stage.rest.all_gradients.item() == stage.rest.temporaries.item() == 0
    # The last bucket crosses the parts' border; the head's norm in fp64 is less than its copy.
    assert stage.flush.item() == 2 * ELEMENTS > 8 * 64_000


def test_a_full_bucket_is_flushed_within_a_layer():
    profile = load_profile("deepspeed")
    told = replace(profile.zero, reduce_bucket_elements=70_000)
    stage = _stage(2, gpus=1, profile=replace(profile, zero=told))
    highest = stage.layers.runs[-1].layers[Part.FIRST][0].bytes
    last, _, first, *_ = (moment.gradients.item() for moment in highest.moments)
    # Head and norm are 64,064: down_proj fills no more than 72,256, so that the bucket goes as it comes.
    assert last == 2 * (ELEMENTS + 8_192)
    assert highest.traffic.left.item() == 2 * ELEMENTS
    assert first == last


@pytest.mark.parametrize("model", [small_llama(num_hidden_layers=7), small_mixtral(num_hidden_layers=5)])
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("recompute", [NONE, FULL])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_runs_of_layers_are_as_all_of_them(model, micro_batches, recompute, method):
    profile = load_profile("deepspeed")
    told = replace(profile.zero, reduce_bucket_elements=70_000, prefetch_bucket_elements=9_000)
    layouts = [
        {"data_parallel": 4, "zero_stage": zero_stage, "offload": offload, "recompute": recompute}
        for zero_stage in range(4)
        for offload in range(2 + (zero_stage == 3))
    ]
    asked = _asked(
        *layouts,
        model=model,
        micro_batches=micro_batches,
        profile=replace(profile, zero=told),
        method=method,
    )
    stage = zero_engine_stage(asked)
    runs, every = Step(), Step()
    zero_engine(runs, stage)
    zero_engine(every, each_by_itself(stage))
    np.testing.assert_array_equal(runs.peak, every.peak)


def test_an_account_lets_go_of_all_that_it_takes():
    account = RecordedStep()
    zero_engine(account, at_stage(_stage(2, micro_batches=4), 0, 0))
    account.close()
    held_last = account.events.written[-1].held
    held = dict(zip(("parameters", "gradients", "optimizer"), held_last, strict=False))
    # Parameters, fp32 copy and moments of half of them, and the gradients that the update has found.
    assert held == {
        "parameters": 2 * ELEMENTS,
        "gradients": 2 * TOUCHED,
        "optimizer": 12 * ELEMENTS // 2,
    }
    assert sum(held_last[3:]) == 0


def test_the_first_run_of_eager_attention_has_scores_that_no_layer_keeps():
    layouts = [{"data_parallel": 2, "zero_stage": 3, "recompute": recompute} for recompute in (NONE, FULL)]
    stage = zero_engine_stage(_asked(*layouts, attention="eager"))
    (layer,) = stage.layers.runs[0].layers[Part.FIRST]
    # 4 heads: scores in 16 bits, the softmax's argument and result in 32; queries and keys, and the values, of 16 each.
    scores = 4 * 8 * 8 * (2 + 4 + 4)
    assert layer.bytes.traffic.first_run.ravel().tolist() == [0, scores + 2 * 4 * 3 * 16 * 8]


@pytest.mark.parametrize(
    ("targets", "before"),
    [(("q_proj",), 4), (("o_proj", "q_proj"), 3), (("gate_proj",), 2), (("down_proj", "q_proj"), 0)],
)
def test_of_adapters_the_first_gradient_may_come_late_in_the_highest_layer(targets, before):
    assert _stage(2, method="lora", lora=Lora(target_modules=targets)).moments_before_bucket == before
    assert _stage(2).moments_before_bucket == 0
