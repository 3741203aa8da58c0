"""`plimsoll admit`: what the admission webhook would say to manifests on disk, without a cluster or a server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from plimsoll.cli.request_files import reason
from plimsoll.planners.catalogue import catalogue
from plimsoll.service.admission.judge import AdmissionService
from plimsoll.service.admission.kinds import READ_KINDS
from plimsoll.service.admission.policy import InvalidPolicy, Policies
from plimsoll.service.admission.review import Answer, Review
from plimsoll.service.admission.sizing import Sizer
from plimsoll.service.ground.errors import DatabaseUnavailable
from plimsoll.service.ground.settings import Settings
from plimsoll.service.models.resolving import ModelResolver
from plimsoll.service.persistence.records import StoredPlan
from plimsoll.service.workloads.objects.config_maps import GivenConfigMaps
from plimsoll.service.workloads.objects.object_parts import below, each_of
from plimsoll.service.workloads.objects.training_runtimes import CLUSTER_RUNTIME, NAMESPACED_RUNTIME, GivenRuntimes

ADMITTED, REFUSED, NOT_JUDGED = 0, 1, 2
# As `kubectl apply -f -` has it.
STANDARD_INPUT = "-"


class NoStoredPlans:
    """There is no database behind the command: plans named by id cannot be looked up."""

    async def get(self, plan_id: str) -> StoredPlan:
        """Raise DatabaseUnavailable."""
        raise DatabaseUnavailable(f"plan {plan_id[:80]} needs a running service")


def admit(file: Path, policy: Path | None) -> int:
    """Print the verdict of each manifest in a YAML or JSON file; return 0, 1 (refused) or 2 (could not judge).

    What a workload takes from ConfigMaps and training runtimes is read where they stand in the same file.
    """
    settings, known = Settings(), catalogue()
    documents = _documents(file)
    service = AdmissionService(
        answers=Sizer(ModelResolver(known, settings), known),
        plans=NoStoredPlans(),
        catalogue=known,
        policies=_policies(policy or settings.admission_policy_file),
        config_maps=GivenConfigMaps(_config_maps(documents)),
        runtimes=GivenRuntimes(_runtimes(documents)),
    )
    worst = ADMITTED
    judged = 0
    for review in _reviews(documents):
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


def _policies(file: Path | None) -> Policies:
    """Return the policies of a file; one that cannot be read is no verdict on a manifest."""
    try:
        return Policies(file)
    except (OSError, UnicodeDecodeError, InvalidPolicy) as error:
        typer.echo(f"{file}: {reason(error)}", err=True)
        raise typer.Exit(NOT_JUDGED) from error


def _documents(file: Path) -> list[dict[str, Any]]:
    """Return a file's documents, those of a List one by one; `-` is what is piped in."""
    try:
        text = sys.stdin.read() if str(file) == STANDARD_INPUT else file.read_text()
        documents = list(yaml.safe_load_all(text))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        typer.echo(f"{file}: {reason(error)}", err=True)
        raise typer.Exit(NOT_JUDGED) from error
    objects = [document for document in documents if isinstance(document, dict)]
    items = (item for document in objects if _is_list(document) for item in each_of(document.get("items")))
    return [*objects, *(item for item in items if isinstance(item, dict))]


def _is_list(document: dict[str, Any]) -> bool:
    """Return whether a document is a `List`, or one of a kind such as `DeploymentList`."""
    return str(document.get("kind", "")).endswith("List")


def _reviews(documents: list[dict[str, Any]]) -> Iterator[Review]:
    for document in documents:
        group = str(document.get("apiVersion", "")).rpartition("/")[0]
        kind = str(document.get("kind", ""))
        if (group, kind) in READ_KINDS:
            yield _created(group, kind, document)


def _config_maps(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, str]]:
    found = {}
    for document in documents:
        if document.get("kind") == "ConfigMap" and document.get("apiVersion") == "v1":
            data = document.get("data")
            texts = data if isinstance(data, dict) else {}
            found[_namespace(document), _name(document)] = {
                str(key): text for key, text in texts.items() if isinstance(text, str)
            }
    return found


def _runtimes(documents: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (kind, "" if kind == CLUSTER_RUNTIME else _namespace(document), _name(document)): document
        for document in documents
        if (kind := document.get("kind")) in (CLUSTER_RUNTIME, NAMESPACED_RUNTIME)
    }


def _created(group: str, kind: str, manifest: dict[str, Any]) -> Review:
    return Review(
        uid="on-disk",
        operation="CREATE",
        group=group,
        kind=kind,
        name=_name(manifest),
        namespace=_namespace(manifest),
        object=manifest,
        old_object=None,
        is_dry_run=True,
    )


def _name(manifest: dict[str, Any]) -> str:
    return str(below(manifest, ("metadata", "name")) or "")


def _namespace(manifest: dict[str, Any]) -> str:
    return str(below(manifest, ("metadata", "namespace")) or "default")
