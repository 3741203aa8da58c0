"""Files of options that a launch command names, where a ConfigMap of the container holds them."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from plimsoll.service.workloads.objects.pods import Container

# A launch file is a page; what is larger is not parsed in the way of every job.
MOST_FILE_CHARACTERS = 32_768
# Aliases make a small YAML text large: no option file has as many entries.
MOST_OPTIONS = 500
MOST_DEPTH = 4
# A number, or a switch, that the program fills in from the command's own arguments.
LEFT_TO_COMMAND = "auto"
MOST_VALUE = 2**31
# YAML's merges multiply what they merge, and no option file needs them.
YAML_MERGE = "<<"


class OptionsFileNotRead(Exception):
    """A file of options is not at hand or not of the form it must have; the text says which and why."""


def option_file(path: str, container: Container) -> Mapping[str, Any]:
    """Return the mapping in a YAML or JSON file that the container mounts from a ConfigMap.

    Raises OptionsFileNotRead.
    """
    text = file_text(path, container)
    if text is None:
        raise OptionsFileNotRead(f"{path[:80]} is not in the object")
    if len(text) > MOST_FILE_CHARACTERS or YAML_MERGE in text:
        raise OptionsFileNotRead(f"{path[:80]} is larger than an option file, or merges parts of itself")
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise OptionsFileNotRead(f"{path[:80]} is neither YAML nor JSON") from error
    if not isinstance(content, Mapping):
        raise OptionsFileNotRead(f"{path[:80]} holds no options by name")
    return content


def file_text(path: str, container: Container) -> str | None:
    """Return a file's text, None where no ConfigMap at hand holds it and no shell text wrote it."""
    return container.files.get(container_path(path, container))


def container_path(path: str, container: Container) -> str:
    """Return a path as the container's files have it; relative ones begin at its working directory."""
    folder = container.definition.get("workingDir")
    return posixpath.normpath(posixpath.join(folder if isinstance(folder, str) else "", path))


def option_words(path: str, container: Container) -> tuple[str, ...]:
    """Return a file's options as the words of a command line, those below one of them behind a dot.

    Raises OptionsFileNotRead.
    """
    words: list[str] = []
    for number, (name, value) in enumerate(_flat("", option_file(path, container))):
        if number >= MOST_OPTIONS:
            raise OptionsFileNotRead(f"{path[:80]} has more options than any program")
        if value is not None:
            words.append(f"--{name}={_text(value)}")
    return tuple(words)


def _flat(prefix: str, options: Mapping[Any, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield names and values, for an option that has options of its own its name too."""
    for key, value in options.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < MOST_DEPTH:
            yield name, ""
            yield from _flat(f"{name}.", value, depth + 1)
        else:
            yield name, value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # What is no single value is never one of the options that are read; its name is all that matters.
    return str(value) if isinstance(value, str | int | float) else ""


def present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a file says."""
    return {field: value for field, value in values.items() if value is not None}


def text_of(value: Any) -> str | None:
    """Return a text, None for what is none."""
    return value if isinstance(value, str) else None


def switched_on(value: Any) -> bool | None:
    """Return True where it is on; "auto" and what is off leave the command's own arguments to say."""
    return True if value is True else None


def whole_of(value: Any, path: str) -> int | None:
    """Return a number, None where it is left to the command's arguments; raises OptionsFileNotRead."""
    if value is None or value == LEFT_TO_COMMAND:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_VALUE:
        raise OptionsFileNotRead(f"{path[:80]} has {str(value)[:40]} where a whole number stands")
    return value
