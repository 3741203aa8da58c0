"""What measured starts taught, handed to the planner: known to every replica within a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.errors import UnknownGpu
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.learned import Learned
from plimsoll.service.ground.cached_value import CachedValue
from plimsoll.service.ground.canonical import digest
from plimsoll.service.ground.errors import MeasurementNotFound
from plimsoll.service.persistence.records import Json, LearnedKey, LearnedStart

if TYPE_CHECKING:
    # For its name alone: planning without a database needs no SQLAlchemy.
    from plimsoll.service.persistence.database import Database

# Another replica's report is in force here after this long at the latest.
KNOWN_FOR_SECONDS = 2.0
# A card of which a request replaced one of these is another one than was measured.
MEASURED_FIGURES = ("memory_bytes", "memory_bytes_per_second", "peak_flops_per_second")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStarts:
    """All that is known; `revision` names it as a whole."""

    by_key: Mapping[LearnedKey, Learned]
    revision: str

    def of(self, model_digest: str, gpu: str, engine: str, version: str) -> dict[str, Learned]:
        """Return what is known of a model on a GPU and an engine version, by weight format."""
        wanted = (model_digest, gpu, engine, version)
        return {
            key.weights: learned
            for key, learned in self.by_key.items()
            if (key.model_digest, key.gpu, key.engine, key.engine_version) == wanted
        }


NOTHING_LEARNED = LearnedStarts(by_key={}, revision="")


async def nothing_learned() -> LearnedStarts:
    """Return what a service knows that keeps no measurements."""
    return NOTHING_LEARNED


class LearningService:
    """Keeps and hands out what was learned."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known = CachedValue(self._read, most_seconds=KNOWN_FOR_SECONDS)

    async def learn(self, start: LearnedStart, by_measurement: Mapping[int, Json]) -> Learned:
        """Store a lesson beside what is known already, and return both."""
        stored = await self._database.learned_starts.put(start, by_measurement)
        self._known.forget()
        return _learned(stored)

    async def forget(self, measurement_id: int) -> None:
        """Delete a measurement and what it taught; raises MeasurementNotFound."""
        if not await self._database.learned_starts.forget(measurement_id):
            raise MeasurementNotFound(measurement_id)
        self._known.forget()

    async def known(self) -> LearnedStarts:
        """Return all that was learned, as it was at most a moment ago."""
        return await self._known.get()

    async def _read(self) -> LearnedStarts:
        found = await self._database.learned_starts.all()
        by_key = {start.key: _learned(start) for start in found}
        revisions = sorted(learned.revision for learned in by_key.values())
        return LearnedStarts(by_key=by_key, revision=digest(revisions) if revisions else "")


def _learned(start: LearnedStart) -> Learned:
    values = dict(start.learned)
    key = start.key
    revision = digest({"model": key.model_digest, "gpu": key.gpu, "engine": key.engine,
                       "version": key.engine_version, "weights": key.weights, "learned": values})  # fmt: skip
    return Learned(revision=revision, provenance=start.provenance, **values)


def model_digest(config: Mapping[str, object]) -> str:
    """Return what tells a model from others: its config, whatever it is called."""
    return digest(config)


def is_the_catalogues(gpu: Gpu, catalogue: Catalogue) -> bool:
    """Return whether a card has the catalogue's own figures, of which measurements are."""
    try:
        listed = catalogue.gpu(gpu.id)
    except UnknownGpu:
        return False
    return all(getattr(gpu, name) == getattr(listed, name) for name in MEASURED_FIGURES)
