"""What a proof says of the code that ran."""

from importlib.metadata import version

import pytest

from plimsoll.planners.questions import Evaluation
from plimsoll.service.worker.proofs.trace.notes import NOTES, step_notes, traced_with
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import LATENT, config, job

MIXTRAL = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
MEGATRON = {"framework": "megatron", "zero_stage": 1}
# A model that Megatron-LM's own arguments do not describe.
GEMMA = config(model_type="gemma")
# What holds of the plain job, and beside it of each of these.
JOBS = (
    {"framework": "deepspeed"},
    {"method": "qlora"},
    {**MEGATRON, "config": MIXTRAL},
    {**MEGATRON, "config": MIXTRAL, "attention": "eager"},
    {"kernels": "fused", "fused_cross_entropy": True},
    {"framework": "fsdp2", "precision": "fp8-mixed", "accumulation_steps": 3},
    {"config": config(model_type="qwen3_5_text")},
    {"config": config(model_type="bamba")},
    {"framework": "fsdp2", "config": LATENT, "context_parallel": 2},
    {"framework": "fsdp2", "pipeline_parallel": 2},
    {"framework": "ddp", "zero_stage": 0},
    {"reference": "bf16"},
    {"evaluation": Evaluation()},
)


def notes(*, on_device=False, **changes):
    wanted = job(**changes)
    return step_notes(wanted, find_stack(wanted.framework, wanted.kernels), on_device=on_device)


def test_every_note_holds_of_some_job_and_says_something():
    told = {sentence for changes in JOBS for sentence in notes(**changes)}
    assert "" not in told
    for note in NOTES:
        wanted = [(job(**changes), find_stack(changes.get("framework", "accelerate"))) for changes in JOBS]
        fused = [(job(**JOBS[4]), find_stack("accelerate", "fused"))]
        assert any(note.holds(*each) for each in wanted + fused), note


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_nothing_stands_in_for_a_stack_whose_own_code_trains_transformers_model(framework):
    assert not any("stand in for" in sentence for sentence in notes(framework=framework))
    assert any("stand in for fsdp2's own code" in sentence for sentence in notes(framework="fsdp2"))


def test_a_run_on_a_device_leaves_out_what_holds_of_traces_alone():
    left_out = [sentence for sentence in notes() if sentence not in notes(on_device=True)]
    assert [sentence.split()[0] for sentence in left_out] == ["Not", "reserved_bytes", "Steps", "accelerate's"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"framework": "deepspeed"}, "DeepSpeed's own engine ran"),
        (MEGATRON, "Megatron-Core's own code ran"),
        ({**MEGATRON, "config": MIXTRAL}, "as many tokens as another"),
        ({**MEGATRON, "config": GEMMA}, "what Megatron-Core's do"),
        ({**MEGATRON, "config": MIXTRAL, "optimizer": "lion"}, "after Megatron-Core's code"),
        ({"framework": "fsdp2", "config": MIXTRAL, "expert_parallel": 2}, "as torchtitan does it"),
    ],
)
def test_a_stack_says_whose_code_ran_as_its_own(changes, said):
    assert sum(said in note for note in notes(**changes)) == 1


def test_where_a_stack_s_own_model_ran_nothing_is_said_of_transformers():
    assert not [note for note in notes(**MEGATRON) if "transformers" in note]
    assert [note for note in notes(**MEGATRON, on_device=True) if "transformers" in note]


def test_where_all_that_a_stack_runs_is_run_nothing_stands_in_for_it():
    assert not [note for note in notes(framework="ddp", data_parallel=1, zero_stage=0) if "stand in" in note]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, f"FSDP2 by accelerate {version('accelerate')}"),
        ({"zero_stage": 0}, f"DistributedDataParallel by accelerate {version('accelerate')}"),
        ({"framework": "ddp", "zero_stage": 0}, "replicated parameters"),
        ({"framework": "fsdp2", "tensor_parallel": 2}, "FSDP2 and DTensor tensor parallelism"),
        ({**MEGATRON, "config": GEMMA}, "replicated parameters"),
    ],
)
def test_what_ran_names_how_the_model_was_sharded(changes, named):
    wanted = job(**changes)
    assert traced_with(wanted, find_stack(wanted.framework), on_device=False).endswith(named)
