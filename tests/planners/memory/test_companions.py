"""A frozen model beside the one that learns: its weights, its forward pass, its time."""

import dataclasses

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.layouts.candidates import candidates_from_rows
from plimsoll.planners.layouts.stages import all_stages
from plimsoll.planners.memory.companions import companion_bytes, companion_forwards, with_companions
from plimsoll.planners.memory.holdings import holdings
from plimsoll.planners.memory.peak import memory_of
from plimsoll.planners.questions import Companion
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.timing.efficiency import load_efficiency
from plimsoll.planners.timing.step import step_seconds
from plimsoll.planners.training.planning import plan_without_advice
from tests.planners.factories import hardware, question, small_llama

PARAMETERS = 4 * 36_992 + 2 * 64_000 + 64
MIXTURE = {
    "model_type": "qwen3_moe",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
}
REFERENCE = Companion(role="reference")
VALUE = Companion(role="value", trainable=True)


def _question(*companions):
    return question(model=small_llama(), gpus=2, sequence_length=32, global_batch_size=16, companions=companions)


def _job(*companions, framework="accelerate"):
    return training_job(_question(*companions), load_profile(framework))


def _at_checkpoint(memory):
    """Return one GPU's bytes as a checkpoint is written."""
    (spike,) = (spike for spike in memory.spikes if spike.name == "checkpoint")
    return spike.device_bytes


def _layouts(zero_stage):
    return candidates_from_rows([{"data_parallel": 2, "zero_stage": zero_stage}])


@pytest.mark.parametrize(
    ("framework", "zero_stage", "ranks"),
    [("accelerate", 0, 1), ("accelerate", 3, 2), ("accelerate", 2, 2), ("deepspeed", 2, 1), ("deepspeed", 3, 2)],
)
def test_a_reference_is_sharded_where_trl_shards_it(framework, zero_stage, ranks):
    job = _job(REFERENCE, framework=framework)
    assert companion_bytes(job.companions[0], _layouts(zero_stage), job)[0] == 2 * PARAMETERS / ranks


def test_its_weights_stand_in_every_phase():
    # 276,032 parameters of 2 bytes.
    alone, beside = (memory_of(_layouts(0), 0, _job(*companions), hardware(2)) for companions in ((), (REFERENCE,)))
    assert _at_checkpoint(beside) - _at_checkpoint(alone) == 2 * PARAMETERS
    assert beside.items.total_bytes == beside.peak_bytes


def test_a_companion_may_have_other_kinds_of_layers_than_the_policy():
    # One dense layer and one mixture beside a policy of four layers of one kind.
    mixture = describe_config(MIXTURE, name="mixture")
    assert len(mixture.layers) == 2
    memory = memory_of(_layouts(0), 0, _job(Companion(role="reward", model=mixture)), hardware(2))
    alone = memory_of(_layouts(0), 0, _job(), hardware(2))
    assert _at_checkpoint(memory) - _at_checkpoint(alone) == 2 * mixture.parameters


def test_its_forward_pass_takes_as_long_as_the_policys():
    efficiency = load_efficiency("accelerate", "test-80gb")
    alone, beside = (
        step_seconds(_layouts(0), _job(*companions), hardware(2), efficiency).forward[0]
        for companions in ((), (REFERENCE,))
    )
    assert beside == pytest.approx(2 * alone)


def test_a_value_model_that_learns_holds_all_that_the_policy_holds():
    job, layouts = _job(VALUE), _layouts(0)
    alone = holdings(layouts, all_stages(layouts, job), job)
    beside = with_companions(alone, layouts, job)
    # fp32 weights and gradients, and two events with a step counter of 4 bytes for each of 4 x 9 + 3 tensors.
    assert beside.parameters.max() == 2 * alone.parameters.max() == 2 * 4 * PARAMETERS
    assert beside.gradients.max() == 2 * alone.gradients.max() == 2 * 4 * PARAMETERS
    assert beside.optimizer.max() == 2 * alone.optimizer.max() == 2 * (8 * PARAMETERS + 4 * 39)


def test_a_value_model_that_learns_takes_a_step_as_long_again():
    efficiency = load_efficiency("accelerate", "test-80gb")
    alone, beside = (
        step_seconds(_layouts(0), _job(*companions), hardware(2), efficiency) for companions in ((), (VALUE,))
    )
    for part in ("forward", "backward"):
        assert getattr(beside, part).max() == pytest.approx(2 * getattr(alone, part).max())
    own_step = efficiency.stack.step_seconds
    assert (beside.optimizer - own_step).max() == pytest.approx(2 * (alone.optimizer - own_step).max())


def test_offload_of_a_companion_is_refused_by_name():
    with pytest.raises(NotYetAvailable, match="offload"):
        _job(dataclasses.replace(REFERENCE, offload=True))


def test_a_reference_that_learns_is_none():
    with pytest.raises(InvalidQuestion, match="frozen"):
        _job(dataclasses.replace(REFERENCE, trainable=True))


def test_a_value_model_recomputes_the_modules_that_the_policy_does():
    # No stack has both companions and modules yet: Megatron-LM's modules, as if TRL ran on it.
    plain = load_profile("megatron")
    profile = dataclasses.replace(plain, can=dataclasses.replace(plain.can, companions=True))
    own = training_job(_question(VALUE), profile)
    assert len(own.module_sets) > 1
    assert own.companions[0].job.module_sets == own.module_sets


def test_an_unknown_role_is_refused():
    with pytest.raises(InvalidQuestion, match="critic"):
        _job(Companion(role="critic"))


def test_a_stack_that_trl_does_not_run_on_is_refused():
    with pytest.raises(InvalidQuestion) as refusal:
        plan_without_advice(dataclasses.replace(_question(REFERENCE), framework="megatron"))
    assert refusal.value.pointer == "/training/companions"


def test_a_reference_whose_gate_and_up_are_one_matrix_holds_what_it_writes_too():
    # Phi 4: 17,920 features of the feed-forward, written as 35,840; a stream of 5,120.
    config = dict(catalogue().model("microsoft/phi-4").config) | {"num_hidden_layers": 1}
    asked = dataclasses.replace(_question(REFERENCE), model=describe_config(config, name="phi"))
    job = training_job(asked, load_profile("accelerate"))
    layouts = _layouts(3)
    rows = all_stages(layouts, job)
    (forward,) = companion_forwards(layouts, job, holdings(layouts, rows, job))
    assert forward.kept.max() == 2 * 32 * (4 * 17_920 + 4 * 5_120)
