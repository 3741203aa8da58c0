"""TRL's preference trainer over accelerate's engine."""

import pytest

from plimsoll.service.worker.proofs.trace.notes import step_notes, traced_with
from plimsoll.service.worker.stacks.accelerate.stack import STACK
from tests.service.worker.cases import job, traced

pytest.importorskip("trl")


def test_what_ran_names_trl_and_its_version():
    beside = job(reference="bf16")
    assert traced_with(beside, STACK, on_device=False).endswith("its loss by TRL 1.16.0")
    assert any("DPOTrainer" in note for note in step_notes(beside, STACK, on_device=False))
    assert not any("DPOTrainer" in note for note in step_notes(job(), STACK, on_device=False))


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_steps_leave_the_memory_as_they_found_it(zero_stage):
    ledger = traced(reference="bf16", zero_stage=zero_stage, accumulation_steps=2)
    assert {mark.step for mark in ledger.marks} == {0, 1}


@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16", "fp32"])
def test_every_precision_runs(precision):
    assert traced(reference="bf16", precision=precision).peak().allocated_bytes
