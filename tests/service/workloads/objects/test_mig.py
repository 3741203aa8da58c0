from __future__ import annotations

import tomllib

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.units import GIB
from plimsoll.service.workloads.objects.mig import PROFILES_FILE, slice_bytes

CARDS = tomllib.loads(PROFILES_FILE.read_text())["card"]


@pytest.mark.parametrize(
    ("gpu", "profile", "gib"),
    [
        ("a100-sxm-40gb", "1g.5gb", 4.75),
        ("a100-sxm-40gb", "1g.5gb.me", 4.75),
        ("h100-sxm-80gb", "1G.10GB+me", 9.75),
        ("h100-sxm-80gb", "9g.90gb", None),
        ("b200-sxm-180gb", "1g.23gb", None),
    ],
)
def test_a_slice_has_the_memory_that_is_listed(gpu: str, profile: str, gib: float | None):
    assert slice_bytes(gpu, profile) == (None if gib is None else round(gib * GIB))


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card["gpus"][0])
def test_every_listing_is_of_a_gpu_of_the_catalogue_and_within_it(card):
    assert card["source"]
    for gpu in card["gpus"]:
        whole = catalogue().gpu(gpu).memory_bytes
        assert all(slice_bytes(gpu, profile) <= whole for profile in card["profiles"])
