"""Every kind of object that is judged, as groups of pods that work together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plimsoll.service.engines.engine import ObjectReader, engines
from plimsoll.service.workloads.objects.pods import PodGroup
from plimsoll.service.workloads.objects.workloads import READERS, pod_group

# Objects that make several services of one engine, each of which has to fit by itself.
SEVERAL: Mapping[tuple[str, str], ObjectReader] = {
    kind: reader for engine in engines().values() for kind, reader in engine.objects.items()
}
READ_KINDS = frozenset({*READERS, *SEVERAL})
# What creates pods and pod-making objects of its own, and is judged itself. LeaderWorkerSet's worker sets belong to
# their leader's pod.
JUDGED_OWNERS = frozenset({"ReplicaSet", *(kind for _group, kind in READ_KINDS)})


def pod_groups(group: str, kind: str, manifest: Mapping[str, Any]) -> tuple[PodGroup, ...]:
    """Return the groups of an object, none for kinds that are not read.

    Raises UnreadableObject, with a pointer into the object, where a part is of the wrong form.
    """
    several = SEVERAL.get((group, kind))
    if several is not None:
        return several(manifest)
    found = pod_group(group, kind, manifest)
    return () if found is None else (found,)
