from __future__ import annotations

import pytest

from api.auth.led_here import is_led_here
from tests.api.auth.test_keys import served


@pytest.mark.parametrize(
    ("host", "origin", "is_led"),
    [
        (None, None, False),
        ("127.0.0.1:8000", None, False),
        ("[::1]:8000", None, False),
        ("localhost:8000", None, False),
        ("localhost.", None, False),
        ("plimsoll.localhost", None, False),
        # A name without a dot is the network's own, and an address cannot be resolved anew.
        ("plimsoll", None, False),
        ("192.0.2.1:8000", None, False),
        ("evil.example", None, True),
        ("evil.example.:8000", None, True),
        ("127.0.0.1.evil.example", None, True),
        ("[bad", None, True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", False),
        ("127.0.0.1:8000", "http://localhost:3000", False),
        ("plimsoll:8000", "http://plimsoll:8000", False),
        ("127.0.0.1:8000", "https://evil.example", True),
        ("127.0.0.1:8000", "http://192.0.2.1", True),
        ("127.0.0.1:8000", "http://plimsoll:8000", True),
        ("127.0.0.1:8000", "null", True),
        ("evil.example:8000", "http://evil.example:8000", True),
    ],
)
def test_whether_a_page_of_another_site_led_here(host: str | None, origin: str | None, is_led: bool):
    given = ((b"host", host), (b"origin", origin))
    headers = [(name, value.encode()) for name, value in given if value is not None]
    assert is_led_here({"headers": headers}) is is_led


@pytest.mark.parametrize("led", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_on_loopback_a_page_of_another_site_needs_a_key(database_url: str, led: dict[str, str]):
    near = ("127.0.0.1", 40_000)
    async with served(database_url, near, host="127.0.0.1") as client:
        for path in ("/plans", "/metrics"):
            assert (await client.get(path)).status_code == 200
            refused = await client.get(path, headers=led)
            assert refused.status_code == 401
            assert "another site" in refused.json()["detail"]
        # What holds nobody's data is anyone's.
        assert (await client.get("/healthz", headers=led)).status_code == 200
    async with served(database_url, near, host="127.0.0.1", allow_anonymous=True) as client:
        assert (await client.get("/plans", headers=led)).status_code == 200


async def test_metrics_are_not_for_a_page_of_another_site_wherever_the_service_listens(database_url: str):
    async with served(database_url, ("127.0.0.1", 40_000)) as client:
        assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code == 401
