"""The API as a process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette

from api.main import LongLivedServer


@pytest.fixture
def thawed_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("thawed_afterwards")
async def test_what_was_loaded_before_the_first_request_is_not_looked_through_again():
    server = LongLivedServer(uvicorn.Config(Starlette(), port=0, lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    loaded = len(gc.get_objects())
    await server.startup()
    await server.shutdown()
    assert gc.get_freeze_count() > loaded / 2
    assert len(gc.get_objects()) < loaded / 2
