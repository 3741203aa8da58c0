"""Every kind of object that is judged, as groups of pods that work together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.service.engines.vllm.kserve import llm_inference_service
from plimsoll.service.engines.vllm.ray_serve import ray_service
from plimsoll.service.workloads.objects.pods import PodGroup
from plimsoll.service.workloads.objects.workloads import READERS, pod_group

# Objects that make several services, each of which has to fit by itself.
SEVERAL: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], tuple[PodGroup, ...]]] = {
    ("serving.kserve.io", "LLMInferenceService"): llm_inference_service,
    ("ray.io", "RayService"): ray_service,
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
