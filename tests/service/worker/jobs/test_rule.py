"""A rule's words and field, stated once or of the job."""

from plimsoll.service.worker.jobs.rule import Rule, first_broken
from tests.service.worker.cases import asked

ALWAYS = Rule(broken=lambda _asked: True, pointer="/layout", words="No.")
OF_STAGE = Rule(
    broken=lambda asked: asked.job.zero_stage == 3,
    pointer=lambda asked: f"/layout/{asked.stack.name}",
    words=lambda asked: f"Stage {asked.job.zero_stage}.",
)


def test_the_first_rule_that_a_job_breaks_is_the_one_told():
    assert first_broken((OF_STAGE, ALWAYS), asked()) is OF_STAGE
    assert first_broken((OF_STAGE, ALWAYS), asked(zero_stage=2)) is ALWAYS
    assert first_broken((OF_STAGE,), asked(zero_stage=2)) is None


def test_words_and_field_are_constant_or_of_the_job():
    assert (str(ALWAYS.refusal(asked())), ALWAYS.refusal(asked()).pointer) == ("No.", "/layout")
    told = OF_STAGE.refusal(asked())
    assert (str(told), told.pointer) == ("Stage 3.", "/layout/accelerate")
