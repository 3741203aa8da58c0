"""Which model a request means: its name, its `config.json` and its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from planners.architecture import ModelSpec
from planners.catalogue import Catalogue, typical_config
from planners.errors import PlimsollError
from planners.huggingface import describe_config
from planners.huggingface.stored_formats import StoredFormats, stored_formats
from service.allowed_paths import allowed_path
from service.canonical import canonical_json
from service.checkpoints.comparison import CheckpointReport, checkpoint_report
from service.checkpoints.headers import checkpoint_state, read_checkpoint
from service.models.config_files import read_config
from service.recently_used import RecentlyUsed
from service.requests.models import ConfigModel, HubModel, ModelRef, PathModel, SizeModel
from service.requests.values import MOST_NAME_CHARACTERS
from service.settings import Settings

if TYPE_CHECKING:
    from service.hub.configs import HubClient

MOST_DESCRIPTIONS = 256
MOST_REPORTS = 64

GIVEN = "given in the request"
READ = "read from the folder"

# What a report depends on: the folder, its safetensors as the file system knows them, and the config.
ReportKey: TypeAlias = tuple[str, tuple[tuple[str, int, int, int], ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that a request named, with all that follows from it.

    `assumptions` are the description's and those of how it was found. `is_listed`
    says whether the catalogue knows it by `name`. `checkpoint` compares it with the
    safetensors of the folder it was read from, where there are any; `stored` are the
    formats of a quantized checkpoint, as its name or its config tells them.
    """

    name: str
    config: Mapping[str, Any]
    spec: ModelSpec
    assumptions: tuple[str, ...] = ()
    is_listed: bool = False
    source: str = GIVEN
    stored: StoredFormats | None = None
    checkpoint: CheckpointReport | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return what tells it from other models: its name and config, and where its checkpoint is another model."""
        told = {"name": self.name, "config": self.config}
        if self.checkpoint is None or self.checkpoint.agrees:
            return told
        return {**told, "disagreements": self.checkpoint.disagreements}


class ModelResolver:
    """Finds and describes models; descriptions are kept, because reading one costs milliseconds."""

    def __init__(self, catalogue: Catalogue, settings: Settings) -> None:
        self._catalogue = catalogue
        self._settings = settings
        self._described: RecentlyUsed[str, ModelSpec] = RecentlyUsed(MOST_DESCRIPTIONS)
        self._reports: RecentlyUsed[ReportKey, CheckpointReport] = RecentlyUsed(MOST_REPORTS)

    @cached_property
    def _hub(self) -> HubClient:
        # Here, so that who never asks the hub loads no HTTP client.
        from service.hub.configs import HubClient

        return HubClient(self._settings)

    def resolve(self, asked: ModelRef) -> ResolvedModel:
        """Return the model; may read files or ask the hub mirror, so call it off the event loop.

        Raises UnknownModel, UnknownModelType, InvalidModelConfig, InvalidCheckpoint,
        PathNotAllowed, HubModelNotFound, HubUnreachable, HubTimedOut, InvalidQuestion
        and NotYetAvailable, with pointers into the request's body.
        """
        if isinstance(asked, ConfigModel):
            return self._described_model(_name_in(asked.config), asked.config, pointer="/model/config")
        if isinstance(asked, PathModel):
            return self._from_path(asked)
        if isinstance(asked, HubModel):
            return self._from_hub(asked)
        if isinstance(asked, SizeModel):
            config, assumptions = typical_config(asked.parameters)
            name = f"typical model of {asked.parameters:.4g} parameters"
            return self._described_model(name, config, pointer="/model/parameters", assumptions=tuple(assumptions))
        return self.listed(asked)

    def listed(self, name: str) -> ResolvedModel:
        """Return a model of the catalogue by id or alias; raises UnknownModel with the nearest names."""
        model = self._catalogue.model(name)
        described = self._described_model(model.id, model.config, pointer="/model", is_listed=True)
        return replace(described, stored=model.stored)

    def _from_path(self, asked: PathModel) -> ResolvedModel:
        pointer, roots = "/model/path", self._settings.model_roots
        folder = allowed_path(asked.path, roots, pointer=pointer)
        config = read_config(folder, roots, pointer=pointer)
        model = self._from_file(folder.name, config, pointer=pointer)
        report = self._report(folder, model, pointer=pointer)
        notes = () if report is None or report.agrees else (_disagreement(report),)
        return replace(model, source=READ, checkpoint=report, assumptions=(*model.assumptions, *notes))

    def _from_hub(self, asked: HubModel) -> ResolvedModel:
        found = self._hub.config(asked.hub, asked.revision)
        return replace(self._from_file(asked.hub, found.config, pointer="/model/hub"), source=found.source)

    def _from_file(self, name: str, config: Mapping[str, Any], *, pointer: str) -> ResolvedModel:
        try:
            return self._described_model(name, config, pointer=pointer)
        except PlimsollError as error:
            # The field that is wrong is in the file, and the request's body has none to point at.
            error.pointer = pointer
            raise

    def _report(self, folder: Path, model: ResolvedModel, *, pointer: str) -> CheckpointReport | None:
        """Return how the folder's safetensors agree with the description; read again only when they changed."""
        state = checkpoint_state(folder)
        if not state:
            return None
        key = (str(folder), state, canonical_json(model.config))
        report = self._reports.get(key)
        if report is not None:
            return report
        checkpoint = read_checkpoint(folder, self._settings.model_roots, pointer=pointer)
        if checkpoint is None:
            return None
        report = checkpoint_report(checkpoint, model.spec, model.config)
        self._reports.put(key, report)
        return report

    def _described_model(
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        pointer: str,
        assumptions: tuple[str, ...] = (),
        is_listed: bool = False,
    ) -> ResolvedModel:
        # An id of the catalogue is no JSON, and its config does not change.
        key = name if is_listed else canonical_json([name, config, pointer])
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
            stored=stored_formats(config, pointer=pointer),
        )


def _name_in(config: Mapping[str, Any]) -> str:
    """Return what the config calls its model, or only its family."""
    for key in ("_name_or_path", "model_type"):
        name = config.get(key)
        if isinstance(name, str) and name.strip():
            return name[:MOST_NAME_CHARACTERS]
    return "model"


def _disagreement(report: CheckpointReport) -> str:
    return f"The checkpoint and config.json disagree, and config.json was followed. {' '.join(report.disagreements)}"
