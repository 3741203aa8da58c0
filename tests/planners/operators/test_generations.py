import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.generations import GENERATIONS, OTHER, generation


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("a100-sxm-80gb", "ampere"),
        ("l4-24gb", "ada"),
        ("h20-96gb", "hopper"),
        ("gb300-nvl-279gb", "blackwell"),
        ("rtx-pro-6000-server-96gb", "blackwell_card"),
        ("v100-sxm-16gb", "older"),
        ("mi300x-192gb", "other"),
    ],
)
def test_a_card_belongs_to_the_generation_of_its_compute_capability(card, name):
    assert generation(catalogue().gpu(card)) == name


def test_every_nvidia_card_has_a_generation_and_every_generation_a_card():
    found = {gpu.id: generation(gpu) for gpu in catalogue().gpus}

    assert {card for card, name in found.items() if name == OTHER} == {card for card in found if card.startswith("mi")}
    assert set(found.values()) == {*GENERATIONS.values(), OTHER}
