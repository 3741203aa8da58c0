from __future__ import annotations

import dataclasses
from typing import Any

from plimsoll.planners.catalogue import catalogue
from plimsoll.service.text.catalogue import accuracy_text, gpu_text, hardware_text, models_text
from plimsoll.service.text.tables import COLUMNS

MODEL = {"id": "org/model", "model_type": "llama", "parameters": {"total": 8_030_261_248, "active": 2_000_000_000}}


def h100() -> dict[str, Any]:
    return dataclasses.asdict(catalogue().gpu("h100"))


def test_models_are_counted_in_billions():
    text = models_text({"catalogue_revision": "abc", "items": [MODEL]})
    assert text.splitlines()[1].split() == ["org/model", "llama", "8.030", "2.000"]
    assert text.endswith("1 models, catalogue abc.\n")


def test_a_gpu_is_a_line_with_its_rates():
    # 85,029,027,840 bytes are 79.19 GiB; 3.35e12, 989.4e12, 450e9 and 50e9 a second.
    text = hardware_text({"catalogue_revision": "abc", "items": [h100()], "clusters": []})
    assert text.splitlines()[1].split() == ["h100-sxm-80gb", "79.19", "GiB", "3.35", "989.4", "450", "50", "8"]
    assert "cluster  " not in text


def test_a_gpu_without_bf16_has_no_rate_of_it():
    gpu = {**h100(), "peak_flops_per_second": {"fp16": 125e12}}
    assert hardware_text({"catalogue_revision": "", "items": [gpu], "clusters": []}).splitlines()[1].split()[4] == "450"


def test_a_gpu_alone_names_its_sources():
    text = gpu_text(h100())
    assert "nvlink4, 450 GB/s one way" in text
    assert "  source" in text


def test_the_whole_catalogue_is_within_a_terminal():
    known = catalogue()
    body = {
        "catalogue_revision": known.revision,
        "items": [dataclasses.asdict(gpu) for gpu in known.gpus],
        "clusters": [dataclasses.asdict(cluster) for cluster in known.clusters],
    }
    assert max(map(len, hardware_text(body).splitlines())) <= COLUMNS


def test_errors_on_record_are_percent_with_the_sign_of_the_mean():
    group = {
        "level": "trace", "framework": "fsdp2", "family": "llama", "gpu": "h100-sxm-80gb", "count": 3,
        "mean_relative_error": -0.0123, "median_absolute_relative_error": 0.01, "p90_absolute_relative_error": 0.02,
        "worst_absolute_relative_error": 0.03,
    }  # fmt: skip
    line = accuracy_text({"measurements": 3, "items": [group]}).splitlines()[1]
    assert line.split()[3:] == ["fsdp2", "llama", "3", "-1.23", "%", "1.00", "%", "2.00", "%", "3.00", "%"]
