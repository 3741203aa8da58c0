"""Launch files of a serving plan: commands of its engine, the files they read, and manifests that run them.

Only what can be made true is made: every degree the plan fixed, and the reason in place
of a file where a program has no option for what was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.planners.derived import Derived
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.serving.answer import ServingLayout, ServingPlan
from plimsoll.service.engines.engine import engines
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.files import LaunchFiles
from plimsoll.service.launch.kubernetes import Placement
from plimsoll.service.launch.kubernetes_serving import DEPLOYMENT, LEADER_WORKER_SET, serving_manifests
from plimsoll.service.launch.serving import Nodes, NoOption, Server

# A shell's names for what only the cluster knows: the address of the first node, and which one this is.
BY_HAND = {"rank": "$NODE_RANK", "address": "$HEAD_NODE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replica:
    """How many GPUs and nodes one replica takes."""

    gpus: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Launch files by name, and why others were not made."""

    made: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    derived: Derived = field(default_factory=Derived)

    def add(self, name: str, make: Callable[[], Mapping[str, Any]]) -> bool:
        """Add what is made, or the reason why it cannot be; return whether it was."""

        def made() -> Mapping[str, Any]:
            try:
                return make()
            except NoOption as reason:
                self.missing[name] = (str(reason),)
                return {}

        files: Mapping[str, Any] = self.derived.part(f"artifacts.{name}", made, otherwise={})
        self.made.update(files)
        return bool(files)

    def all(self) -> LaunchFiles:
        """Return them all."""
        return LaunchFiles(files=self.made, missing=self.missing, omitted=self.derived.omitted)


def serving_artifacts(
    checkpoint: Checkpoint | None, plan: ServingPlan, hardware: Hardware, placement: Placement, *, fits: bool
) -> LaunchFiles:
    """Return the launch files of a serving plan by name: text, or an object where the program reads JSON.

    A command starts one replica; manifests start all of them. Nothing is made for what does not fit, nor for
    replicas that only prefill or only decode, which need connectors between them.
    """
    engine, files = engines()[plan.settings.engine], _Files()
    replica = _replica(plan.layout, hardware)
    reason = _no_files(checkpoint, plan, hardware, replica, fits=fits)
    if reason is not None or checkpoint is None or replica is None:
        return LaunchFiles(files={}, missing={engine.first_file: (str(reason),)})
    arguments = engine.arguments
    if arguments is not None:
        files.add(engine.name, lambda: {engine.name: arguments(checkpoint, plan)})
    _add_server(files, engine.server, checkpoint, plan, replica, placement)
    return files.all()


def _no_files(
    checkpoint: Checkpoint | None, plan: ServingPlan, hardware: Hardware, replica: _Replica | None, *, fits: bool
) -> str | None:
    """Return why no program could be told of the plan, None where one may be."""
    if not fits:
        return "The plan does not fit, so the engine would not start."
    if checkpoint is None:
        return "No repository's name is known for this model, which a command has to name."
    if plan.layout.prefill_replicas is not None:
        return "Replicas that only prefill or only decode need connectors between them, which no plan describes."
    if replica is None:
        return f"A replica's GPUs cannot be spread evenly over nodes of {hardware.gpus_per_node}."
    return None


def _replica(layout: ServingLayout, hardware: Hardware) -> _Replica | None:
    """Return what a replica takes, None where its GPUs cannot be dealt out evenly over nodes."""
    gpus = layout.gpus // layout.data_parallel
    per_node = min(gpus, hardware.gpus_per_node)
    return None if gpus % per_node else _Replica(gpus=gpus, nodes=gpus // per_node)


def _add_server(
    files: _Files, server: Server, checkpoint: Checkpoint, plan: ServingPlan, replica: _Replica, placement: Placement
) -> None:
    """Add the command and its files, and the manifests that run it."""

    def command() -> dict[str, Any]:
        made = server.command(checkpoint, plan, Nodes(count=replica.nodes, **BY_HAND))
        worker = {f"{server.artifact}-worker": made.worker_shell_text} if made.worker_words else {}
        return {server.artifact: made.shell_text, **made.files, **worker}

    if files.add(server.artifact, command):
        manifest = LEADER_WORKER_SET if replica.nodes > 1 else DEPLOYMENT
        files.add(manifest, lambda: serving_manifests(server, checkpoint, plan, replica.nodes, placement))
