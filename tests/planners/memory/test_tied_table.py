"""A tied Llama's table of 1,000 x 64 elements, where its two gradients meet; lengths of `test_backward.py`."""

import dataclasses

from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.activity import activity
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.step_context import step_context
from plimsoll.planners.memory.tied_table import tied_table_items
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question, small_llama

LAYERS, LAYER, TABLE, NORM = 4, 36_992, 64_000, 64


def events(framework, zero_stage, *, method="full", **changes):
    asked = question(model=small_llama(**changes), sequence_length=32, global_batch_size=2, gpus=2)
    asked = dataclasses.replace(asked, method=method)
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows([{"data_parallel": 2, "zero_stage": zero_stage}])
    rows = all_stages(layouts, job.model, 2)
    held, active = holdings(layouts, rows, job), activity(layouts, rows, job)
    return list(tied_table_items(step_context(layouts, rows, job, held, active)))


def test_full_sharding_has_both_gradients_beside_the_gathered_root_and_the_lowest_layer_s_reduction():
    (meeting,) = events("accelerate", 3, tie_word_embeddings=True)
    # Shards of the layers, 4 bytes over 2 ranks, and the table twice in 16 bits.
    assert meeting.gradients.item() == 4 * LAYERS * LAYER / 2 + 2 * 2 * TABLE
    assert meeting.communication.item() == 2 * (TABLE + NORM) + 4 * LAYER


def test_whole_gradients_have_the_table_once_more():
    (meeting,) = events("ddp", 0, tie_word_embeddings=True)
    assert meeting.gradients.item() == 4 * (LAYERS * LAYER + TABLE + NORM) + 4 * TABLE


def test_a_head_of_its_own_and_a_frozen_table_have_no_such_moment():
    assert events("accelerate", 3, tie_word_embeddings=False) == []
    assert events("accelerate", 3, tie_word_embeddings=True, num_hidden_layers=4, method="lora") == []
