"""The catalogues as clients read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from plimsoll.planners.catalogue import Catalogue, CatalogueModel, Cluster
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.service.models.description import ModelDescription, describe
from plimsoll.service.requests.models import DescribeRequest

if TYPE_CHECKING:
    # Whoever lists hardware needs no reader of models.
    from plimsoll.service.models.resolving import ModelResolver, ResolvedModel


class Named(Protocol):
    """What a catalogue lists."""

    @property
    def id(self) -> str:
        """Return the name that it is known by."""

    @property
    def aliases(self) -> tuple[str, ...]:
        """Return its other names."""


Entry = TypeVar("Entry", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedParameters:
    """Parameters in all, and those that work on one token."""

    total: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model of the catalogue, in a line."""

    id: str
    aliases: tuple[str, ...]
    model_type: str
    parameters: ListedParameters
    published_parameters: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The models that requests may name; with a search, those that it finds."""

    catalogue_revision: str
    items: tuple[ListedModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuList:
    """The GPUs and clusters that requests may name, or those that a search finds; rates are dense, of one direction."""

    catalogue_revision: str
    items: tuple[Gpu, ...]
    clusters: tuple[Cluster, ...]


class CataloguePages:
    """Lists and descriptions; each may take milliseconds a model, so call it off the event loop."""

    def __init__(self, catalogue: Catalogue, models: ModelResolver) -> None:
        self._catalogue = catalogue
        self._models = models
        self._model_list: ModelList | None = None

    def models(self, search: str | None = None) -> ModelList:
        """Return all models in the order of their ids, or those that a search finds."""
        if self._model_list is None:
            items = tuple(_listed(model, self._models.listed(model.id)) for model in self._catalogue.models)
            self._model_list = ModelList(catalogue_revision=self._catalogue.revision, items=items)
        return replace(self._model_list, items=found(self._model_list.items, search))

    def gpus(self, search: str | None = None) -> GpuList:
        """Return all GPUs and all clusters in the order of their ids, or those that a search finds."""
        known = self._catalogue
        return GpuList(
            catalogue_revision=known.revision,
            items=found(known.gpus, search, also=lambda gpu: gpu.name),
            clusters=found(known.clusters, search, also=lambda cluster: cluster.name),
        )

    def model(self, name: str, *, sequence_length: int | None) -> ModelDescription:
        """Return the description of a listed model; raises UnknownModel."""
        return self._description(self._models.listed(name), sequence_length)

    def describe(self, request: DescribeRequest, *, sequence_length: int | None) -> ModelDescription:
        """Return the description of any model; raises what `ModelResolver.resolve` raises."""
        return self._description(self._models.resolve(request.model), sequence_length)

    def _description(self, model: ResolvedModel, sequence_length: int | None) -> ModelDescription:
        if not model.is_listed:
            return describe(model, sequence_length=sequence_length, source=model.source)
        entry = self._catalogue.model(model.name)
        return describe(
            model,
            sequence_length=sequence_length,
            aliases=entry.aliases,
            published_parameters=entry.published_parameters,
            source=entry.source,
        )


def found(
    entries: tuple[Entry, ...], search: str | None, *, also: Callable[[Entry], str] = lambda _: ""
) -> tuple[Entry, ...]:
    """Return the entries in whose id, aliases or `also` every word of a search occurs, in any order and case.

    All of them without a search.
    """
    words = (search or "").lower().split()
    return tuple(
        each
        for each in entries
        if all(any(word in name.lower() for name in (each.id, *each.aliases, also(each))) for word in words)
    )


def _listed(entry: CatalogueModel, model: ResolvedModel) -> ListedModel:
    return ListedModel(
        id=entry.id,
        aliases=entry.aliases,
        model_type=model.spec.model_type,
        parameters=ListedParameters(total=model.spec.parameters, active=model.spec.active_parameters),
        published_parameters=entry.published_parameters,
        source=entry.source,
    )
