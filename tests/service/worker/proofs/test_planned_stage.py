"""What a plan predicts of one of its stages."""

from plimsoll.service.worker.proofs.planned_stage import predicted_of_stage

ITEMS = {"parameters": 2, "gradients": 4, "optimizer": 8, "activations": 16, "logits": 0, "communication": 1}
LAST = ITEMS | {"activations": 12, "logits": 6}
OUTSIDE = {"runtime": 100, "fragmentation": 10}


def memory(*stages):
    told = [{"stage": number, "items": items} for number, items in enumerate(stages)]
    return {"allocated_bytes": 31, "items": ITEMS | OUTSIDE, "stages": told}


def test_it_is_of_that_stage_though_another_needs_more_outside_its_tensors():
    found = predicted_of_stage(memory(ITEMS | OUTSIDE, LAST | {"runtime": 90, "fragmentation": 10}), 1)
    assert found == {"peak_bytes": 33, "items": LAST}


def test_of_the_plan_s_fullest_stage_it_is_what_the_plan_promises():
    asked = memory(ITEMS | OUTSIDE, LAST)
    assert predicted_of_stage(asked, 0)["peak_bytes"] == asked["allocated_bytes"]


def test_a_plan_that_tells_no_items_of_stages_predicts_of_any_what_it_does_of_its_fullest():
    told = {"allocated_bytes": 31, "items": ITEMS | OUTSIDE, "stages": [{"stage": 0}]}
    assert predicted_of_stage(told, 0) == predicted_of_stage(told, 3) == {"peak_bytes": 31, "items": ITEMS}
