"""`plimsoll calibrate`: have a service fit measurements, sent or on its record, and print what it made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plimsoll.cli.asking import NoAnswer
from plimsoll.cli.refusing import refuse
from plimsoll.cli.remote import Remote
from plimsoll.cli.request_files import UnreadableRequest, read_request
from plimsoll.cli.screen import FITS, print_json, print_text
from plimsoll.service.text.tables import joined, seconds_text, table, titled, wrapped


def run_calibrate(url: str, gpu: str, file: Path | None, *, from_record: bool = False, as_json: bool) -> int:
    """Calibrate and print the report; return 0, or 2 where it was refused or nobody answers."""
    try:
        if file is None and not from_record:
            raise NoAnswer("Name a file of measurements, or --from-record for those that the service was told.")
        measurements = {} if file is None else read_request(file)
        if from_record:
            measurements = {**measurements, "from_record": True}
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
    parts = [f"Calibration {report['revision']} of {report['gpu']}"]
    if report["observations"]:
        heading = f"Training: mean error {_errors_text(report)}"
        parts += [titled(heading, fractions), titled("Measurements", _measured_table(report)), _warning(report)]
    parts += [_engine_text(engine) for engine in report["serving"]]
    if report["record"] is not None:
        parts.append(_record_text(report["record"]))
    return joined(parts)


def _warning(fit: Mapping[str, Any]) -> str:
    """Return that a fit foretells measurements worse than what ships, where it does; nothing where it does not."""
    before, left_out = (fit[f"error_{name}"]["mean_absolute"] for name in ("shipped", "left_out"))
    if left_out <= before:
        return ""
    return wrapped(
        f"Each measurement is predicted worse by a fit to the others ({100 * left_out:.1f} %) than before "
        f"({100 * before:.1f} %): the measurements disagree, or are too few. Measure more before you rely on this fit."
    )


def _errors_text(report: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{100 * report[f'error_{name}']['mean_absolute']:.1f} % {words}"
        for name, words in (("shipped", "before"), ("fitted", "after"), ("left_out", "on measurements left out"))
    )


def _record_text(record: Mapping[str, Any]) -> str:
    used = ", ".join(str(number) for number in record["used"]) or "none"
    unused = [f"  {each['measurement_id']}: {each['reason']}" for each in record["unused"]]
    return "\n".join([f"Measurements on record: {used}", *(["Not used", *unused] if unused else [])])


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
    parts = (titled(heading, factors), titled("Deployments", _measured_table(engine)), _warning(engine))
    return "\n\n".join(part for part in parts if part)
