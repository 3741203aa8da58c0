"""What strangers and floods once did to a running service."""

from __future__ import annotations

import httpx
import pytest

EVIL = "evil.example"


@pytest.mark.parametrize(
    "led_here",
    [{"host": EVIL}, {"host": EVIL, "origin": f"http://{EVIL}"}, {"origin": f"http://{EVIL}"}, {"host": "intranet"}],
    ids=["host", "host and origin", "origin", "host without a dot"],
)
def test_a_page_of_another_site_is_told_nothing_without_a_key(service: httpx.Client, led_here: dict[str, str]):
    with httpx.Client(base_url=service.base_url, headers=led_here) as browser:
        assert browser.get("/plans").status_code == httpx.codes.UNAUTHORIZED
        assert browser.post("/plan/train", json={}).status_code == httpx.codes.UNAUTHORIZED
