"""Each rule is broken by some job, in its order, and obeyed by the job beside it."""

import subprocess
import sys

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.jobs.rule import first_broken
from plimsoll.service.worker.proofs.refusals.every import RULES, proved_job, refuse, rules_of
from plimsoll.service.worker.stacks.found import stacks
from tests.service.worker.cases import asked, config, request
from tests.service.worker.proofs.refusals.examples import OF_DEVICES, OF_TRACES

ON_DEVICES = [(example, False) for example in OF_TRACES] + [(example, True) for example in OF_DEVICES]


@pytest.mark.parametrize(("example", "on_device"), ON_DEVICES, ids=lambda each: getattr(each, "pointer", ""))
def test_a_job_that_breaks_a_rule_is_refused_by_it_at_its_field(example, on_device):
    job = asked(**example.broken)
    assert first_broken(rules_of(job.stack, on_device=on_device), job) is example.rule
    assert example.rule.refusal(job).pointer == example.pointer


@pytest.mark.parametrize(("example", "on_device"), ON_DEVICES, ids=lambda each: getattr(each, "pointer", ""))
def test_the_job_beside_it_is_not_refused(example, on_device):
    refuse(asked(**example.obeyed), on_device=on_device)


def test_every_rule_has_an_example():
    every = {id(rule) for rules in RULES.values() for rule in rules}
    every |= {id(rule) for stack in stacks().values() for rules in stack.rules.values() for rule in rules}
    assert every == {id(example.rule) for example in (*OF_TRACES, *OF_DEVICES)}


def test_a_trace_is_not_held_to_the_rules_of_devices():
    for example in OF_DEVICES:
        refuse(asked(**example.broken), on_device=False)


def test_a_request_is_read_and_refused_at_its_own_level():
    lion = {"optimizer": "lion"}
    job, stack = proved_job(request("trace", training=lion))
    assert (job.optimizer, stack.name) == ("lion", "accelerate")
    with pytest.raises(NotYetAvailable, match="not run on a device"):
        proved_job(request("device", training=lion))


def test_of_several_broken_rules_the_first_is_told():
    with pytest.raises(NotYetAvailable, match="'packing'"):
        proved_job(request(training={"packing": True, "precision": "int8-mixed"}, model=config(model_type="t5")))


def test_a_job_is_refused_without_torch():
    program = "import sys, plimsoll.service.worker.proofs.refusals.every; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
