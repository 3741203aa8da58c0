"""Requests put together from a file, options and assignments."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plimsoll.service.requests.configs import special_number

STANDARD_INPUT = Path("-")
# YAML 1.2's floats (section 10.3.2); PyYAML keeps to 1.1, which reads 1.5e12 as text.
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class UnreadableRequest(Exception):
    """A file or an assignment that is no part of a request."""


def reason(error: Exception) -> str:
    """Return why a file could not be read, without its name and the number that the system has for it."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def read_request(file: Path | None) -> dict[str, Any]:
    """Return the request of a file, JSON or YAML; an empty one without a file. Raises UnreadableRequest."""
    if file is None:
        return {}
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRequest(f"{file} cannot be read: {reason(error)}") from error
    request = parsed(text, of=str(file))
    if not isinstance(request, dict):
        raise UnreadableRequest(f"{file} holds no object at its top.")
    return request


def parsed(text: str, *, of: str) -> Any:
    """Return JSON, or YAML 1.2's core, as values; raises UnreadableRequest."""
    try:
        return json.loads(text, parse_constant=special_number)
    except ValueError:
        pass
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads floats as YAML 1.2 does."""

    Loader.yaml_implicit_resolvers = dict(yaml.SafeLoader.yaml_implicit_resolvers)
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+.0123456789")
    )
    try:
        return yaml.load(text, Loader=Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise UnreadableRequest(f"{of} is neither JSON nor YAML: {error}") from error


def merged(
    request: Mapping[str, Any],
    values: Mapping[str, Any],
    assignments: Sequence[str] | None,
    *,
    model: str | None,
    on_server: bool,
) -> dict[str, Any]:
    """Return a request with the options, the assignments and the model set in it."""
    whole: dict[str, Any] = json.loads(json.dumps(request))
    if model is not None:
        whole["model"] = model_reference(model, on_server=on_server)
    for field, value in values.items():
        set_field(whole, field, value)
    for assignment in assignments or ():
        field, equals, text = assignment.partition("=")
        if not (field and equals):
            raise UnreadableRequest(f"--set takes path=value, not {assignment!r}.")
        set_field(whole, field, parsed(text, of=f"--set {field}"))
    return whole


def set_field(request: dict[str, Any], field: str, value: Any) -> None:
    """Set a field by its path, making the objects on the way; raises UnreadableRequest where one is no object."""
    *path, last = field.split(".")
    place = request
    for step in path:
        inner = place.setdefault(step, {})
        if not isinstance(inner, dict):
            # A plain value gives way to the object: `--hub` replaces a file's model, `--weights` its 'random'.
            if isinstance(inner, list):
                raise UnreadableRequest(f"{field}: {step} is a list; set it whole.")
            inner = place[step] = {}
        place = inner
    place[last] = value


def model_reference(model: str, *, on_server: bool) -> str | dict[str, Any]:
    """Return a model argument as requests name it: a catalogue's name, a folder, or the contents of a config.

    A file is read here; a folder is looked for where the answer is made.
    """
    path = Path(model).expanduser()
    if path.suffix == ".json":
        return {"config": read_request(path)}
    if model.startswith((".", "/", "~")):
        return {"path": model if on_server else str(path.resolve())}
    return model
