from __future__ import annotations

import pytest

from plimsoll.service.ground.database_address import libpq_url, sqlalchemy_url


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_any_usual_spelling_is_understood(scheme):
    url = f"{scheme}://user:p%40ss@host:5432/name?sslmode=require"
    assert sqlalchemy_url(url).drivername == "postgresql+psycopg"
    assert libpq_url(url) == "postgresql://user:p%40ss@host:5432/name?sslmode=require"


@pytest.mark.parametrize("url", ["sqlite://", "mysql://host/name", "postgresql+asyncpg://host/name", "host", ""])
def test_anything_else_is_refused(url):
    with pytest.raises(ValueError, match=r"postgresql://"):
        sqlalchemy_url(url)
