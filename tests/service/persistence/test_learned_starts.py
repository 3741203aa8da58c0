from __future__ import annotations

from plimsoll.service.persistence.database import Database
from plimsoll.service.persistence.records import LearnedKey, LearnedStart, NewMeasurement

KEY = LearnedKey(
    model_digest="m", gpu="h100-sxm-80gb", engine="vllm", engine_version="0.19", weights="bf16"
)  # fmt: skip


async def test_what_is_learned_joins_what_was_known_and_the_newest_value_holds(database: Database):
    store = database.learned_starts
    await store.put(LearnedStart(key=KEY, learned={"weights_factor": 1.1, "tpot_factor": 2.0}, provenance="one"), {})
    merged = await store.put(LearnedStart(key=KEY, learned={"weights_factor": 1.2}, provenance="two"), {})
    assert merged.learned == {"weights_factor": 1.2, "tpot_factor": 2.0}
    assert merged.provenance == "two"
    assert await store.all() == (merged,)


async def measured(database: Database) -> int:
    record = NewMeasurement(
        plan_id=None, level="run", framework="vllm", gpu=KEY.gpu, model="m", predicted={}, measured={},
        relative_error=None, source="somebody",
    )  # fmt: skip
    return (await database.measurements.add(record)).id


async def test_a_measurement_that_is_forgotten_takes_what_it_taught_with_it(database: Database):
    store = database.learned_starts
    sizes, speeds, wrong = {"weights_factor": 1.1}, {"tpot_factor": 2.0}, {"weights_factor": 1.4}
    first, second, third = [await measured(database) for _ in range(3)]
    right = LearnedStart(key=KEY, learned={**sizes, **speeds}, provenance="one")
    await store.put(right, {first: sizes, second: speeds})
    await store.put(LearnedStart(key=KEY, learned=wrong, provenance="two"), {third: wrong})
    assert await store.forget(third)
    (left,) = await store.all()
    assert (left.learned, left.provenance) == ({"weights_factor": 1.1, "tpot_factor": 2.0}, "one")
    assert await store.forget(second)
    (left,) = await store.all()
    assert left.learned == {"weights_factor": 1.1}
    assert await store.forget(first)
    assert await store.all() == ()


async def test_what_was_never_measured_cannot_be_forgotten(database: Database):
    number = await measured(database)
    assert await database.learned_starts.forget(number)
    assert not await database.learned_starts.forget(number)
