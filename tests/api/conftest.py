"""The application on a real database, asked without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from plimsoll.api.app import create_app
from plimsoll.service.ground.settings import Settings


@pytest.fixture(scope="module")
def model_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the only folder that models may be read from."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def app(module_database_url: str, model_root: Path) -> FastAPI:
    """Return an application that the tests of a module share, with its database."""
    return create_app(Settings(database_url=module_database_url, model_roots=(model_root,)))


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the running application; what goes wrong in it is answered, not raised."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened,
    ):
        yield opened
