from __future__ import annotations

from plimsoll.service.ground.recently_used import RecentlyUsed


def texts(most_bytes: int) -> RecentlyUsed[str, str]:
    return RecentlyUsed(100, most_bytes=most_bytes, size_bytes=len)


def test_the_longest_unused_goes_first_when_the_bytes_are_too_many():
    kept = texts(10)
    kept.put("a", "4444")
    kept.put("b", "4444")
    kept.get("a")
    kept.put("c", "333")  # 4 + 4 + 3 > 10
    assert [kept.get(key) for key in "abc"] == ["4444", None, "333"]


def test_as_many_bytes_as_may_be_are_kept():
    kept = texts(8)
    kept.put("a", "4444")
    kept.put("b", "4444")
    assert kept.get("a") == "4444"


def test_what_is_too_large_by_itself_is_not_kept():
    kept = texts(8)
    kept.put("a", 9 * "x")
    assert kept.get("a") is None
    kept.put("b", 8 * "x")
    assert kept.get("b") is not None


def test_a_value_put_anew_counts_once():
    kept = texts(8)
    for _ in range(3):
        kept.put("a", "4444")
    kept.put("b", "4444")
    assert kept.get("a") == "4444"
