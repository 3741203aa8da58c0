"""`plimsoll quantize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.cli.asking import NoAnswer, answering
from plimsoll.cli.quantize_options import QUANTIZE
from plimsoll.cli.refusing import refuse
from plimsoll.cli.request_files import UnreadableRequest, merged, read_request
from plimsoll.cli.screen import FITS, NO_ANSWER, print_json, print_text, progress_bar
from plimsoll.service.text.answers import job_text

PATH_FIELDS = ("weights.path", "output")


def quantize(
    values: Mapping[str, Any],
    *,
    model: str | None,
    file: Path | None,
    assignments: Sequence[str] | None,
    url: str | None,
    as_json: bool,
) -> int:
    """Quantize and print the result; return 0 where it is done, 2 where it is not."""
    here = url is None
    placed = {
        field: str(Path(value).expanduser().resolve()) if here and field in PATH_FIELDS else value
        for field, value in values.items()
    }
    try:
        request = merged(read_request(file), placed, assignments, model=model, on_server=not here)
        with answering(url) as asked, progress_bar("Quantizing") as show:
            answer = asked.quantize(request, show)
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, QUANTIZE)
    job = answer["job"]
    if as_json:
        print_json(answer)
    else:
        print_text(job_text(job), verdict=job["state"])
    return FITS if job["state"] == "succeeded" else NO_ANSWER
