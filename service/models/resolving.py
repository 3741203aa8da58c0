"""Which model a request means: its name, its `config.json` and its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import Catalogue, typical_config
from plimsoll.planners.families import described_parts, read_model
from plimsoll.planners.families.reading.stored_formats import StoredFormats, stored_formats
from plimsoll.planners.ground.caches import forget
from plimsoll.planners.ground.errors import InvalidModelConfig, PlimsollError
from plimsoll.planners.ground.figures import count_in_words
from plimsoll.service.checkpoints.comparison import CheckpointReport, checkpoint_report
from plimsoll.service.checkpoints.headers import checkpoint_state, read_checkpoint
from plimsoll.service.ground.allowed_paths import allowed_path
from plimsoll.service.ground.canonical import canonical_json, digest
from plimsoll.service.ground.recently_used import RecentlyUsed
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.config_files import read_config
from plimsoll.service.requests.models import ConfigModel, HubModel, ModelRef, PathModel, SizeModel
from plimsoll.service.requests.values import MOST_NAME_CHARACTERS

if TYPE_CHECKING:
    from plimsoll.service.models.hub.configs import HubClient

MOST_DESCRIPTIONS = 1_024
MOST_DESCRIPTION_BYTES = 32 * 2**20
MOST_REPORTS = 64
BYTES_OF_A_PART = 400
"""What a weight, an operation or a tensor of a description takes in memory; 290 to 430 in the catalogue."""
MOST_ASKED_BYTES = 256 * 2**20
"""Of descriptions, each counted as often as it was asked about, before all that planning keeps of them is forgotten."""
MOST_USED_CONFIG_BYTES = 64 * 2**10
"""What is read of the catalogue's longest config takes 8 kB."""

GIVEN = "given in the request"
READ = "read from the folder"

# What a report depends on: the folder, its safetensors as the file system knows them, and the config.
ReportKey: TypeAlias = tuple[str, tuple[tuple[str, int, int, int], ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model that a request named, with all that follows from it.

    `assumptions` are the description's and those of how it was found. `is_listed`
    says whether the catalogue knows it by `name`; of the config of another, `config`
    is what was read, and `unread` says what was not. `checkpoint` compares it with the
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
    unread: str | None = None

    @property
    def is_reupload(self) -> bool:
        """Return whether it was named by a quantized repository that is not its own."""
        own = stored_formats(self.config)
        return self.stored is not None and (own is None or own.weights != self.stored.weights)

    @property
    def scale_block(self) -> int | None:
        """Return the side of the blocks that its checkpoint has one scale for each of, None where it has no such."""
        return None if self.stored is None else self.stored.scale_block

    @property
    def identity(self) -> Mapping[str, Any]:
        """Return what tells it from other models: its name, what was read of its config, and what is said of the rest.

        And where its checkpoint is another model. What no reader asked for changes no answer but by being named in it.
        """
        told = {"name": self.name, "config": self.config}
        if self.unread is not None:
            told["unread"] = self.unread
        if self.checkpoint is not None and not self.checkpoint.agrees:
            told["disagreements"] = self.checkpoint.disagreements
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A config as it was read, and what is kept of it."""

    spec: ModelSpec
    config: Mapping[str, Any]
    unread: str | None
    stored: StoredFormats | None
    size_bytes: int


class ModelResolver:
    """Finds and describes models; descriptions are kept, because reading one costs milliseconds."""

    def __init__(self, catalogue: Catalogue, settings: Settings, *, most_asked_bytes: int = MOST_ASKED_BYTES) -> None:
        self._most_asked_bytes = most_asked_bytes
        self._catalogue = catalogue
        self._settings = settings
        self._described: RecentlyUsed[str, _Described] = RecentlyUsed(
            MOST_DESCRIPTIONS, most_bytes=MOST_DESCRIPTION_BYTES, size_bytes=lambda described: described.size_bytes
        )
        self._asked_bytes = 0
        self._reports: RecentlyUsed[ReportKey, CheckpointReport] = RecentlyUsed(MOST_REPORTS)

    @cached_property
    def _hub(self) -> HubClient:
        # Here, so that who never asks the hub loads no HTTP client.
        from plimsoll.service.models.hub.configs import HubClient

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
            name = f"typical model of {count_in_words(asked.parameters)} parameters"
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
        key = (str(folder), state, digest(model.config))
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
        key = name if is_listed else digest([name, config, pointer])
        described = self._described.get(key)
        if described is None:
            described = _described(config, name=name, pointer=pointer, is_listed=is_listed)
            self._described.put(key, described)
        self._note_asked(described)
        return ResolvedModel(
            name=name,
            config=described.config,
            spec=described.spec,
            assumptions=(*assumptions, *described.spec.assumptions),
            is_listed=is_listed,
            stored=described.stored,
            unread=described.unread,
        )

    def _note_asked(self, described: _Described) -> None:
        """Forget what planning keeps of models once what was asked about has come to too much."""
        self._asked_bytes += described.size_bytes
        if self._asked_bytes > self._most_asked_bytes:
            self._asked_bytes = 0
            forget()


def _described(config: Mapping[str, Any], *, name: str, pointer: str, is_listed: bool) -> _Described:
    read = read_model(config, name=name, pointer=pointer)
    used_bytes = len(canonical_json(read.used).encode())
    if used_bytes > MOST_USED_CONFIG_BYTES and not is_listed:
        raise InvalidModelConfig(
            f"What is read of this config takes {used_bytes:,} bytes, and at most {MOST_USED_CONFIG_BYTES:,} are kept. "
            "Shorten its lists and texts.",
            pointer=pointer,
        )
    return _Described(
        spec=read.spec,
        # The catalogue's own are no stranger's.
        config=config if is_listed else read.used,
        unread=None if is_listed else read.unread,
        stored=stored_formats(config, pointer=pointer),
        size_bytes=BYTES_OF_A_PART * described_parts(read.spec) + used_bytes,
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
