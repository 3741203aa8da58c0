"""torchtitan's TOML, read as what its command would say in its place."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from plimsoll.service.stacks.fsdp2.flags import FILE, FLAGS, MODULES
from plimsoll.service.workloads.commands.flags import AUTO
from plimsoll.service.workloads.commands.option_files import (
    MOST_FILE_CHARACTERS,
    MOST_VALUE,
    OptionsFileNotRead,
    file_text,
)
from plimsoll.service.workloads.objects.object_parts import below
from plimsoll.service.workloads.objects.pods import Container

LEFT_TO_TORCHTITAN = -1


def values_of_torchtitan(path: str, container: Container) -> dict[str, Any]:
    """Return what a job's config says, by the fields of torchtitan's flags; raises OptionsFileNotRead.

    `modules` is its list of each stage's modules, as JSON.
    """
    config = _toml(path, container)
    values: dict[str, Any] = {}
    for flag in FLAGS:
        if flag.form != "switched-off" and flag.names != (FILE,):
            value = below(config, tuple(flag.name.replace("-", "_").split(".")))
            if value is not None:
                values[flag.field] = _of_form(flag.form, value, f"{path[:80]}, {flag.name.replace('-', '_')},")
    modules = below(config, tuple(MODULES.replace("-", "_").split(".")))
    return values if modules is None else {**values, "modules": json.dumps(modules, default=str)}


def _toml(path: str, container: Container) -> Mapping[str, Any]:
    text = file_text(path, container)
    if text is None:
        raise OptionsFileNotRead(f"{path[:80]} is not in the object")
    if len(text) > MOST_FILE_CHARACTERS:
        raise OptionsFileNotRead(f"{path[:80]} is larger than an option file")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OptionsFileNotRead(f"{path[:80]} is no TOML") from error


def _of_form(form: str, value: Any, where: str) -> Any:
    if form.startswith("whole") and isinstance(value, int) and not isinstance(value, bool):
        if value == LEFT_TO_TORCHTITAN and form == "whole-or-auto":
            return AUTO
        if 0 <= value < MOST_VALUE:
            return value
    if form == "switch" and isinstance(value, bool):
        return value
    if form == "text" and isinstance(value, str):
        return value
    if form == "text" and isinstance(value, list):
        return ",".join(map(str, value))
    raise OptionsFileNotRead(f"{where} has {str(value)[:40]!r}, which is no value it takes")
