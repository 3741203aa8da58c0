from __future__ import annotations

import pytest

from plimsoll.service.access.rate_limits import RateLimits, StorageLimits, WrongKeyLimits, caller_at
from plimsoll.service.ground.errors import RateLimited, StorageLimitReached, TooManyWrongKeys


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_bucket_holds_two_seconds_and_fills_at_the_rate():
    clock = Clock()
    limits = RateLimits(5.0, clock=clock)
    for _ in range(10):  # 2 s x 5 a second
        limits.take("a")
    with pytest.raises(RateLimited) as refused:
        limits.take("a")
    assert refused.value.retry_after_seconds == 1  # a fifth of a second, in whole ones
    clock.now = 0.19
    with pytest.raises(RateLimited):
        limits.take("a")
    clock.now = 0.21
    limits.take("a")


def test_each_caller_has_a_bucket():
    limits = RateLimits(0.5, clock=Clock())
    limits.take("a")
    limits.take("b")
    with pytest.raises(RateLimited, match=r"0\.5 requests per second"):
        limits.take("a")


def test_no_rate_limits_nothing():
    limits = RateLimits(0.0, clock=Clock())
    for _ in range(1000):
        limits.take("a")


def test_an_address_may_show_a_minutes_worth_of_wrong_keys_at_once():
    clock = Clock()
    limits = WrongKeyLimits(6.0, clock=clock)
    for _ in range(6):
        limits.take("a")
    with pytest.raises(TooManyWrongKeys, match="more than 6 keys per minute") as refused:
        limits.take("a")
    assert refused.value.retry_after_seconds == 10  # six a minute
    limits.take("b")
    clock.now = 10.0
    limits.take("a")


@pytest.mark.parametrize(
    ("host", "caller"),
    [
        ("192.0.2.7", "192.0.2.7"),
        # As a socket that takes both kinds names an IPv4 client.
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::7", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_a_site_has_one_bucket_however_many_addresses_it_has(host: str, caller: str):
    assert caller_at(host) == caller


def test_a_caller_stores_a_days_worth_and_what_was_under_way_and_no_more():
    clock = Clock()
    limits = StorageLimits(86_400, clock=clock)  # a byte a second
    limits.note("a", 86_000)
    limits.check("a")
    limits.note("a", 1_000)
    with pytest.raises(StorageLimitReached, match="more than 86,400 bytes today") as refused:
        limits.check("a")
    assert refused.value.retry_after_seconds == 601  # 600 too many, and one to go on with
    limits.check("b")
    clock.now = 601.0
    limits.check("a")


def test_no_limit_of_bytes_limits_nothing():
    limits = StorageLimits(0)
    limits.note("a", 10**15)
    limits.check("a")
