"""Send a file of measurements to a running service and print what it made of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from cli.credentials import key_header
from service.text_tables import seconds_text, table, titled

TIMEOUT_SECONDS = 120.0


def run_calibrate(url: str, gpu: str, file: Path) -> int:
    """Calibrate and print the report; return the exit status: 1 where it was refused, 2 where nothing was asked."""
    try:
        measurements = file.read_bytes()
    except OSError as error:
        sys.stderr.write(f"{file} cannot be read: {error.strerror}.\n")
        return 2
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS, trust_env=False, headers=key_header()) as client:
        try:
            answer = client.put(
                f"/hardware/{quote(gpu, safe='')}/calibration",
                content=measurements,
                headers={"content-type": "application/json"},
            )
        except httpx.TransportError as error:
            sys.stderr.write(f"No service answers on {url} ({error}). Start one with `make serve`.\n")
            return 2
    if answer.is_error:
        sys.stderr.write(_refusal(answer))
        return 1
    sys.stdout.write(report_text(answer.json()))
    return 0


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
    measured = table(
        ("measurement", "measured", "shipped", "fitted", "left out"),
        [
            (
                each["what"],
                *(seconds_text(each[f"{name}_seconds"]) for name in ("measured", "shipped", "fitted", "left_out")),
            )
            for each in report["observations"]
        ],
    )
    errors = ", ".join(
        f"{100 * report[f'error_{name}']['mean_absolute']:.1f} % {words}"
        for name, words in (("shipped", "before"), ("fitted", "after"), ("left_out", "on measurements left out"))
    )
    heading = f"Calibration {report['revision']} of {report['gpu']}: mean error {errors}"
    return "\n\n".join((heading, titled("Efficiencies", fractions), titled("Measurements", measured))) + "\n"


def _refusal(answer: httpx.Response) -> str:
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return f"The service answered {answer.status_code}: {answer.text}\n"
    problem = answer.json()
    lines = [f"  {error['pointer']}: {error['detail']}" for error in problem["errors"]]
    return "\n".join([f"Refused: {problem['detail']}", *lines]) + "\n"
