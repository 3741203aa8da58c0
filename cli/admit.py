"""`plimsoll admit`: what the admission webhook would say to manifests on disk, without a cluster or a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from planners.catalogue import catalogue
from service.admission.judge import AdmissionService
from service.admission.policy import Policies
from service.admission.review import Answer, Review
from service.admission.sizing import Sizer
from service.admission.workloads import READERS
from service.errors import DatabaseUnavailable
from service.models import ModelResolver
from service.persistence.records import StoredPlan
from service.settings import Settings

ADMITTED, REFUSED, NOT_JUDGED = 0, 1, 2


class NoStoredPlans:
    """There is no database behind the command: plans named by id cannot be looked up."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Raise DatabaseUnavailable."""
        raise DatabaseUnavailable(f"plan {plan_id[:80]} needs a running service")


def admit(file: Path, policy: Path | None) -> int:
    """Print the verdict of each manifest in a YAML or JSON file; return 0, 1 (refused) or 2 (could not judge)."""
    settings, known = Settings(), catalogue()
    service = AdmissionService(
        answers=Sizer(ModelResolver(known, settings), known),
        plans=NoStoredPlans(),
        catalogue=known,
        policies=Policies(policy or settings.admission_policy_file),
    )
    worst = ADMITTED
    judged = 0
    for review in _reviews(file):
        answer = asyncio.run(service.review(review))
        _print(review, answer)
        judged += 1
        if not answer.is_allowed:
            worst = REFUSED
        elif not answer.is_judged and worst == ADMITTED:
            worst = NOT_JUDGED
    if not judged:
        typer.echo(f"{file}: nothing in it starts pods that Plimsoll reads.", err=True)
        return NOT_JUDGED
    return worst


def _print(review: Review, answer: Answer) -> None:
    verdict = "admitted" if answer.is_allowed else "refused"
    typer.echo(f"{review.kind} {review.name or '(no name)'}: {verdict}")
    for line in dict.fromkeys((answer.message, *answer.warnings, *answer.audit_annotations.values())):
        if line:
            typer.echo(f"  {line}")


def _reviews(file: Path) -> Iterator[Review]:
    try:
        documents = list(yaml.safe_load_all(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(NOT_JUDGED) from error
    for document in documents:
        if not isinstance(document, dict):
            continue
        group = str(document.get("apiVersion", "")).rpartition("/")[0]
        kind = str(document.get("kind", ""))
        if (group, kind) in READERS:
            yield _created(group, kind, document)


def _created(group: str, kind: str, manifest: dict[str, Any]) -> Review:
    metadata = manifest.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    return Review(
        uid="on-disk",
        operation="CREATE",
        group=group,
        kind=kind,
        name=str(named.get("name", "")),
        namespace=str(named.get("namespace", "default")),
        object=manifest,
        old_object=None,
        is_dry_run=True,
    )
