"""Units that quantities are told in; inside, everything is bytes and seconds."""

from __future__ import annotations

MIB, GIB = 2**20, 2**30
GIGA, TERA = 1e9, 1e12

SECONDS_PER_MINUTE = 60
SECONDS_PER_HOUR = 60 * SECONDS_PER_MINUTE
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR
DAYS_PER_MONTH = 30
