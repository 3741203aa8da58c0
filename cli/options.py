"""Options of the command line as a table: each stands for one field of a request.

Nothing here imports the requests: a field's choices are looked up when they are
completed or checked, so that the command starts without Pydantic.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

URL_VARIABLE = "PLIMSOLL_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOption:
    """An option and the field that it sets; `field` is the path to it, with dots."""

    flags: tuple[str, ...]
    field: str
    help: str
    kind: type
    panel: str
    read: Callable[[Any], Any] = dataclasses.field(default=lambda value: value)
    """Turns what was typed into the field's value."""
    complete: Callable[[str], list[str]] | None = None

    @property
    def name(self) -> str:
        """Return the name under which the value arrives."""
        return self.field.replace(".", "__")

    @property
    def flag(self) -> str:
        """Return the option as messages name it."""
        return self.flags[0].partition("/")[0]

    def declared(self) -> inspect.Parameter:
        """Return the option as Typer reads it from a function's signature."""
        option = typer.Option(*self.flags, help=self.help, rich_help_panel=self.panel, autocompletion=self.complete)
        return parameter(self.name, self.kind | None, None, option)


def command_of(
    run: Callable[..., int], options: Sequence[RequestOption], *others: inspect.Parameter
) -> Callable[..., None]:
    """Return a command that calls `run(values, **others)` and exits with what it returns.

    `values` are the options that were given, by field.
    """

    def command(**given: Any) -> None:
        typed = {option: given.pop(option.name) for option in options}
        values = {option.field: option.read(value) for option, value in typed.items() if value is not None}
        raise typer.Exit(run(values, **given))

    parameters = [*others, *(option.declared() for option in options)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def parameter(name: str, kind: Any, default: Any, declared: Any) -> inspect.Parameter:
    """Return an argument or an option as Typer reads it from a signature."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def model_argument() -> inspect.Parameter:
    """Return the argument that names a model."""
    words = "A model of the catalogue by id or alias, a folder with a config.json (./here), or a config.json."
    return parameter("model", str | None, None, typer.Argument(help=words, autocompletion=_model_names))


def file_option() -> inspect.Parameter:
    """Return the option that names a request on disk."""
    words = "A request, JSON or YAML; '-' reads it from the standard input. Options win over it."
    return parameter("file", Path | None, None, typer.Option("--file", "-f", help=words))


def set_option(example: str) -> inspect.Parameter:
    """Return the option for fields that have none of their own, with an assignment that the command takes."""
    words = f"Any field of the request, as path=value: {example}."
    return parameter("assignments", list[str] | None, None, typer.Option("--set", help=words))


def url_option() -> Any:
    """Return the option that names a service."""
    words = "A running service; without one this process answers by itself."
    return typer.Option("--url", envvar=URL_VARIABLE, help=words)


def json_option() -> Any:
    """Return the option for programs."""
    return typer.Option("--json", help="Print the answer as JSON.")


def _model_names(typed: str) -> list[str]:
    from plimsoll.planners.catalogue import catalogue

    names = {name for model in catalogue().models for name in (model.id, *model.aliases)}
    return sorted(name for name in names if name.lower().startswith(typed.lower()))
