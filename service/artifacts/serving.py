"""Launch files of a serving plan: commands of its engine, the files they read, and manifests that run them.

Only what can be made true is made: every degree the plan fixed, and nothing
where a program has no option for what was planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planners.hardware import Hardware
from planners.serving.answer import ServingLayout, ServingPlan
from service.artifacts.checkpoint import Checkpoint
from service.artifacts.engine import Engine, Nodes
from service.artifacts.from_pretrained import from_pretrained_arguments
from service.artifacts.kubernetes import Placement
from service.artifacts.kubernetes_serving import serving_manifests
from service.artifacts.sglang import SGLANG
from service.artifacts.tensorrt_llm import TENSORRT_LLM
from service.artifacts.tgi import TGI
from service.artifacts.vllm import VLLM

ENGINES = {"vllm": VLLM, "sglang": SGLANG, "tensorrt-llm": TENSORRT_LLM}
# A shell's names for what only the cluster knows: the address of the first node, and which one this is.
BY_HAND = {"rank": "$NODE_RANK", "address": "$HEAD_NODE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica:
    """How many GPUs and nodes one replica takes."""

    gpus: int
    nodes: int


def serving_artifacts(
    checkpoint: Checkpoint, plan: ServingPlan, hardware: Hardware, placement: Placement
) -> dict[str, Any]:
    """Return the launch files of a serving plan by name: text, or an object where the program reads JSON.

    A command starts one replica; manifests start all of them. Nothing is made for
    replicas that only prefill or only decode, which need connectors between them.
    """
    replica = _replica(plan.layout, hardware)
    if plan.layout.prefill_replicas is not None or replica is None:
        return {}
    if plan.settings.engine == "transformers":
        return _transformers_artifacts(checkpoint, plan, replica, placement)
    return _engine_artifacts(ENGINES[plan.settings.engine], checkpoint, plan, replica, placement)


def _replica(layout: ServingLayout, hardware: Hardware) -> _Replica | None:
    """Return what a replica takes, None where its GPUs cannot be dealt out evenly over nodes."""
    gpus = layout.gpus // layout.data_parallel
    per_node = min(gpus, hardware.gpus_per_node)
    return None if gpus % per_node else _Replica(gpus=gpus, nodes=gpus // per_node)


def _engine_artifacts(
    engine: Engine, checkpoint: Checkpoint, plan: ServingPlan, replica: _Replica, placement: Placement
) -> dict[str, Any]:
    command = engine.command(checkpoint, plan, Nodes(count=replica.nodes, **BY_HAND))
    if command is None:
        return {}
    artifacts: dict[str, Any] = {engine.artifact: command.shell_text, **command.files}
    if command.worker_words:
        artifacts[f"{engine.artifact}-worker"] = command.worker_shell_text
    return artifacts | serving_manifests(engine, checkpoint, plan, replica.nodes, placement)


def _transformers_artifacts(
    checkpoint: Checkpoint, plan: ServingPlan, replica: _Replica, placement: Placement
) -> dict[str, Any]:
    """Return the arguments of from_pretrained, and what serves the same model over HTTP where that can."""
    arguments = from_pretrained_arguments(checkpoint, plan)
    artifacts: dict[str, Any] = {} if arguments is None else {"transformers": arguments}
    if replica.nodes > 1:
        return artifacts
    return artifacts | _engine_artifacts(TGI, checkpoint, plan, replica, placement)
