"""Pages made from templates."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from plimsoll.api.pages.assets import assets
from plimsoll.api.pages.choices import DEFAULTS, choices, settings
from plimsoll.planners import PLANNER_VERSION


@cache
def page(name: str) -> str:
    """Return the page of that name; it depends on nothing but the version, so each is made once."""
    return _environment().get_template(f"{name}.html").render(page=name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        asset=assets().url, choices=choices(), settings=settings(), defaults=DEFAULTS, version=PLANNER_VERSION
    )
    return environment
