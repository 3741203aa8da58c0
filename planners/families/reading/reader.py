"""What describes the models of a family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families.reading.config import ConfigReader

Reader: TypeAlias = Callable[[ConfigReader], ModelSpec]
