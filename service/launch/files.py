"""Launch files by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from plimsoll.planners.plans import Omitted

# The text of a file, or the JSON object it holds.
Content: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFiles:
    """The launch files of a plan by name, and why the others that it should have could not be written.

    `missing` are those whose program has no option for what was planned, `omitted` those whose writing failed.
    """

    files: Mapping[str, Content]
    missing: Mapping[str, tuple[str, ...]]
    omitted: tuple[Omitted, ...] = ()
