"""Which deployments a proof runs, by what of them is asked; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plimsoll.planners.families import model_types_with, traits
from plimsoll.planners.families.family import Serving
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.service.worker.serving.weight_names import MXFP4, PACKED_WEIGHTS, SERVED_WEIGHTS

if TYPE_CHECKING:
    from plimsoll.service.worker.serving.deployment import Deployment

VLLM = "vllm"
SERVED_ENGINES = (VLLM, "transformers")
SERVED_CACHES = ("fp32", "bf16", "fp16", "fp8")
FULL_ATTENTION, SLIDING_WINDOW, LATENT = "full_attention", "sliding_window", "latent"
# What each engine's cache is run of.
SERVED_KINDS = {VLLM: {FULL_ATTENTION, SLIDING_WINDOW, LATENT}, "transformers": {FULL_ATTENTION}}
# What divides a replica's work in a way that is not run here.
UNDIVIDED = ("attention_data_parallel", "decode_context_parallel")


def served_model_types() -> tuple[str, ...]:
    """Return the families that a serving proof runs."""
    return model_types_with(lambda family: family.serving is not None)


def refuse_unserved(deployment: Deployment, layout: Mapping[str, Any], cache: Mapping[str, Any]) -> None:
    """Raise `NotYetAvailable`, naming it, for what a proof does not run."""
    _refuse_names(deployment)
    for name in UNDIVIDED:
        if layout.get(name, 1) != 1:
            raise NotYetAvailable(f"A deployment with {name} {layout[name]} is not run yet.", pointer=f"/layout/{name}")
    kinds = {group["kind"] for group in cache["groups"]}
    if not kinds <= SERVED_KINDS[deployment.engine]:
        raise NotYetAvailable(
            f"A cache of {' and '.join(sorted(kinds))} layers of {deployment.engine} is not run yet.", pointer="/model"
        )
    _refuse_ranks(deployment)
    _refuse_format(deployment)


def _refuse_names(deployment: Deployment) -> None:
    for pointer, value, known in (
        ("/model/config/model_type", deployment.config.get("model_type"), served_model_types()),
        ("/serving/engine", deployment.engine, SERVED_ENGINES),
        ("/serving/weights", deployment.weights, SERVED_WEIGHTS),
        ("/serving/kv_cache", deployment.kv_cache, SERVED_CACHES),
    ):
        if value not in known:
            raise NotYetAvailable(f"{value!r} is not served in a proof yet; these are: {known}.", pointer=pointer)


def _serving(model_type: str) -> Serving:
    return traits(model_type).serving or Serving(is_divided=False)


def _refuse_ranks(deployment: Deployment) -> None:
    """Raise for a model whose matrices are not divided over ranks; the plan has seen to it that lengths divide."""
    model_type = deployment.config["model_type"]
    if deployment.tensor_parallel > 1 and not _serving(model_type).is_divided:
        raise NotYetAvailable(f"{model_type!r} is served on one rank only.", pointer="/layout/tensor_parallel")


def _refuse_format(deployment: Deployment) -> None:
    """Raise for a format or a mixture that an engine's stand-in has no kernels of."""
    model_type, weights = deployment.config["model_type"], deployment.weights
    if deployment.engine != VLLM and (weights in PACKED_WEIGHTS or traits(model_type).has_experts):
        what = f"weights in {weights}" if weights in PACKED_WEIGHTS else f"{model_type!r}"
        raise NotYetAvailable(f"{deployment.engine}'s {what} are not run yet.", pointer="/serving/engine")
    if weights == MXFP4 and not _serving(model_type).has_mxfp4_experts:
        raise NotYetAvailable(f"{model_type!r} in {weights} is not served in a proof yet.", pointer="/serving/weights")


def refuse_on_device(deployment: Deployment) -> None:
    """Raise `NotYetAvailable` for what is run by the shapes of its tensors alone."""
    if deployment.weights in PACKED_WEIGHTS:
        raise NotYetAvailable(
            f"Weights in {deployment.weights} are traced by the shapes of their tensors alone; use level trace.",
            pointer="/level",
        )
