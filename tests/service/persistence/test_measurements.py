from __future__ import annotations

import pytest

from plimsoll.service.ground.errors import PlanNotFound
from tests.service.persistence.factories import a_job, a_measurement, a_plan


async def test_a_measurement_is_kept_beside_its_prediction(database):
    await database.plans.put(a_plan())
    stored = await database.measurements.add(a_measurement(plan_id="plan-1"))
    assert (stored.predicted, stored.measured) == ({"peak_bytes": 11}, {"peak_bytes": 10})
    assert (await database.measurements.page(plan_id="plan-1")).items == (stored,)


async def test_a_measurement_of_an_unknown_plan_is_refused(database):
    with pytest.raises(PlanNotFound):
        await database.measurements.add(a_measurement(plan_id="absent"))


async def test_a_job_is_measured_once(database):
    job = await database.jobs.submit(a_job(), idempotency_key=None, route="r")
    first = await database.measurements.add(a_measurement(job_id=job.job_id))
    again = await database.measurements.add(a_measurement(job_id=job.job_id, relative_error=0.5))
    assert again == first
    assert len((await database.measurements.page()).items) == 1


async def test_reports_without_a_job_all_count(database):
    for _ in range(2):
        await database.measurements.add(a_measurement(level="run"))
    assert len((await database.measurements.page(level="run")).items) == 2


@pytest.mark.parametrize("name", ["level", "framework", "gpu", "model"])
async def test_each_filter_leaves_the_measurements_that_match(database, name):
    await database.measurements.add(a_measurement())
    wanted = await database.measurements.add(a_measurement(**{name: "wanted"}))
    assert (await database.measurements.page(**{name: "wanted"})).items == (wanted,)


async def test_measurements_are_paged_newest_first(database):
    made = [await database.measurements.add(a_measurement()) for _ in range(3)]
    first = await database.measurements.page(limit=2)
    second = await database.measurements.page(limit=2, cursor=first.next_cursor)
    assert [*first.items, *second.items] == made[::-1]


async def test_accuracy_tells_how_far_the_predictions_were_off(database):
    for error in (-0.2, 0.0, 0.1, 0.3, None):
        await database.measurements.add(a_measurement(relative_error=error))
    (group,) = await database.measurements.accuracy()
    assert (group.level, group.framework, group.gpu, group.count) == ("trace", "fsdp2", "h100-sxm-80gb", 4)
    # (-0.2 + 0 + 0.1 + 0.3) / 4; absolute errors in order: 0, 0.1, 0.2, 0.3.
    assert group.mean_relative_error == pytest.approx(0.05)
    assert group.median_absolute_relative_error == pytest.approx(0.15)
    # 0.9 of the way from the first to the fourth is 0.7 past the third.
    assert group.p90_absolute_relative_error == pytest.approx(0.27)
    assert group.worst_absolute_relative_error == pytest.approx(0.3)


async def test_accuracy_keeps_what_differs_apart(database):
    for gpu in ("a", "b"):
        await database.measurements.add(a_measurement(gpu=gpu))
    assert [group.gpu for group in await database.measurements.accuracy()] == ["a", "b"]


async def test_accuracy_of_nothing_is_nothing(database):
    assert await database.measurements.accuracy() == ()
