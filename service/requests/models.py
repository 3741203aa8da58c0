"""Which model is meant: one of five ways to say it."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Discriminator, Field, Tag

from service.requests.values import Name, Path, Wire

LEAST_PARAMETERS = 1e3
MOST_PARAMETERS = 1e15

# A config.json is a page of text; real ones nest four deep.
MOST_CONFIG_KEYS = 2_000
MOST_CONFIG_DEPTH = 16


class ConfigModel(Wire):
    """The contents of a Hugging Face `config.json`; keys no reader knows are named under `assumptions`."""

    config: Annotated[dict[str, Any], AfterValidator(lambda config: _bounded(config))]


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


def _form(value: Any) -> str:
    """Return which form a model reference has, so that an error speaks of that form alone."""
    if isinstance(value, ConfigModel | PathModel | HubModel | SizeModel):
        return f"({next(iter(type(value).model_fields))})"
    if not isinstance(value, dict):
        return "(id)"
    for key in ("path", "hub", "parameters"):
        if key in value:
            return f"({key})"
    return "(config)"


ModelRef: TypeAlias = Annotated[
    Annotated[Name, Tag("(id)")]
    | Annotated[ConfigModel, Tag("(config)")]
    | Annotated[PathModel, Tag("(path)")]
    | Annotated[HubModel, Tag("(hub)")]
    | Annotated[SizeModel, Tag("(parameters)")],
    Discriminator(_form),
    Field(
        description="A catalogue id or alias, the contents of a `config.json`, a folder under an allowed root, "
        "a repository of the configured hub mirror, or only a number of parameters."
    ),
]


class DescribeRequest(Wire):
    """A model to describe."""

    model: ModelRef


def _bounded(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config; raises ValueError where it is no config anyone could have written."""
    keys = 0
    level: list[Any] = [config]
    for _ in range(MOST_CONFIG_DEPTH):
        inner: list[Any] = []
        for value in level:
            keys += len(value)
            inner.extend(item for item in (value.values() if isinstance(value, dict) else value) if _holds_more(item))
        if keys > MOST_CONFIG_KEYS:
            raise ValueError(f"holds more than {MOST_CONFIG_KEYS} entries")
        if not inner:
            return config
        level = inner
    raise ValueError(f"is nested more than {MOST_CONFIG_DEPTH} deep")


def _holds_more(value: Any) -> bool:
    return isinstance(value, dict | list)
