"""The engine's release that a question is planned for; one that cannot run the model on the card is refused."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.serving.releases.cards import card_obstacle
from plimsoll.planners.serving.releases.profile import EngineProfile, engine_profile, known_versions
from plimsoll.planners.serving.releases.served_models import model_obstacle
from plimsoll.planners.serving.releases.tables import known_engines


def able_profile(engine: str, version: str | None, *, model_type: str, gpu: Gpu) -> EngineProfile:
    """Return what the engine does at a version, by default the newest that runs the model on the card.

    Raises `InvalidQuestion` with the engines that can where it cannot, and for names nobody knows.
    """
    asked = engine_profile(engine, version)
    obstacle = _obstacle(asked, model_type, gpu)
    if obstacle is None:
        return asked
    able = _newest_able(engine, model_type, gpu)
    if able is not None and version is None:
        return able
    others = [f"{other.engine} {other.version}" for other in _all_able(model_type, gpu)]
    way_out = f"Able are {', '.join(others)}." if len(others) > 1 else f"{others[0]} is able." if others else ""
    raise InvalidQuestion(
        f"{obstacle} {way_out}".rstrip(),
        pointer="/serving/engine" if able is None else "/serving/engine_version",
        rule="engine-serves-model" if model_obstacle(asked, model_type) else "engine-runs-on-card",
    )


def _obstacle(profile: EngineProfile, model_type: str, gpu: Gpu) -> str | None:
    return model_obstacle(profile, model_type) or card_obstacle(profile, gpu)


def _all_able(model_type: str, gpu: Gpu) -> Iterator[EngineProfile]:
    for engine in known_engines():
        able = _newest_able(engine, model_type, gpu)
        if able is not None:
            yield able


def _newest_able(engine: str, model_type: str, gpu: Gpu) -> EngineProfile | None:
    """Return the newest release of an engine that runs the model on the card, None where none does."""
    releases = (engine_profile(engine, version) for version in reversed(known_versions(engine)))
    return next((release for release in releases if _obstacle(release, model_type, gpu) is None), None)
