from __future__ import annotations

import pytest

from plimsoll.api.auth.led_here import OwnHosts
from tests.api.auth.test_keys import STRANGE_ADDRESS, served

KNOWN = OwnHosts(("0.0.0.0", "plimsoll.example", "*.svc.example", "tools"))  # noqa: S104
NEAR = ("127.0.0.1", 40_000)
EVIL_PAGE = {"host": "evil.example", "origin": "http://evil.example"}


def is_led(hosts: OwnHosts, host: str | None, origin: str | None) -> bool:
    given = ((b"host", host), (b"origin", origin))
    headers = [(name, value.encode()) for name, value in given if value is not None]
    return hosts.refusal({"headers": headers}) is not None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.0.2.1:8000",
        "localhost:8000",
        "localhost.",
        "LOCALHOST",
        "box.localhost",
        "plimsoll.example:8443",
        "Plimsoll.Example.",
        "a.svc.example",
        "tools",
    ],
)
def test_addresses_localhost_and_listed_names_are_its_own(host: str | None):
    assert not is_led(KNOWN, host, None)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example.:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "xlocalhost",
        "svc.example",
        "evilsvc.example",
        # Whoever answers for a search domain, or owns a top-level domain, owns names without a dot.
        "plimsoll",
        "ai.",
        "",
        "evil.example:80@127.0.0.1",
        "127.0.0.1/evil.example",
        "127.0.0.1#.evil.example",
        "[bad",
    ],
)
def test_every_other_name_may_be_a_strangers(host: str):
    assert is_led(KNOWN, host, None)


def test_of_two_hosts_both_must_be_its_own():
    headers = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
    assert OwnHosts(()).refusal({"headers": headers}) is not None


def test_a_star_allows_every_host_and_no_page_of_another_site():
    anywhere = OwnHosts(("*",))
    assert not is_led(anywhere, "evil.example", None)
    assert is_led(anywhere, "evil.example", "http://other.example")


@pytest.mark.parametrize(
    ("host", "origin", "expected"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000", False),
        ("127.0.0.1:8000", "http://localhost:3000", False),
        ("192.0.2.1:8000", "http://192.0.2.1:8000", False),
        ("tools:8000", "http://tools:8000", False),
        # A proxy may ask by another of the names, or leave the port out.
        ("tools", "https://plimsoll.example:8443", False),
        ("127.0.0.1:8000", "https://evil.example", True),
        ("127.0.0.1:8000", "http://192.0.2.1", True),
        ("192.0.2.1:8000", "http://192.0.2.1:3000", True),
        # What runs on the visitor's own machine is not this service's.
        ("plimsoll.example", "http://localhost:3000", True),
        ("127.0.0.1:8000", "null", True),
        ("127.0.0.1:8000", "http://[bad", True),
        ("evil.example:8000", "http://evil.example:8000", True),
    ],
)
def test_whether_a_page_is_of_another_site(host: str, origin: str, expected: bool):
    assert is_led(KNOWN, host, origin) is expected


@pytest.mark.parametrize(
    ("address", "changes"),
    [
        (NEAR, {"host": "127.0.0.1"}),
        (NEAR, {"host": "127.0.0.1", "allow_anonymous": True}),
        (STRANGE_ADDRESS, {"allow_anonymous": True}),
    ],
)
async def test_wherever_no_key_is_needed_a_strangers_page_needs_one(
    database_url: str, address: tuple[str, int], changes: dict[str, object]
):
    async with served(database_url, address, **changes) as client:
        assert (await client.get("/plans")).status_code == 200
        for led in (EVIL_PAGE, {"host": "evil.example"}, {"origin": "https://evil.example"}):
            for method, path in (("GET", "/plans"), ("POST", "/plan/train"), ("POST", "/admission/validate")):
                refused = await client.request(method, path, headers=led)
                assert refused.status_code == 401
        # What holds nobody's data is anyone's.
        assert (await client.get("/healthz", headers=EVIL_PAGE)).status_code == 200


async def test_a_refused_host_is_told_which_setting_lists_it_and_listed_it_is_answered(database_url: str):
    async with served(database_url, allow_anonymous=True) as client:
        refused = await client.get("/plans", headers={"host": "plimsoll.example"})
        assert "'plimsoll.example', which PLIMSOLL_ALLOWED_HOSTS does not list" in refused.json()["detail"]
    async with served(database_url, allow_anonymous=True, allowed_hosts=("plimsoll.example",)) as client:
        assert (await client.get("/plans", headers={"host": "plimsoll.example"})).status_code == 200


async def test_the_name_that_it_listens_on_is_its_own(database_url: str):
    async with served(database_url, host="box.internal", allow_anonymous=True) as client:
        assert (await client.get("/plans", headers={"host": "box.internal:8000"})).status_code == 200


async def test_probes_ask_by_whatever_name_they_like(database_url: str):
    async with served(database_url) as client:
        for host in ("10.244.1.7:8000", "some-pod"):
            for path in ("/healthz", "/readyz"):
                assert (await client.get(path, headers={"host": host})).status_code == 200


async def test_metrics_are_not_for_a_page_of_another_site_wherever_the_service_listens(database_url: str):
    async with served(database_url, NEAR) as client:
        assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code == 401
