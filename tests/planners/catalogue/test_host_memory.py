import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.catalogue.host_memory import known_hosts
from plimsoll.planners.ground.units import GIB
from tests.planners.factories import gpu


@pytest.mark.parametrize(
    ("card", "least_gib", "most_gib"),
    [
        # a3-highgpu-8g has 1,872 GiB beside 8 GPUs, BM.GPU.H100.8 and others 2,048.
        ("h100-sxm-80gb", 1872 / 8, 2048),
        # DGX-1: 512 GiB beside 8; DGX-2: 1,536 beside 16.
        ("v100-sxm-32gb", 512 / 8, 1536),
        # One kind of node: 384 GiB beside 8.
        ("rtx-4090-24gb", 48, 384),
    ],
)
def test_the_least_per_gpu_and_the_largest_node_are_those_of_the_clusters(card: str, least_gib: float, most_gib: int):
    known = known_hosts(catalogue().gpu(card))
    assert known.holds_gpu
    assert (known.least_bytes_per_gpu, known.most_bytes) == (least_gib * GIB, most_gib * GIB)


def test_a_gpu_of_no_cluster_has_the_least_and_the_most_per_byte_of_its_own_memory():
    # GB300 NVL72: 17.28 TB over 72 GPUs is 240 GB beside each; BM.GPU4.8: 2,048 GiB over 8 is 256 GiB beside each.
    known, card = known_hosts(gpu()), gpu()
    gb300, a100 = catalogue().gpu("gb300-nvl-279gb"), catalogue().gpu("a100-sxm-40gb")
    assert not known.holds_gpu
    assert (known.least, known.most) == ("gb300-nvl72", "BM.GPU4.8")
    assert known.least_bytes_per_gpu == pytest.approx(card.memory_bytes * 240e9 / gb300.memory_bytes, abs=1)
    assert known.most_bytes == pytest.approx(8 * card.memory_bytes * 256 * GIB / a100.memory_bytes, abs=1)


def test_every_gpu_of_the_catalogue_has_less_beside_each_than_beside_a_node_of_them():
    for card in catalogue().gpus:
        known = known_hosts(card)
        assert 0 < known.least_bytes_per_gpu <= known.most_bytes
