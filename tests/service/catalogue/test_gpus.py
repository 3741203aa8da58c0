"""Which GPU a request means, and in what nodes."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.ground.errors import InvalidQuestion, UnknownCluster
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.service.catalogue.gpus import resolve_hardware
from plimsoll.service.requests.hardware import OneHardware

BY_HAND = {
    "memory_bytes": 10**11,
    "memory_bytes_per_second": 1e12,
    "peak_flops_per_second": {"bf16": 1e15},
    "link_bytes_per_second": 1e11,
    "pcie_bytes_per_second": 1e10,
    "nic_bytes_per_second": 1e10,
    "gpus_per_node": 8,
}


def hardware(gpu: Any = "h100", **fields: Any) -> Hardware:
    return resolve_hardware(OneHardware.model_validate({"gpu": gpu, **fields}), catalogue())


def test_a_cluster_gives_the_node_and_the_network():
    asked = hardware("a100-pcie-80gb", cluster="NC A100 v4")
    assert asked.gpus_per_node == asked.gpu.gpus_per_node == 4
    # 80 Gb/s for four GPUs.
    assert asked.gpu.nic_bytes_per_second == 2.5e9
    assert any("Standard_NC96ads_A100_v4" in note for note in asked.gpu.assumptions)


def test_a_clusters_name_makes_no_other_gpu():
    asked = hardware(cluster="p5.48xlarge")
    assert (asked.gpu.id, asked.gpu.memory_bytes) == ("h100-sxm-80gb", hardware().gpu.memory_bytes)


def test_what_the_request_gives_itself_goes_before_the_cluster():
    asked = hardware(cluster="a3-mega", gpus_per_node=4, override={"nic_bytes_per_second": 1e9})
    assert asked.gpus_per_node == 4
    assert asked.gpu.nic_bytes_per_second == 1e9
    assert asked.gpu.gpus_per_node == 8


@pytest.mark.parametrize("gpu", ["h200", "a100-sxm-80gb", BY_HAND])
def test_a_cluster_of_another_gpu_is_refused(gpu: Any):
    with pytest.raises(InvalidQuestion, match=r"holds h100-sxm-80gb") as refusal:
        hardware(gpu, cluster="p5")
    assert refusal.value.pointer == "/hardware/cluster"


def test_an_unknown_cluster_is_refused():
    with pytest.raises(UnknownCluster):
        hardware(cluster="p55")


def test_host_memory_is_as_given_or_the_cluster_s():
    assert hardware().host_memory_bytes is None
    assert hardware(cluster="dgx-h100").host_memory_bytes == 2048 * 2**30
    assert hardware(cluster="dgx-h100", host_memory_bytes=10**12).host_memory_bytes == 10**12
    assert hardware(BY_HAND, host_memory_bytes=10**12).host_memory_bytes == 10**12


def test_pods_are_whole_nodes():
    with pytest.raises(InvalidQuestion, match="A pod of 3 GPUs is not whole nodes of 8") as refused:
        hardware(gpus=16, network={"gpus_per_pod": 3, "oversubscription": 2.0})
    assert refused.value.pointer == "/hardware/network/gpus_per_pod"
    found = hardware(gpus=16, network={"gpus_per_pod": 16, "oversubscription": 2.0}).network
    assert found is not None
    assert found.gpus_per_pod == 16
