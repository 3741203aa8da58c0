"""The degrees of parallelism that divide a number, in words."""

from __future__ import annotations


def divisors_text(number: int) -> str:
    """Return the divisors of a number, as a person lists them: "1, 2, 4, 7, 14 or 28"."""
    divisors = [str(degree) for degree in range(1, number + 1) if number % degree == 0]
    return " or ".join(filter(None, (", ".join(divisors[:-1]), divisors[-1])))
