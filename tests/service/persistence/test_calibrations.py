from __future__ import annotations

from plimsoll.service.persistence.records import Calibration


def a_calibration(revision: str, gpu: str = "h100-sxm-80gb") -> Calibration:
    return Calibration(gpu=gpu, revision=revision, efficiencies={"matmul": 0.7}, report={"measurements": 3})


async def test_the_latest_calibration_is_in_force(database):
    for revision in ("one", "two"):
        await database.calibrations.put(a_calibration(revision))
    found = await database.calibrations.find("h100-sxm-80gb")
    assert (found.revision, found.efficiencies, found.report) == ("two", {"matmul": 0.7}, {"measurements": 3})


async def test_an_earlier_calibration_stays_on_record(database):
    for revision in ("one", "two"):
        await database.calibrations.put(a_calibration(revision))
    assert (await database.calibrations.find("h100-sxm-80gb", "one")).revision == "one"


async def test_a_calibration_put_again_is_in_force_again(database):
    for revision in ("one", "two", "one"):
        await database.calibrations.put(a_calibration(revision))
    assert (await database.calibrations.find("h100-sxm-80gb")).revision == "one"


async def test_what_is_deleted_is_in_force_no_more(database):
    for revision, gpu in (("one", "a"), ("two", "a"), ("three", "b")):
        await database.calibrations.put(a_calibration(revision, gpu))
    assert await database.calibrations.delete("a")
    assert not await database.calibrations.delete("a")
    assert list(await database.calibrations.in_force()) == ["b"]


async def test_a_gpu_that_was_not_calibrated_has_none(database):
    assert await database.calibrations.find("h100-sxm-80gb") is None
    assert await database.calibrations.find("h100-sxm-80gb", "one") is None


async def test_each_gpu_has_one_in_force(database):
    for revision, gpu in (("one", "a"), ("two", "a"), ("three", "b")):
        await database.calibrations.put(a_calibration(revision, gpu))
    in_force = await database.calibrations.in_force()
    assert {gpu: calibration.revision for gpu, calibration in in_force.items()} == {"a": "two", "b": "three"}
