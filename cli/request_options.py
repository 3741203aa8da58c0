"""How options name fields, and those that several requests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import typer

from plimsoll.cli.options import RequestOption

HARDWARE_PANEL, JOB_PANEL, LAYOUT_PANEL, RUN_PANEL = "Hardware", "Job", "Layout (searched where absent)", "Run"


def _count_or_range(text: str) -> int | dict[str, int]:
    """Return `8` as a number and `8..512` as a range."""
    least, dots, most = text.partition("..")
    try:
        return {"min": int(least), "max": int(most)} if dots else int(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is neither a number nor a range such as 8..512", param_hint="--gpus"
        ) from error


def choices(name: str) -> Callable[[str], list[str]]:
    """Return a completion with the literals of one type of the terms or the requests."""

    def complete(typed: str) -> list[str]:
        from plimsoll.planners.ground import terms
        from plimsoll.service.requests import hardware, jobs, serving, training

        modules = (terms, training, serving, jobs, hardware)
        literal = next(getattr(module, name) for module in modules if hasattr(module, name))
        return [choice for choice in get_args(literal) if choice.startswith(typed)]

    return complete


def _gpu_names(typed: str) -> list[str]:
    from plimsoll.planners.catalogue import catalogue

    return sorted(gpu.id for gpu in catalogue().gpus if gpu.id.startswith(typed.lower()))


def option(flags: str, field: str, words: str, kind: type = str, panel: str = JOB_PANEL, **more: Any) -> RequestOption:
    return RequestOption(flags=tuple(flags.split()), field=field, help=words, kind=kind, panel=panel, **more)


MODEL: tuple[RequestOption, ...] = (
    option(
        "--parameters",
        "model.parameters",
        "Instead of a model only its size, as 6.2e9; typical dimensions are taken.",
        float,
    ),
    option("--hub", "model.hub", "A repository of the configured hub mirror, org/name."),
    option("--revision", "model.revision", "A revision of that repository."),
)
HARDWARE: tuple[RequestOption, ...] = (
    option("--gpu", "hardware.gpu", "The GPU, by id or alias.", panel=HARDWARE_PANEL, complete=_gpu_names),
    option(
        "--gpus",
        "hardware.gpus",
        "How many: 8, or a range 8..512. Absent: the fewest that will do.",
        panel=HARDWARE_PANEL,
        read=_count_or_range,
    ),
    option("--gpus-per-node", "hardware.gpus_per_node", "GPUs of one machine.", int, HARDWARE_PANEL),
    option("--cluster", "hardware.cluster", "A cluster by id or alias: its links and network.", panel=HARDWARE_PANEL),
    option("--reserve-bytes", "hardware.reserve_bytes", "Bytes of each GPU to keep free.", int, HARDWARE_PANEL),
    option("--used-bytes", "hardware.used_bytes", "Bytes of each GPU that others hold.", int, HARDWARE_PANEL),
    option("--usd-per-gpu-hour", "hardware.usd_per_gpu_hour", "A price, for the cost.", float, HARDWARE_PANEL),
    option(
        "--host-memory-bytes",
        "hardware.host_memory_bytes",
        "Host memory of one node.",
        int,
        HARDWARE_PANEL,
    ),
    option(
        "--nvme-bytes-per-second",
        "hardware.nvme_bytes_per_second",
        "One GPU's share of its machine's NVMe drives.",
        float,
        HARDWARE_PANEL,
    ),
)
