"""`plimsoll models`, `plimsoll hardware` and `plimsoll accuracy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.cli.asking import NoAnswer, answering
from plimsoll.cli.refusing import refuse
from plimsoll.cli.request_files import UnreadableRequest, model_reference
from plimsoll.cli.screen import DOES_NOT_FIT, FITS, print_json, print_text
from plimsoll.service.text.catalogue import accuracy_text, gpu_text, hardware_text, models_text


def models(name: str | None, *, search: str | None, url: str | None, as_json: bool) -> int:
    """Print the models that match, or describe one; return 0, 1 (none matches) or 2."""
    try:
        if name is not None:
            with answering(url) as asked:
                body = asked.describe(model_reference(name, on_server=url is not None))
            _print(body, _description_text(body), as_json=as_json)
            return FITS
        with answering(url) as asked:
            found = asked.models(search)
    except (NoAnswer, UnreadableRequest) as error:
        return refuse(error, ())
    _print(found, models_text(found), as_json=as_json)
    return FITS if found["items"] else DOES_NOT_FIT


def hardware(name: str | None, *, search: str | None, url: str | None, as_json: bool) -> int:
    """Print the GPUs and clusters that match, or one GPU's figures; return 0, 1 (none matches) or 2."""
    try:
        if name is not None:
            with answering(url) as asked:
                gpu = asked.gpu(name)
            _print(gpu, gpu_text(gpu), as_json=as_json)
            return FITS
        with answering(url) as asked:
            found = asked.hardware(search)
    except NoAnswer as error:
        return refuse(error, ())
    _print(found, hardware_text(found), as_json=as_json)
    return FITS if found["items"] or found["clusters"] else DOES_NOT_FIT


def accuracy(*, url: str | None, as_json: bool, as_csv: bool) -> int:
    """Print how far the predictions on a service's record were off, or each measurement as CSV; return 0 or 2."""
    try:
        if as_csv and as_json:
            raise NoAnswer("Choose --csv or --json: the one is each measurement, the other the answer with its groups.")
        with answering(url) as asked:
            if as_csv:
                print_text(asked.accuracy_csv())
                return FITS
            body = asked.accuracy()
    except NoAnswer as error:
        return refuse(error, ())
    _print(body, accuracy_text(body), as_json=as_json)
    return FITS


def _description_text(body: Mapping[str, Any]) -> str:
    # Here, so that lists need none of it.
    from pydantic import TypeAdapter

    from plimsoll.service.models.description import ModelDescription
    from plimsoll.service.text.models import model_text

    return model_text(TypeAdapter(ModelDescription).validate_python(body))


def _print(body: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(body)
    else:
        print_text(text)
