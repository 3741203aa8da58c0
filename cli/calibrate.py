"""`plimsoll calibrate`: send a file of measurements to a running service and print what it made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.asking import NoAnswer
from cli.refusing import refuse
from cli.remote import Remote
from cli.request_files import UnreadableRequest, read_request
from cli.screen import FITS, print_json, print_text
from service.text_tables import seconds_text, table, titled


def run_calibrate(url: str, gpu: str, file: Path, *, as_json: bool) -> int:
    """Calibrate and print the report; return 0, or 2 where it was refused or nobody answers."""
    try:
        measurements = read_request(file)
        with Remote(url) as service:
            report = service.calibrate(gpu, measurements)
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, ())
    if as_json:
        print_json(report)
    else:
        print_text(report_text(report))
    return FITS


def report_text(report: Mapping[str, Any]) -> str:
    """Return a calibration's report as tables."""
    fractions = table(
        ("fraction of the datasheet", "shipped", "fitted", "resolution", ""),
        [
            (
                each["name"].removesuffix("_fraction").replace("_", " "),
                f"{each['shipped']:.3f}",
                f"{each['fitted']:.3f}",
                f"{each['resolution']:.2f}",
                "" if each["is_identifiable"] else "mostly as shipped",
            )
            for each in report["fractions"]
        ],
    )
    parts = [f"Calibration {report['revision']} of {report['gpu']}: mean error {_errors_text(report)}"]
    if report["observations"]:
        parts += [titled("Efficiencies", fractions), titled("Measurements", _measured_table(report))]
    parts += [_engine_text(engine) for engine in report["serving"]]
    return "\n\n".join(parts) + "\n"


def _errors_text(report: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{100 * report[f'error_{name}']['mean_absolute']:.1f} % {words}"
        for name, words in (("shipped", "before"), ("fitted", "after"), ("left_out", "on measurements left out"))
    )


def _measured_table(report: Mapping[str, Any]) -> str:
    return table(
        ("measurement", "measured", "shipped", "fitted", "left out"),
        [
            (
                each["what"],
                *(seconds_text(each[f"{name}_seconds"]) for name in ("measured", "shipped", "fitted", "left_out")),
            )
            for each in report["observations"]
        ],
    )


def _engine_text(engine: Mapping[str, Any]) -> str:
    """Return an engine's factors on the times that ship, and its deployments."""
    factors = table(
        ("times what ships", "fitted", "resolution", ""),
        [
            (
                each["name"].replace("_", " "),
                f"{each['fitted']:.3f}",
                f"{each['resolution']:.2f}",
                "" if each["is_identifiable"] else "mostly as shipped",
            )
            for each in engine["factors"]
        ],
    )
    heading = f"{engine['engine']}: mean error {_errors_text(engine)}"
    return "\n\n".join((titled(heading, factors), titled("Deployments", _measured_table(engine))))
