"""Which models an engine's releases have code for, as their registries say.

A model type that no table names is not judged: nothing is known against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.serving.releases.profile import EngineProfile, is_older
from plimsoll.planners.serving.releases.tables import read_table

NOTHING: Mapping[str, Any] = {}


def model_obstacle(profile: EngineProfile, model_type: str) -> str | None:
    """Return why an engine's release cannot run models of a type, or None where nothing is known against it."""
    table = _models(profile.engine)
    engine, version = profile.engine, profile.version
    if model_type in table.get("absent", ()):
        return f"{engine} has no code for {model_type} models in any release."
    first, last = table.get("since", NOTHING).get(model_type), table.get("until", NOTHING).get(model_type)
    if first is not None and is_older(version, first):
        return f"{engine} {version} has no code for {model_type} models; {first} is the first release that has."
    if last is not None and is_older(last, version):
        return f"{engine} {version} has no code for {model_type} models any more; {last} is the last release that has."
    return None


def runs_code_of(profile: EngineProfile, model_type: str) -> str | None:
    """Return whose code the release runs of a model type that it has none of its own for, None where it has."""
    for library, releases in _models(profile.engine).get("runs_code_of", NOTHING).items():
        first = releases.get(model_type)
        if first is not None and not is_older(profile.version, first):
            return str(library)
    return None


def refuses_float16(profile: EngineProfile, model_type: str) -> bool:
    """Return whether the release does not compute models of a type in fp16."""
    first = _models(profile.engine).get("refuses_float16", NOTHING).get(model_type)
    return first is not None and not is_older(profile.version, first)


def _models(engine: str) -> Mapping[str, Any]:
    models: Mapping[str, Any] = read_table(engine).get("models", NOTHING)
    return models
