"""MIG slices: a part of a GPU with memory of its own, which a pod asks for by its profile's name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from plimsoll.planners.ground.units import GIB

PROFILES_FILE = Path(__file__).parent / "mig_profiles.toml"
# "1g.10gb+me" has media engines besides; in a resource's name the plus is a dot.
MEDIA_SUFFIX = re.compile(r"[+.]me(\.all)?$")


def slice_bytes(gpu: str, profile: str) -> int | None:
    """Return the memory of one slice of a GPU of the catalogue, None where no listing is known of it."""
    gib = _profiles().get(gpu, {}).get(MEDIA_SUFFIX.sub("", profile.lower()))
    return None if gib is None else round(gib * GIB)


@cache
def _profiles() -> Mapping[str, Mapping[str, float]]:
    cards = tomllib.loads(PROFILES_FILE.read_text())["card"]
    return {gpu: card["profiles"] for card in cards for gpu in card["gpus"]}
