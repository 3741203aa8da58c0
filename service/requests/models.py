"""Which model is meant: one of five ways to say it."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag

from plimsoll.service.requests.configs import bounded_config
from plimsoll.service.requests.values import Name, Path, Wire

LEAST_PARAMETERS = 1e3
MOST_PARAMETERS = 1e15
FORMS = ("config", "path", "hub", "parameters")


class ConfigModel(Wire):
    """The contents of a Hugging Face `config.json`; keys no reader knows are named under `assumptions`."""

    config: Annotated[dict[str, Any], AfterValidator(bounded_config)]


class PathModel(Wire):
    """A folder with a `config.json`, under one of the allowed model roots."""

    path: Path


class HubModel(Wire):
    """A repository of the configured hub mirror."""

    hub: Name
    revision: Name = "main"


class SizeModel(Wire):
    """Only a size: typical dimensions are inferred and named under `assumptions`."""

    parameters: Annotated[float, Field(ge=LEAST_PARAMETERS, le=MOST_PARAMETERS)]


def _form(value: Any) -> str | None:
    """Return which form a model reference has, so that an error speaks of that form alone; None where it has none."""
    if isinstance(value, ConfigModel | PathModel | HubModel | SizeModel):
        return f"({next(iter(type(value).model_fields))})"
    if isinstance(value, str):
        return "(id)"
    if not isinstance(value, dict):
        return None
    named = [form for form in FORMS if form in value]
    if len(named) > 1 or (not named and "model_type" in value):
        return None
    return f"({named[0] if named else FORMS[0]})"


ModelRef: TypeAlias = Annotated[
    Annotated[Name, Tag("(id)")]
    | Annotated[ConfigModel, Tag("(config)")]
    | Annotated[PathModel, Tag("(path)")]
    | Annotated[HubModel, Tag("(hub)")]
    | Annotated[SizeModel, Tag("(parameters)")],
    Discriminator(
        _form,
        custom_error_type="model_form",
        custom_error_message="Should be a model's name, or an object with one of config (the contents of a "
        "config.json), path, hub or parameters",
    ),
    Field(
        description="A catalogue id or alias, the contents of a `config.json`, a folder under an allowed root, "
        "a repository of the configured hub mirror, or only a number of parameters."
    ),
]


class DescribeRequest(Wire):
    """A model to describe."""

    model: ModelRef
