"""Which model a request means: its name, its `config.json` and its description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planners.architecture import ModelSpec
from planners.catalogue import Catalogue, typical_config
from planners.errors import InvalidModelConfig, InvalidQuestion, NotYetAvailable
from planners.huggingface import describe_config
from service.allowed_paths import allowed_path
from service.canonical import canonical_json
from service.recently_used import RecentlyUsed
from service.requests.models import ConfigModel, HubModel, ModelRef, PathModel, SizeModel
from service.requests.values import MOST_NAME_CHARACTERS
from service.settings import Settings

CONFIG_FILE = "config.json"
MOST_CONFIG_BYTES = 2**20
MOST_DESCRIPTIONS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that a request named, with all that follows from it.

    `assumptions` are the description's and those of how it was found. `is_listed`
    says whether the catalogue knows it by `name`.
    """

    name: str
    config: Mapping[str, Any]
    spec: ModelSpec
    assumptions: tuple[str, ...] = ()
    is_listed: bool = False


class ModelResolver:
    """Finds and describes models; descriptions are kept, because reading one costs milliseconds."""

    def __init__(self, catalogue: Catalogue, settings: Settings) -> None:
        self._catalogue = catalogue
        self._settings = settings
        self._described: RecentlyUsed[str, ModelSpec] = RecentlyUsed(MOST_DESCRIPTIONS)

    def resolve(self, asked: ModelRef) -> ResolvedModel:
        """Return the model; may read a file, so call it off the event loop.

        Raises UnknownModel, UnknownModelType, InvalidModelConfig, PathNotAllowed,
        InvalidQuestion and NotYetAvailable, with pointers into the request's body.
        """
        if isinstance(asked, ConfigModel):
            return self._described_model(_name_in(asked.config), asked.config, pointer="/model/config")
        if isinstance(asked, PathModel):
            return self._from_path(asked)
        if isinstance(asked, HubModel):
            raise self._hub_refusal()
        if isinstance(asked, SizeModel):
            config, assumptions = typical_config(asked.parameters)
            name = f"typical model of {asked.parameters:.4g} parameters"
            return self._described_model(name, config, pointer="/model/parameters", assumptions=tuple(assumptions))
        return self.listed(asked)

    def listed(self, name: str) -> ResolvedModel:
        """Return a model of the catalogue by id or alias; raises UnknownModel with the nearest names."""
        model = self._catalogue.model(name)
        return self._described_model(model.id, model.config, pointer="/model", is_listed=True)

    def _from_path(self, asked: PathModel) -> ResolvedModel:
        folder = allowed_path(asked.path, self._settings.model_roots, pointer="/model/path")
        config = _read_config(folder / CONFIG_FILE, self._settings.model_roots)
        return self._described_model(folder.name, config, pointer="/model/path")

    def _hub_refusal(self) -> Exception:
        if self._settings.hub_url is None:
            return InvalidQuestion(
                "No hub mirror is configured (PLIMSOLL_HUB_URL). Send the contents of the model's config.json "
                'as {"model": {"config": …}}.',
                pointer="/model/hub",
            )
        return NotYetAvailable(
            "Fetching a config.json from the hub mirror is not there yet. Send its contents as "
            '{"model": {"config": …}}.',
            pointer="/model/hub",
        )

    def _described_model(
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        pointer: str,
        assumptions: tuple[str, ...] = (),
        is_listed: bool = False,
    ) -> ResolvedModel:
        key = canonical_json([name, config, pointer])
        spec = self._described.get(key)
        if spec is None:
            spec = describe_config(config, name=name, pointer=pointer)
            self._described.put(key, spec)
        return ResolvedModel(
            name=name,
            config=config,
            spec=spec,
            assumptions=(*assumptions, *spec.assumptions),
            is_listed=is_listed,
        )


def _name_in(config: Mapping[str, Any]) -> str:
    """Return what the config calls its model, or only its family."""
    for key in ("_name_or_path", "model_type"):
        name = config.get(key)
        if isinstance(name, str) and name.strip():
            return name[:MOST_NAME_CHARACTERS]
    return "model"


def _read_config(path: Path, roots: tuple[Path, ...]) -> dict[str, Any]:
    # The folder is allowed, but the file in it may be a link to somewhere else.
    real_path = allowed_path(str(path), roots, pointer="/model/path")
    try:
        with real_path.open("rb") as file:
            content = file.read(MOST_CONFIG_BYTES + 1)
    except OSError as error:
        raise InvalidModelConfig(f"The folder has no readable {CONFIG_FILE}.", pointer="/model/path") from error
    if len(content) > MOST_CONFIG_BYTES:
        raise InvalidModelConfig(f"{CONFIG_FILE} is larger than {MOST_CONFIG_BYTES} bytes.", pointer="/model/path")
    try:
        config = json.loads(content)
        # The same bounds as for a config in a request, and the same errors.
        return ConfigModel.model_validate({"config": config}).config
    except (ValueError, RecursionError) as error:
        raise InvalidModelConfig(f"{CONFIG_FILE} is not a model's config.", pointer="/model/path") from error
