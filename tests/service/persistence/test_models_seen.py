from __future__ import annotations

from plimsoll.service.persistence.records import SeenModel


def a_model(config_hash: str, name: str = "m") -> SeenModel:
    return SeenModel(config_hash=config_hash, name=name, model_type="llama", config={"hidden_size": 4096})


async def test_a_model_is_remembered_as_it_was_first_seen(database):
    await database.models_seen.remember(a_model("h", "first"))
    await database.models_seen.remember(a_model("h", "second"))
    found = await database.models_seen.find("h")
    assert (found.name, found.model_type, found.config) == ("first", "llama", {"hidden_size": 4096})
    assert found.first_seen_at is not None


async def test_a_model_that_nobody_sent_is_not_found(database):
    assert await database.models_seen.find("absent") is None


async def test_models_are_paged_the_latest_first(database):
    for name in ("a", "b", "c"):
        await database.models_seen.remember(a_model(name))
    first = await database.models_seen.page(limit=2)
    second = await database.models_seen.page(limit=2, cursor=first.next_cursor)
    assert [model.config_hash for model in (*first.items, *second.items)] == ["c", "b", "a"]
    assert second.next_cursor is None
