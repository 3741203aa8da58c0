"""The API as a process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.applications import Starlette

from plimsoll.api.main import ACCEPTED_A_TURN, LongLivedServer


@pytest.fixture
def thawed_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()


async def started() -> LongLivedServer:
    server = LongLivedServer(uvicorn.Config(Starlette(), port=0, lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    return server


@pytest.mark.usefixtures("thawed_afterwards")
async def test_what_was_loaded_before_the_first_request_is_not_looked_through_again():
    loaded = len(gc.get_objects())
    server = await started()
    await server.shutdown()
    assert gc.get_freeze_count() > loaded / 2
    assert len(gc.get_objects()) < loaded / 2


@pytest.mark.usefixtures("thawed_afterwards")
async def test_one_port_is_listened_on_as_often_as_connections_are_taken_in_a_turn_and_not_after_the_end():
    server = await started()
    addresses = [listening.getsockname() for each in server.servers for listening in each.sockets]
    assert (len(addresses), len(set(addresses))) == (ACCEPTED_A_TURN, 1)
    _, writer = await asyncio.open_connection(*addresses[0])
    writer.close()
    await server.shutdown()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*addresses[0])
