from __future__ import annotations

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.workloads.objects.gpus import container_gpus, gpu_demand, takes_other_share
from plimsoll.service.workloads.objects.workloads import pod_group
from tests.service.admission.reviews import a_container


def demand(container, **spec):
    group = pod_group("", "Pod", {"spec": {"containers": [container], **spec}})
    return gpu_demand(group.members[0], group.containers[0], catalogue())


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def product(*values: str, operator: str = "In"):
    return {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "gpu"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "h100-sxm-80gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, "h100-sxm-80gb"),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, "t4-16gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "l4-24gb"),
        ({"karpenter.k8s.aws/instance-gpu-name": "a10g"}, "a10g-24gb"),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "h100-sxm-80gb"),
        ({"kubernetes.io/arch": "amd64"}, None),
        ({}, None),
    ],
)
def test_a_selector_names_the_gpu(selector, gpu):
    assert demand(a_container(), nodeSelector=selector).gpu == gpu


H200, L4, Z9 = "NVIDIA-H200", "NVIDIA-L4", "NVIDIA-Z9"


@pytest.mark.parametrize(
    ("terms", "choices", "unknown"),
    [
        ([product(H200, L4)], ("h200-sxm-141gb", "l4-24gb"), None),
        ([product(H200), product(L4)], ("h200-sxm-141gb", "l4-24gb"), None),
        # Nodes of any GPU match the second term.
        ([product(H200, L4), {"matchExpressions": []}], (), None),
        ([product(H200, Z9)], (), "nvidia.com/gpu.product=NVIDIA-Z9"),
        ([product(H200, L4, operator="NotIn")], (), None),
    ],
)
def test_an_affinity_leaves_gpus_to_choose_from(terms, choices, unknown):
    found = demand(a_container(), affinity=affinity(*terms))
    assert (found.gpu, found.choices, found.unknown) == (None, choices, unknown)


def test_a_name_in_no_catalogue_is_told():
    found = demand(a_container(), nodeSelector={"nvidia.com/gpu.product": "NVIDIA-Z9"})
    assert (found.gpu, found.unknown) == (None, "nvidia.com/gpu.product=NVIDIA-Z9")


@pytest.mark.parametrize(
    ("terms", "gpu"),
    [
        ([product("NVIDIA-H200")], "h200-sxm-141gb"),
        ([product("NVIDIA-H200", "NVIDIA-L4")], None),
        ([product("NVIDIA-H200"), product("NVIDIA-L4")], None),
        ([product("NVIDIA-H200", operator="NotIn")], None),
        (["x"], None),
    ],
)
def test_an_affinity_names_the_gpu_where_it_leaves_no_choice(terms, gpu):
    assert demand(a_container(), affinity=affinity(*terms)).gpu == gpu


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ({"limits": {"nvidia.com/gpu": "4"}}, 4),
        ({"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": 4}}, 4),
        ({"requests": {"nvidia.com/gpu": "2"}}, 2),
        ({"limits": {"amd.com/gpu": "8"}}, 8),
        ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, 1),
        ({"limits": {"cpu": "4"}}, 0),
        ({"limits": {"nvidia.com/gpu": "half"}}, None),
        ({"limits": {"nvidia.com/gpu": "-1"}}, None),
        ({"limits": ["x"]}, None),
        ({"limits": None, "requests": "x"}, None),
        ({}, 0),
    ],
)
def test_the_limit_is_the_number_of_gpus(resources, gpus):
    group = pod_group("", "Pod", {"spec": {"containers": [{"resources": resources}]}})
    assert container_gpus(group.containers[0]) == gpus


def test_a_mig_slice_is_told_by_its_profile():
    container = {"resources": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}}
    assert demand(container).mig_profile == "3g.40gb"


@pytest.mark.parametrize(
    ("product", "gpu", "profile"),
    [
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "h100-sxm-80gb", "1g.10gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "h100-sxm-80gb", "1g.10gb"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm-80gb", None),
    ],
)
def test_equal_slices_are_told_by_the_products_name(product: str, gpu: str, profile: str | None):
    found = demand(a_container(), nodeSelector={"nvidia.com/gpu.product": product})
    assert (found.gpu, found.mig_profile) == (gpu, profile)


@pytest.mark.parametrize(("resource", "partition"), [("amd.com/cpx_nps4", "cpx_nps4"), ("amd.com/spx_nps1", None)])
def test_a_partition_of_amds_is_told_unless_it_is_the_whole(resource: str, partition: str | None):
    found = demand({"resources": {"limits": {resource: "2"}}})
    assert (found.gpus_per_pod, found.partition) == (2, partition)


@pytest.mark.parametrize(
    ("resources", "memory_gib"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 12288}, 12.0),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "0"}, None),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "many"}, None),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100}, None),
        ({"nvidia.com/gpu": 1}, None),
    ],
)
def test_a_card_divided_by_memory_has_what_is_asked_for(resources, memory_gib: float | None):
    found = demand({"resources": {"limits": resources}}, nodeSelector={"nvidia.com/gpu.product": "Tesla-T4"})
    assert (None if found.memory_bytes is None else found.memory_bytes / 2**30) == memory_gib


def test_a_part_of_a_card_is_one_of_that_card():
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}
    found = demand({"resources": {"limits": limits}}, nodeSelector={"nvidia.com/gpu.product": "Tesla-T4"})
    assert found.memory_bytes == catalogue().gpu("t4-16gb").memory_bytes // 4
    # Of which card nobody knows.
    assert demand({"resources": {"limits": limits}}).memory_bytes is None


@pytest.mark.parametrize(
    ("selector", "resource", "is_shared"),
    [
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "nvidia.com/gpu", True),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, "nvidia.com/gpu", True),
        ({}, "nvidia.com/gpu.shared", True),
        ({"nvidia.com/gpu.product": "Tesla-T4"}, "nvidia.com/gpu", False),
    ],
)
def test_shared_cards_are_known_by_their_names(selector, resource: str, is_shared: bool):
    found = demand({"resources": {"limits": {resource: 1}}}, nodeSelector=selector)
    assert (found.is_shared, found.gpus_per_pod) == (is_shared, 1)


def test_gkes_label_names_a_slice():
    labels = {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-a100",
        "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
    }
    assert demand(a_container(), nodeSelector=labels).mig_profile == "1g.5gb"


@pytest.mark.parametrize(
    ("resource", "told"),
    [("volcano.sh/vgpu-number", "volcano.sh/vgpu-number"), ("aliyun.com/gpu-mem", "aliyun.com/gpu-mem"), ("cpu", None)],
)
def test_other_schedulers_shares_are_told(resource: str, told: str | None):
    group = pod_group("", "Pod", {"spec": {"containers": [{"resources": {"limits": {resource: 1}}}]}})
    assert takes_other_share(group.containers[0]) == told
