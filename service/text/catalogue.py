"""The catalogues and the record of accuracy as tables that a person reads in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.units import GIGA, TERA
from plimsoll.service.text.tables import gib, joined, notes, pairs, table, titled

BILLION = 1e9


def models_text(body: Mapping[str, Any]) -> str:
    """Return `GET /models` as a table."""
    rows = [
        (
            model["id"],
            model["model_type"],
            f"{model['parameters']['total'] / BILLION:,.3f}",
            f"{model['parameters']['active'] / BILLION:,.3f}",
        )
        for model in body["items"]
    ]
    listed = table(("model", "type", "billion parameters", "active a token"), rows)
    return joined([listed, f"{len(rows)} models, catalogue {body['catalogue_revision']}."])


def hardware_text(body: Mapping[str, Any]) -> str:
    """Return `GET /hardware` as tables; rates are dense and for one direction."""
    gpus = [
        (
            gpu["id"],
            gib(gpu["memory_bytes"]),
            _rate(gpu["memory_bytes_per_second"], TERA),
            _bf16(gpu),
            _rate(gpu["link_bytes_per_second"], GIGA),
            _rate(gpu["nic_bytes_per_second"], GIGA),
            gpu["gpus_per_node"],
        )
        for gpu in body["items"]
    ]
    clusters = [
        (
            cluster["id"],
            f"{cluster['gpus_per_node']} × {cluster['gpu']}",
            _rate(cluster["link_bytes_per_second"], GIGA),
            _rate(cluster["nic_bytes_per_second"], GIGA),
        )
        for cluster in body["clusters"]
    ]
    gpu_header = ("GPU", "memory", "TB/s", "bf16 TFLOP/s", "link GB/s", "network GB/s", "a node")
    return joined(
        [
            table(gpu_header, gpus) if gpus else "",
            table(("cluster", "node", "link GB/s", "network GB/s"), clusters) if clusters else "",
            f"{len(gpus)} GPUs, {len(clusters)} clusters, catalogue {body['catalogue_revision']}.",
        ]
    )


def gpu_text(gpu: Mapping[str, Any]) -> str:
    """Return `GET /hardware/{id}` as tables."""
    facts = (
        ("also called", ", ".join(gpu["aliases"])),
        ("memory", f"{gib(gpu['memory_bytes'])}, as the driver reports it"),
        ("memory rate", f"{_rate(gpu['memory_bytes_per_second'], TERA)} TB/s"),
        ("link", f"{gpu['link_kind']}, {_rate(gpu['link_bytes_per_second'], GIGA)} GB/s one way"),
        ("to the host", f"{_rate(gpu['pcie_bytes_per_second'], GIGA)} GB/s one way"),
        ("network", f"{_rate(gpu['nic_bytes_per_second'], GIGA)} GB/s one way"),
        ("GPUs per node", gpu["gpus_per_node"]),
        ("source", gpu["source"]),
    )
    rates = [(name, _rate(rate, TERA)) for name, rate in gpu["peak_flops_per_second"].items()]
    return joined(
        [
            titled(f"GPU {gpu['id']}  ({gpu['name']})", pairs(facts)),
            titled("Dense peak rates", table(("format", "TFLOP/s"), rates)),
            notes("Assumptions", gpu["assumptions"]),
        ]
    )


def accuracy_text(body: Mapping[str, Any]) -> str:
    """Return `GET /accuracy` as a table; errors are predicted/measured − 1."""
    rows = [
        (
            f"{group['level']} on {group['gpu']}",
            group["framework"],
            group["family"] or "",
            group["count"],
            f"{100 * group['mean_relative_error']:+.2f} %",
            f"{100 * group['median_absolute_relative_error']:.2f} %",
            f"{100 * group['p90_absolute_relative_error']:.2f} %",
            f"{100 * group['worst_absolute_relative_error']:.2f} %",
        )
        for group in body["items"]
    ]
    header = ("how it was measured", "framework", "family", "number", "mean", "median size", "90th", "worst")
    count = body["measurements"]
    return joined([table(header, rows) if rows else "", f"{count} measurements on record beside what was predicted."])


def _bf16(gpu: Mapping[str, Any]) -> str:
    rate = gpu["peak_flops_per_second"].get("bf16")
    return "" if rate is None else _rate(rate, TERA)


def _rate(per_second: float, unit: float) -> str:
    return f"{per_second / unit:,.4g}"
