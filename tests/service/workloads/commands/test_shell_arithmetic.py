from __future__ import annotations

import pytest

from plimsoll.service.workloads.commands.shell_arithmetic import arithmetic_value, assigned_in_arithmetic

VALUES = {"NODES": "2", "LOCAL": "8", "WORD": "a b", "SUM": "1+1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NODES * LOCAL", 16),
        (" (NODES + 1) * 4 - LOCAL ", 4),
        # Towards zero, as C does it.
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("NODES * RANKS", None),
        ("WORD + 1", None),
        # bash would count it first.
        ("SUM * 2", None),
        ("-3 + LOCAL", 5),
        ("1 / 0", None),
        ("1 << 4", None),
        ("2147483647", 2147483647),
        ("2147483648", None),
        ("1000000 * 1000000", None),
        ("1+" * 200 + "1", None),
        ("$(nproc)", None),
        (" ", None),
    ],
)
def test_arithmetic_is_worked_out_where_all_of_it_is_known(text: str, value: int | None):
    assert arithmetic_value(text, VALUES.get) == value


@pytest.mark.parametrize(
    ("text", "names"),
    [("i++", ["i"]), ("--i", ["i"]), ("a = 2, b += 1", ["a", "b"]), ("a == b", []), ("a <= b", []), ("a << 2", [])],
)
def test_what_arithmetic_assigns_is_known(text: str, names: list[str]):
    assert assigned_in_arithmetic(text) == names
