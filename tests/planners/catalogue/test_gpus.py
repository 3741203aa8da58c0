"""Every GPU file is sourced and its figures agree with each other and with the datasheets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.catalogue.catalogue import FOLDER
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.ground.units import GIB

FILES = sorted((FOLDER / "gpus").glob("*.toml"))
SOURCES = {"rates", "memory", "link", "pcie", "box"}
FORMATS = {"fp32", "tf32", "bf16", "fp16", "fp8", "int8", "nvfp4", "mxfp4"}
LINK_KINDS = {"nvlink2", "nvlink3", "nvlink4", "nvlink5", "infinity-fabric", "pcie"}
# A card never reports more than its box says, and the driver keeps at most a tenth.
MOST_OF_THE_BOX = 1.02
LEAST_OF_THE_BOX = 0.9

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
every_gpu = pytest.mark.parametrize("gpu", catalogue().gpus, ids=lambda gpu: gpu.id)

# The ids that clients are told to expect.
PROMISED = [
    "v100-sxm-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-80gb",
    "h100-sxm-80gb",
    "h100-pcie-80gb",
    "h200-sxm-141gb",
    "b200-sxm-180gb",
    "gb200-nvl-186gb",
    "b300-sxm-270gb",
    "l4-24gb",
    "l40s-48gb",
    "a10-24gb",
    "t4-16gb",
    "rtx-4090-24gb",
    "mi300x-192gb",
]


@pytest.mark.parametrize("gpu_id", PROMISED)
def test_a_promised_id_is_in_the_catalogue(gpu_id: str) -> None:
    assert catalogue().gpu(gpu_id).id == gpu_id


def test_thirty_gpus_or_more_are_known() -> None:
    assert len(catalogue().gpus) >= 30


@every_file
def test_a_file_names_a_source_for_every_group_of_figures_and_no_price(path: Path) -> None:
    record = tomllib.loads(path.read_text())
    assert path.stem == record["id"]
    assert set(record["sources"]) == SOURCES
    assert all(record["sources"].values())
    assert not any("usd" in key or "price" in key for key in record)


@every_gpu
def test_the_memory_is_a_little_less_than_the_box_says(gpu: Gpu) -> None:
    named = re.search(r"-(\d+)gb$", gpu.id)
    assert named is not None
    box_bytes = int(named[1]) * GIB
    assert LEAST_OF_THE_BOX * box_bytes <= gpu.memory_bytes <= MOST_OF_THE_BOX * box_bytes


@every_gpu
def test_a_narrower_format_is_never_slower(gpu: Gpu) -> None:
    rates = gpu.peak_flops_per_second
    assert set(rates) <= FORMATS
    order = [rates[name] for name in ("fp32", "tf32", "bf16", "fp8", "mxfp4") if name in rates]
    assert order == sorted(order)
    assert rates["fp16"] == rates.get("bf16", rates["fp16"])


@every_gpu
def test_rates_and_counts_are_within_what_exists(gpu: Gpu) -> None:
    assert 100e9 <= gpu.memory_bytes_per_second <= 10e12
    assert all(1e12 <= rate <= 20e15 for rate in gpu.peak_flops_per_second.values())
    assert gpu.link_kind in LINK_KINDS
    assert gpu.nic_bytes_per_second < gpu.link_bytes_per_second <= 900e9
    assert 15e9 <= gpu.pcie_bytes_per_second <= 450e9
    assert gpu.assumptions


@every_gpu
def test_eight_gpus_are_one_box_but_of_a_superchip(gpu: Gpu) -> None:
    # A GH200 server holds one; a rack of GB200 or GB300 is one NVLink domain.
    assert gpu.gpus_per_node == {"gh200-96gb": 1, "gb200-nvl-186gb": 72, "gb300-nvl-279gb": 72}.get(gpu.id, 8)


@every_gpu
def test_a_card_without_another_link_speaks_pcie_to_its_neighbours(gpu: Gpu) -> None:
    if gpu.link_kind == "pcie":
        assert gpu.link_bytes_per_second <= 63e9


@pytest.mark.parametrize(
    ("gpu_id", "gib"),
    [
        ("h100-sxm-80gb", 79.19),  # vLLM's log on an H100-80GB
        ("rtx-3090-24gb", 23.58),  # vLLM's log on an RTX 3090
        ("h200-sxm-141gb", 139.80),  # torch: 143,156 MiB
        ("a100-sxm-80gb", 79.15),  # torch's out-of-memory message
        ("b200-sxm-180gb", 178.36),  # torch: 182,642 MiB
        ("mi300x-192gb", 191.98),  # torch: 196,592 MiB
    ],
)
def test_the_memory_is_what_the_driver_reports(gpu_id: str, gib: float) -> None:
    assert catalogue().gpu(gpu_id).memory_bytes / GIB == pytest.approx(gib, abs=0.005)


@pytest.mark.parametrize(
    ("gpu_id", "number_format", "dense_flops_per_second"),
    [
        # NVIDIA A100 datasheet, June 2021: bf16 312 TFLOP/s, 624 with sparsity.
        ("a100-sxm-80gb", "bf16", 312e12),
        # NVIDIA H100 whitepaper v1.04, table 3: 989.4; the datasheet's 1,979 is with sparsity.
        ("h100-sxm-80gb", "bf16", 989.4e12),
        ("h100-sxm-80gb", "fp8", 1978.9e12),
        # NVIDIA L40S datasheet, August 2023: 362.05 | 733 with sparsity.
        ("l40s-48gb", "bf16", 362.05e12),
        # NVIDIA Blackwell datasheet, HGX B200: fp4 144 PFLOP/s with sparsity for 8, 9 dense for one.
        ("b200-sxm-180gb", "nvfp4", 9e15),
        # AMD MI300X datasheet, December 2023: fp16 1,307.4 dense.
        ("mi300x-192gb", "fp16", 1307.4e12),
        # NVIDIA V100 datasheet, January 2020.
        ("v100-sxm-32gb", "fp16", 125e12),
    ],
)
def test_rates_are_the_datasheets_dense_ones(gpu_id: str, number_format: str, dense_flops_per_second: float) -> None:
    assert catalogue().gpu(gpu_id).peak_flops_per_second[number_format] == dense_flops_per_second


@pytest.mark.parametrize(
    ("gpu_id", "one_direction"),
    [
        ("v100-sxm-32gb", 150e9),  # 300 GB/s both ways (V100 datasheet)
        ("a100-sxm-80gb", 300e9),  # 600 GB/s both ways (A100 datasheet)
        ("h100-sxm-80gb", 450e9),  # 900 GB/s both ways (H100 datasheet)
        ("h800-sxm-80gb", 200e9),  # 400 GB/s both ways (arXiv:2505.09343)
        ("b200-sxm-180gb", 900e9),  # 1.8 TB/s both ways (Blackwell brief)
    ],
)
def test_link_rates_are_of_one_direction(gpu_id: str, one_direction: float) -> None:
    assert catalogue().gpu(gpu_id).link_bytes_per_second == one_direction


@pytest.mark.parametrize("gpu_id", ["v100-sxm-16gb", "v100-sxm-32gb", "t4-16gb"])
def test_cards_before_ampere_have_no_bf16(gpu_id: str) -> None:
    assert "bf16" not in catalogue().gpu(gpu_id).peak_flops_per_second
