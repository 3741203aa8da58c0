"""Events outside the step: loading, checkpoints, evaluation."""

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.memory.outside_step import LOADING_REASONS, SAVING_REASONS
from plimsoll.planners.memory.peak import memory_of, peak_bytes
from plimsoll.planners.questions import Evaluation
from plimsoll.planners.stacks.profile import load_profile, stack_names
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import hardware, question, small_llama

# small_llama: 4 layers of 64x64 + 2x32x64 + 64x64 + 3x64x128 + 2x64 = 36,992, twice 1000x64 and a norm of 64.
PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64
VOCABULARY = 1000


def _memory(framework, *, zero_stage, gpus=2, **changes):
    asked = question(model=small_llama(), gpus=gpus, sequence_length=32, global_batch_size=16, **changes)
    job = training_job(asked, load_profile(framework))
    layouts = candidates_from_rows([{"data_parallel": gpus, "zero_stage": zero_stage}])
    return memory_of(layouts, 0, job, hardware(gpus))


def _spike(memory, name):
    return next(spike for spike in memory.spikes if spike.name == name)


def test_without_fsdp_every_rank_reads_the_whole_weights():
    assert _spike(_memory("accelerate", zero_stage=0), "loading").host_bytes == 4 * PARAMETERS


def test_under_fsdp_one_rank_of_a_node_reads_them_for_all():
    # Sixteen GPUs are two nodes of eight.
    assert _spike(_memory("accelerate", zero_stage=3, gpus=16), "loading").host_bytes == 4 * PARAMETERS / 8


def test_an_adapted_model_is_read_in_the_compute_width_and_saves_its_adapters_alone():
    # Adapters of rank 16 on q (64 + 64), k and v (64 + 32), o (64 + 64), gate, up and down (64 + 128): 1,024 features
    # in each of 4 layers, 4 bytes a parameter, on the one GPU of the node.
    memory = _memory("torchtune", zero_stage=0, gpus=1, method="lora", precision="bf16")
    assert _spike(memory, "loading").host_bytes == 2 * PARAMETERS
    size = training_job(question(method="lora", precision="bf16"), load_profile("torchtune")).states.parameter
    assert _spike(memory, "checkpoint").host_bytes == size * 4 * 16 * 1_024


def test_a_full_state_dict_gathers_one_tensor_on_the_device_and_all_on_the_first_rank():
    memory = _memory("torchtune", zero_stage=3, precision="bf16")
    size = training_job(question(precision="bf16"), load_profile("torchtune")).states.parameter
    spike = _spike(memory, "checkpoint")
    resting = memory.items.optimizer + _spike(memory, "loading").device_bytes
    assert spike.device_bytes == resting + 64_000 * size
    assert spike.host_bytes == size * PARAMETERS // 2


def test_a_sharded_checkpoint_needs_nothing_more():
    memory = _memory("fsdp2", zero_stage=3)
    spike = _spike(memory, "checkpoint")
    assert (spike.device_bytes, spike.host_bytes) == (memory.items.parameters + memory.items.optimizer, 0)


def test_a_checkpoint_in_shared_memory_takes_a_ranks_part_of_the_host():
    memory = _memory("atorch", zero_stage=3)
    spike = _spike(memory, "checkpoint")
    assert spike.host_bytes == spike.device_bytes


def test_kept_logits_of_every_rank_can_be_the_peak():
    # 10 batches of 4 sequences x 2 ranks x 32 tokens x 1000 entries x 4 bytes, twice as the last one joins the others.
    few = _memory("accelerate", zero_stage=0, evaluation=Evaluation(batch_size=4, samples=80))
    kept = _memory("accelerate", zero_stage=0, evaluation=Evaluation(batch_size=4, samples=80, keeps_logits=True))
    assert kept.items.logits == 2 * 10_240_000
    assert kept.phase == "evaluation"
    assert _spike(kept, "evaluation").device_bytes > _spike(few, "evaluation").device_bytes
    assert "trainer keeps" in _spike(kept, "evaluation").reason
    assert "keeps" not in _spike(few, "evaluation").reason
    assert kept.items.total_bytes == kept.peak_bytes


def test_logits_moved_to_the_host_after_each_batch_need_no_more_than_their_loss():
    # Gathered from both ranks, 1,024,000 bytes beside the rank's own 512,000; at the loss 10 bytes for each of 128,000
    # logits and 16-bit copies of all weights.
    asked = Evaluation(batch_size=4, samples=80, keeps_logits=True, accumulation_steps=1)
    plain = _memory("accelerate", zero_stage=0, evaluation=Evaluation(batch_size=4, samples=80))
    kept = _memory("accelerate", zero_stage=0, evaluation=asked)
    assert _spike(kept, "evaluation").device_bytes == _spike(plain, "evaluation").device_bytes


@pytest.mark.parametrize(
    ("zero_stage", "held"),
    # Autocast copies all, beside buckets of fp32 gradients; at the head FSDP has gathered norm and head into a buffer
    # and out of it, or with stage 2 all.
    [(0, (2 + 4) * PARAMETERS), (3, 2 * 2 * 64_064), (2, 2 * PARAMETERS)],
)
def test_an_evaluation_works_with_copied_or_gathered_weights(zero_stage, held):
    memory = _memory("accelerate", zero_stage=zero_stage, evaluation=Evaluation(batch_size=64, samples=640))
    assert memory.phase == "evaluation"
    assert memory.items.communication == held


@pytest.mark.parametrize(("zero_stage", "held"), [(0, 4 * PARAMETERS), (3, 2 * 64_064), (2, 2 * PARAMETERS)])
def test_predictions_are_joined_beside_buckets_or_what_a_forward_pass_left_gathered(zero_stage, held):
    asked = Evaluation(batch_size=4, samples=80, keeps_logits=True)
    memory = _memory("accelerate", zero_stage=zero_stage, evaluation=asked)
    assert memory.phase == "evaluation"
    assert memory.items.communication == held


def test_the_search_knows_the_evaluation_too():
    asked = question(
        model=small_llama(),
        gpus=2,
        sequence_length=32,
        global_batch_size=16,
        evaluation=Evaluation(batch_size=4, samples=80, keeps_logits=True),
    )
    job = training_job(asked, load_profile("accelerate"))
    layouts = candidates_from_rows([{"data_parallel": 2}])
    assert peak_bytes(layouts, job)[0] == memory_of(layouts, 0, job, hardware(2)).peak_bytes


def test_a_stack_that_keeps_no_logits_refuses_to_keep_them():
    with pytest.raises(InvalidQuestion) as refusal:
        plan_without_advice(question(framework="fsdp2", evaluation=Evaluation(keeps_logits=True)))
    assert refusal.value.pointer == "/training/evaluation/keeps_logits"


@pytest.mark.parametrize("name", stack_names())
def test_every_stack_says_how_it_loads_and_saves(name):
    outside = load_profile(name).outside_step
    assert outside.loading in LOADING_REASONS
    assert outside.checkpoint in SAVING_REASONS
