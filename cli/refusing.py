"""How a command says that there is no answer."""

from __future__ import annotations

from collections.abc import Sequence

from plimsoll.cli.asking import NoAnswer
from plimsoll.cli.options import RequestOption
from plimsoll.cli.request_files import UnreadableRequest
from plimsoll.cli.screen import NO_ANSWER, complain

# Whole parts of a request, by what is typed for them first.
PARTS = {"/model": "MODEL", "/hardware": "--gpu"}


def refuse(error: NoAnswer | UnreadableRequest, options: Sequence[RequestOption]) -> int:
    """Print why there is no answer, with the option of each field at fault; return the exit code."""
    if isinstance(error, UnreadableRequest):
        complain(str(error))
        return NO_ANSWER
    flags = PARTS | {"/" + option.field.replace(".", "/"): option.flag for option in options}
    complain(
        error.message,
        [
            (f"{pointer} ({flags[pointer]})" if pointer in flags else pointer, detail)
            for pointer, detail in error.fields
        ],
    )
    return NO_ANSWER
