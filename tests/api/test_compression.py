"""Answers are compressed for who accepts it, and for nobody else."""

from __future__ import annotations

import httpx
import pytest

from plimsoll.api.compression import accepts_gzip


@pytest.mark.parametrize(
    "header",
    ["gzip", "GZIP", "deflate, gzip", "gzip;q=0.001", "gzip; q=1.0, br", "*", "br;q=1, *;q=0.1", "*;q=0, gzip"],
)
def test_gzip_is_accepted_by_name_or_as_any(header: str):
    assert accepts_gzip(header)


@pytest.mark.parametrize(
    "header", ["", "identity", "br", "gzip;q=0", "gzip;q=0.000", "*;q=0", "gzip;q=0, *", "gzip;q=x", "xgzip", ",;,"]
)
def test_what_is_not_accepted_is_not_sent(header: str):
    assert not accepts_gzip(header)


async def test_a_refusal_of_gzip_is_kept(client: httpx.AsyncClient):
    for header, encoding in (("gzip", "gzip"), ("gzip;q=0", None), ("GZip", "gzip")):
        response = await client.get("/models", headers={"accept-encoding": header})
        assert response.headers.get("content-encoding") == encoding
        assert "accept-encoding" in response.headers["vary"].lower()
        assert response.json()["items"]
