"""What a planning request means: all that it names found, and the identity of its plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.catalogue import Catalogue
from plimsoll.planners.ground.hardware import Hardware, SiteEfficiency
from plimsoll.planners.learned import Learned
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.planners.version import planner_version
from plimsoll.service.catalogue.gpus import gpu_figures, resolve_fleet
from plimsoll.service.ground.canonical import canonical_json, text_digest
from plimsoll.service.models.resolving import ModelResolver, ResolvedModel
from plimsoll.service.persistence.records import PlanKind
from plimsoll.service.plans.answers import PlanIdentity
from plimsoll.service.plans.learned_starts import LearnedStarts, is_the_catalogues, model_digest
from plimsoll.service.requests.hardware import Fleet
from plimsoll.service.requests.serving import InferRequest
from plimsoll.service.requests.training import TrainRequest

# A GPU whose own rates a request replaced is another one than was measured.
CALIBRATED_RATES = ("memory_bytes_per_second", "peak_flops_per_second")

# The calibration revision of plans that rest on the shipped efficiencies alone.
UNCALIBRATED = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuestion:
    """A request with everything it names found, and its plan's identity.

    `request_bytes` is what the request takes as JSON, with its kind and the revisions. `learned` has for each of the
    fleet what measured starts taught, by weight format. `has_one_layout` says that there is next to nothing to search.
    """

    kind: PlanKind
    model: ResolvedModel
    fleet: tuple[Hardware, ...]
    learned: tuple[Mapping[str, Learned], ...]
    request: Mapping[str, Any]
    request_bytes: int
    identity: PlanIdentity
    has_one_layout: bool


class QuestionResolver:
    """Finds models and GPUs, and gives every question its plan's id."""

    def __init__(self, catalogue: Catalogue, models: ModelResolver) -> None:
        self._catalogue = catalogue
        self._models = models

    def resolve(
        self,
        kind: PlanKind,
        request: TrainRequest | InferRequest,
        sites: Mapping[str, SiteEfficiency],
        lessons: LearnedStarts,
    ) -> ResolvedQuestion:
        """Return the question; may read files or ask the hub mirror, and raises what `ModelResolver.resolve` does."""
        fleet = tuple(
            dataclasses.replace(hardware, site=self._site(request, hardware, sites))
            for hardware in resolve_fleet(request.hardware, self._catalogue)
        )
        model = self._models.resolve(request.model)
        asked: TrainRequest | InferRequest = request
        notes: tuple[str, ...] = ()
        learned: tuple[Mapping[str, Learned], ...] = ({},) * len(fleet)
        if isinstance(request, InferRequest):
            learned = tuple(self._learned(request, model, hardware, lessons) for hardware in fleet)
            asked, notes = in_stored_formats(request, model, fleet), stored_format_notes(request, model)
        resolved = {
            **asked_parts(asked),
            # A plan that says where its formats come from is not the plan of a request that names them.
            **({"stored_formats": notes} if notes else {}),
            "model": {**model.identity, **({"checkpoint": request.model} if model.is_reupload else {})},
            "hardware": (
                {"fleet": [_figures(hardware) for hardware in fleet]}
                if isinstance(request.hardware, Fleet)
                else _figures(fleet[0])
            ),
        }
        revisions = {
            "planner_version": planner_version(),
            "catalogue_revision": self._catalogue.revision,
            "calibration_revision": _calibration_revision(fleet, learned),
        }
        text = canonical_json({"kind": kind, "request": resolved, **revisions})
        identity = PlanIdentity(plan_id=text_digest(text), **revisions)
        return ResolvedQuestion(
            kind=kind,
            model=model,
            fleet=fleet,
            learned=learned,
            request=resolved,
            request_bytes=len(text),
            identity=identity,
            has_one_layout=isinstance(request, InferRequest) and request.has_one_layout,
        )

    def _learned(
        self, request: InferRequest, model: ResolvedModel, hardware: Hardware, lessons: LearnedStarts
    ) -> Mapping[str, Learned]:
        """Return what measured starts of this model on this card and engine version taught, by weight format."""
        if not lessons.by_key or not is_the_catalogues(hardware.gpu, self._catalogue):
            return {}
        profile = engine_profile(request.serving.engine, request.serving.engine_version)
        return lessons.of(model_digest(model.config), hardware.gpu.id, profile.engine, profile.version)

    def _site(
        self, request: TrainRequest | InferRequest, hardware: Hardware, sites: Mapping[str, SiteEfficiency]
    ) -> SiteEfficiency | None:
        """Return the site's efficiencies of these GPUs: parts of the catalogue's rates, which hold of no others.

        A serving plan rests on them only where its engine was measured.
        """
        site = sites.get(hardware.gpu.id)
        if site is None or (isinstance(request, InferRequest) and not _is_measured(request, site)):
            return None
        listed = self._catalogue.gpu(hardware.gpu.id)
        same = all(getattr(hardware.gpu, name) == getattr(listed, name) for name in CALIBRATED_RATES)
        return site if same else None


def _is_measured(request: InferRequest, site: SiteEfficiency) -> bool:
    profile = engine_profile(request.serving.engine, request.serving.engine_version)
    return profile.timed_as in site.serving


def in_stored_formats(request: InferRequest, model: ResolvedModel, fleet: Sequence[Hardware]) -> InferRequest:
    """Return the request in the formats of the checkpoint it names, where it omits them."""
    stored = model.stored
    return request.in_formats(
        (hardware.gpu for hardware in fleet),
        weights=None if stored is None else stored.weights,
        kv_cache=None if stored is None else stored.kv_cache,
    )


def stored_format_notes(request: InferRequest, model: ResolvedModel) -> tuple[str, ...]:
    """Return what was taken from the name or the config of a quantized checkpoint."""
    stored, serving = model.stored, request.serving
    if stored is None:
        return ()
    notes = []
    if serving.weights is None:
        notes.append(
            f"The checkpoint is stored in {stored.weights}. Every matrix that can be in this format is counted in it; "
            "some checkpoints keep a few in a wider one."
        )
    if serving.kv_cache is None and stored.kv_cache is not None:
        notes.append(f"The checkpoint sets the KV cache to {stored.kv_cache}.")
    return tuple(notes)


def asked_parts(request: TrainRequest | InferRequest) -> dict[str, Any]:
    """Return the request with its defaults filled in; proving a plan does not change it."""
    return request.model_dump(mode="json", exclude={"validation"})


def _figures(hardware: Hardware) -> dict[str, Any]:
    """Return all that a plan depends on of its GPUs; made by hand, as `asdict` takes longer than the digest of it."""
    figures = {field.name: getattr(hardware, field.name) for field in dataclasses.fields(hardware)}
    figures["gpu"] = gpu_figures(hardware.gpu)
    for name in ("gpus", "site", "network"):
        figures[name] = None if figures[name] is None else dataclasses.asdict(figures[name])
    return figures


def _calibration_revision(fleet: tuple[Hardware, ...], learned: tuple[Mapping[str, Learned], ...]) -> str:
    """Return the revisions of the calibrations that a plan rests on, each once, or the word for none."""
    sites = [hardware.site.revision for hardware in fleet if hardware.site is not None]
    lessons = sorted(each.revision for by_format in learned for each in by_format.values())
    return "+".join(dict.fromkeys((*sites, *lessons))) or UNCALIBRATED
