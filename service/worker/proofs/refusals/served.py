"""Which deployments are not proved yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.families import model_types_with, traits
from plimsoll.planners.families.family import Serving
from plimsoll.service.worker.engines.engine import engines
from plimsoll.service.worker.jobs.rule import DEVICE, RuleOf, first_broken
from plimsoll.service.worker.serving.deployment import Deployment, read_deployment
from plimsoll.service.worker.serving.weight_names import MXFP4, PACKED_WEIGHTS, SERVED_WEIGHTS

CACHES = ("fp32", "bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A deployment, and the plan's layout and cache that it was read from."""

    deployment: Deployment
    layout: Mapping[str, Any]
    cache: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """Return the model's family."""
        model_type: str = self.deployment.config["model_type"]
        return model_type


class Rule(RuleOf[Served]):
    """Why a deployment is not proved yet."""

    __slots__ = ()


def _one_of(known: Collection[object], value: Callable[[Deployment], object], pointer: str) -> Rule:
    return Rule(
        broken=lambda served: value(served.deployment) not in known,
        pointer=pointer,
        words=lambda served: f"{value(served.deployment)!r} is not served in a proof yet; these are: {known}.",
    )


def _undivided_by(degree: str) -> Rule:
    """Return the rule that a replica's work is not divided in a way that is not run here."""
    return Rule(
        broken=lambda served: served.layout.get(degree, 1) != 1,
        pointer=f"/layout/{degree}",
        words=lambda served: f"A deployment with {degree} {served.layout[degree]} is not run yet.",
    )


def _kinds(served: Served) -> set[str]:
    return {group["kind"] for group in served.cache["groups"]}


ENGINE_CACHES_THE_KINDS = Rule(
    broken=lambda served: not _kinds(served) <= engines()[served.deployment.engine].cached_kinds,
    pointer="/model",
    words=lambda served: (
        f"A cache of {' and '.join(sorted(_kinds(served)))} layers of {served.deployment.engine} is not run yet."
    ),
)


def _serving(served: Served) -> Serving:
    return traits(served.model_type).serving or Serving(is_divided=False)


FAMILY_IS_DIVIDED = Rule(  # the plan has seen to it that lengths divide
    broken=lambda served: served.deployment.tensor_parallel > 1 and not _serving(served).is_divided,
    pointer="/layout/tensor_parallel",
    words=lambda served: f"{served.model_type!r} is served on one rank only.",
)


def _has_no_kernels(served: Served) -> bool:
    deployment = served.deployment
    needs_kernels = deployment.weights in PACKED_WEIGHTS or traits(served.model_type).has_experts
    return needs_kernels and not engines()[deployment.engine].has_own_kernels


def _no_kernels(served: Served) -> str:
    weights = served.deployment.weights
    what = f"weights in {weights}" if weights in PACKED_WEIGHTS else f"{served.model_type!r}"
    return f"{served.deployment.engine}'s {what} are not run yet."


ENGINE_HAS_KERNELS = Rule(broken=_has_no_kernels, pointer="/serving/engine", words=_no_kernels)
FAMILY_HAS_MXFP4_EXPERTS = Rule(
    broken=lambda served: served.deployment.weights == MXFP4 and not _serving(served).has_mxfp4_experts,
    pointer="/serving/weights",
    words=lambda served: f"{served.model_type!r} in {served.deployment.weights} is not served in a proof yet.",
)
RULES = (
    _one_of(
        model_types_with(lambda family: family.serving is not None),
        lambda deployment: deployment.config.get("model_type"),
        "/model/config/model_type",
    ),
    _one_of(tuple(engines()), lambda deployment: deployment.engine, "/serving/engine"),
    _one_of(SERVED_WEIGHTS, lambda deployment: deployment.weights, "/serving/weights"),
    _one_of(CACHES, lambda deployment: deployment.kv_cache, "/serving/kv_cache"),
    _undivided_by("attention_data_parallel"),
    _undivided_by("decode_context_parallel"),
    ENGINE_CACHES_THE_KINDS,
    FAMILY_IS_DIVIDED,
    ENGINE_HAS_KERNELS,
    FAMILY_HAS_MXFP4_EXPERTS,
)
WEIGHTS_HAVE_VALUES = Rule(
    broken=lambda served: served.deployment.weights in PACKED_WEIGHTS,
    pointer="/level",
    words=lambda served: (
        f"Weights in {served.deployment.weights} are traced by the shapes of their tensors alone; use level trace."
    ),
)
RULES_OF_DEVICES = (WEIGHTS_HAVE_VALUES,)


def proved_deployment(request: Mapping[str, Any]) -> Deployment:
    """Return the deployment of a validation request.

    Raises `NotYetAvailable`, naming it, for whatever cannot be proved at the request's level, and `InvalidQuestion`
    for a request that lacks its parts.
    """
    deployment = read_deployment(request)
    served = Served(deployment=deployment, layout=request["plan"]["layout"], cache=request["plan"]["kv"])
    broken = first_broken((*RULES, *(RULES_OF_DEVICES if request["level"] == DEVICE else ())), served)
    if broken is not None:
        raise broken.refusal(served)
    return deployment
