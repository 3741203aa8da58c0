from __future__ import annotations

from service.persistence.database import Database
from service.persistence.records import LearnedKey, LearnedStart

KEY = LearnedKey(
    model_digest="m", gpu="h100-sxm-80gb", engine="vllm", engine_version="0.19", weights="bf16"
)  # fmt: skip


async def test_what_is_learned_joins_what_was_known_and_the_newest_value_holds(database: Database):
    store = database.learned_starts
    await store.put(LearnedStart(key=KEY, learned={"weights_factor": 1.1, "tpot_factor": 2.0}, provenance="one"))
    merged = await store.put(LearnedStart(key=KEY, learned={"weights_factor": 1.2}, provenance="two"))
    assert merged.learned == {"weights_factor": 1.2, "tpot_factor": 2.0}
    assert merged.provenance == "two"
    assert await store.all() == (merged,)
