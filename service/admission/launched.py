"""Which reviews are of something that starts now and that nobody judged before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.admission.kinds import JUDGED_OWNERS, pod_groups
from plimsoll.service.admission.review import Review
from plimsoll.service.workloads.objects.annotations import PLAN, PLAN_ID
from plimsoll.service.workloads.objects.object_parts import annotations_of


def is_launched_by(review: Review) -> bool:
    """Return whether the review is of something new that nobody judged before."""
    if review.operation not in ("CREATE", "UPDATE"):
        return False
    manifest, before = review.object or {}, review.old_object
    if review.operation == "UPDATE" and before is not None:
        same_pods = _same_pods(review.group, review.kind, manifest, before)
        if same_pods and _ours(annotations_of(manifest)) == _ours(annotations_of(before)):
            return False
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict) and metadata.get("deletionTimestamp"):
        # Nothing starts any more, and a finalizer that cannot be taken off keeps it for good.
        return False
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    kinds = [owner.get("kind") for owner in owners if isinstance(owner, dict)] if isinstance(owners, list) else []
    return not any(isinstance(kind, str) and kind in JUDGED_OWNERS for kind in kinds)


def _same_pods(group: str, kind: str, manifest: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return whether an update leaves the pods of one job or replica as they were: a scaled deployment starts more.

    Nothing was judged of one that had no replica.
    """
    if manifest.get("spec") == before.get("spec"):
        return True
    try:
        now, then = pod_groups(group, kind, manifest), pod_groups(group, kind, before)
    except PlimsollError:
        return False
    same = [each.members for each in now] == [each.members for each in then]
    return bool(now) and same and all(each.replicas != 0 for each in then)


def _ours(annotations: Mapping[str, str]) -> Mapping[str, str]:
    return {name: text for name, text in annotations.items() if name in (PLAN, PLAN_ID)}
