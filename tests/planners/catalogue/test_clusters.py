"""Every cluster file is sourced, names a GPU of the catalogue, and agrees with what its maker publishes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from plimsoll.planners.catalogue import Cluster, catalogue
from plimsoll.planners.catalogue.catalogue import FOLDER, name_key
from plimsoll.planners.ground.errors import UnknownCluster
from plimsoll.planners.ground.units import GIB

FILES = sorted((FOLDER / "clusters").glob("*.toml"))
GIGABIT_BYTES = 125_000_000

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
every_cluster = pytest.mark.parametrize("cluster", catalogue().clusters, ids=lambda cluster: cluster.id)


@every_file
def test_a_file_is_named_for_its_id_and_has_a_source_and_no_price(path: Path) -> None:
    record = tomllib.loads(path.read_text())
    assert path.stem == name_key(record["id"])
    assert record["source"]
    assert not any("usd" in key or "price" in key for key in record)


@every_cluster
def test_a_cluster_holds_a_gpu_of_the_catalogue_by_its_id(cluster: Cluster) -> None:
    assert catalogue().gpu(cluster.gpu).id == cluster.gpu


@every_cluster
def test_the_link_is_the_gpus_own(cluster: Cluster) -> None:
    gpu = catalogue().gpu(cluster.gpu)
    assert (cluster.link_kind, cluster.link_bytes_per_second) == (gpu.link_kind, gpu.link_bytes_per_second)


@every_cluster
def test_the_network_is_slower_than_the_link_and_the_host_holds_more_than_one_gpu(cluster: Cluster) -> None:
    assert 5e8 <= cluster.nic_bytes_per_second < cluster.link_bytes_per_second
    assert cluster.host_memory_bytes > catalogue().gpu(cluster.gpu).memory_bytes
    assert cluster.gpus_per_node in {2, 4, 8, 16, 72}


def test_no_two_clusters_share_a_name() -> None:
    names = [name_key(name) for cluster in catalogue().clusters for name in (cluster.id, *cluster.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "gigabits_a_gpu", "host_gib"),
    [
        # AWS: 400 Gb/s of EFA for eight, and 3,200.
        ("p4d.24xlarge", "a100-sxm-40gb", 8, 50, 1152),
        ("p5.48xlarge", "h100-sxm-80gb", 8, 400, 2048),
        ("p6-b300.48xlarge", "b300-sxm-270gb", 8, 800, 4096),
        # Google: four adapters of 200 Gb/s for the GPUs, then eight, then eight of 400.
        ("a3-highgpu-8g", "h100-sxm-80gb", 8, 100, 1872),
        ("a3-mega", "h100-sxm-80gb", 8, 200, 1872),
        ("a3-ultra", "h200-sxm-141gb", 8, 400, 2952),
        # Azure: 200 and 400 Gb/s of InfiniBand for each GPU.
        ("ND96asr_v4", "a100-sxm-40gb", 8, 200, 900),
        ("ND H100 v5", "h100-sxm-80gb", 8, 400, 1900),
        ("ND MI300X v5", "mi300x-192gb", 8, 400, 1850),
        # Oracle: 1,600 and 3,200 Gb/s of RDMA.
        ("BM.GPU4.8", "a100-sxm-40gb", 8, 200, 2048),
        ("BM.GPU.H100.8", "h100-sxm-80gb", 8, 400, 2048),
        # No server in particular: an adapter for two or for all eight, and twice the GPUs' memory.
        ("8x-a100-pcie-80gb", "a100-pcie-80gb", 8, 100, 1280),
        ("pcie-8x-h100-80gb", "h100-pcie-80gb", 8, 200, 1280),
        ("pcie-8x-rtx-4090-24gb", "rtx-4090-24gb", 8, 12.5, 384),
        # NVIDIA's own.
        ("dgx-a100", "a100-sxm-80gb", 8, 200, 2048),
        ("dgx-h100", "h100-sxm-80gb", 8, 400, 2048),
        ("hgx-b200", "b200-sxm-180gb", 8, 400, 2048),
    ],
)
def test_a_cluster_is_what_its_maker_publishes(
    name: str, gpu: str, gpus: int, gigabits_a_gpu: float, host_gib: int
) -> None:
    cluster = catalogue().cluster(name)
    assert (cluster.gpu, cluster.gpus_per_node) == (gpu, gpus)
    assert cluster.nic_bytes_per_second == gigabits_a_gpu * GIGABIT_BYTES
    assert cluster.host_memory_bytes == host_gib * GIB


def test_a_rack_of_72_is_one_node() -> None:
    assert catalogue().cluster("GB200 NVL72").gpus_per_node == 72


def test_an_unknown_cluster_is_refused_with_those_of_its_family() -> None:
    with pytest.raises(UnknownCluster) as refusal:
        catalogue().cluster("p5.49xlarge")
    assert "p5.48xlarge" in refusal.value.nearest
    assert refusal.value.pointer == "/hardware/cluster"


def test_a_card_s_own_box_is_the_catalogue_s_of_its_kind() -> None:
    box, card = catalogue().cluster("pcie-8x-rtx-4090-24gb"), catalogue().gpu("rtx-4090")
    assert (card.gpus_per_node, card.nic_bytes_per_second) == (box.gpus_per_node, box.nic_bytes_per_second)
