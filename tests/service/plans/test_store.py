"""The store without a database keeps the promises of the one with."""

from __future__ import annotations

import pytest

from plimsoll.service.ground.errors import InvalidCursor, PlanNotFound
from plimsoll.service.persistence.records import PlanFilter
from plimsoll.service.plans.store import PlansInMemory
from tests.service.persistence.factories import a_plan


async def test_a_stored_plan_is_found_and_the_first_of_an_id_stays():
    plans = PlansInMemory()
    first = a_plan(plan_id="a", summary="first")
    await plans.put(first)
    await plans.put(a_plan(plan_id="a", summary="second"))
    assert await plans.get("a") == first


async def test_a_plan_that_was_never_stored_is_not_found():
    with pytest.raises(PlanNotFound):
        await PlansInMemory().get("a")


async def test_plans_are_listed_newest_first_and_filtered():
    plans = PlansInMemory()
    for name, fits in (("a", True), ("b", False), ("c", True)):
        await plans.put(a_plan(plan_id=name, fits=fits))
    page = await plans.page(PlanFilter(fits=True))
    assert [plan.plan_id for plan in page.items] == ["c", "a"]
    assert len((await plans.page(limit=1)).items) == 1
    with pytest.raises(InvalidCursor):
        await plans.page(cursor="x")
