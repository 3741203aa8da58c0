"""What a launch command says, as a planning request, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command as a request to the planner, without the hardware, which the pods state."""

    program: str
    """What the command does, for people: "vllm serving meta-llama/Llama-3.1-8B"."""
    kind: Literal["train", "infer"]
    request: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """For people: what was read in a particular way, or not taken into account."""

    nodes: int | None = None
    """How many nodes it runs on; None where it does not say."""
    gpus_per_node: int | None = None
    """How many GPUs of each node it uses; None where it does not say."""
    spans_pods: bool = False
    """Whether ranks of it run in other pods too."""
    is_elsewhere: bool = False
    """Whether those pods are known to belong to another object."""
    cohort: int | None = None
    """Commands of one cohort share their GPUs; None where the GPUs are its own or unknown."""

    is_conditional: bool = False
    """Whether the shell text may start something else instead."""
    memory_saving: tuple[str, ...] = ()
    """Options with which it may need less memory than planned."""
    shortens: bool = False
    """Whether the engine was told to accept no longer requests than fit."""
    leaner: tuple[Mapping[str, Any], ...] = ()
    """Other requests that the command may mean, and that may need less memory."""
    leaner_words: str = ""
    """What those are, in words."""
    unchecked: frozenset[str] = frozenset()
    """Rules of the planner that the program may have been told to ignore."""
    quantization: str | None = None
    """The scheme that the engine is told, where the checkpoint comes from the hub."""
    unsaid: str = ""
    """What the command leaves open and can only add to its needs: it is judged without, and only ever refused."""

    @property
    def engine(self) -> str | None:
        """Return the engine that it serves with, None for training."""
        engine: str | None = self.request.get("serving", {}).get("engine")
        return engine


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRead:
    """A command that is ours to judge and says too little, or something unknown."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotRun:
    """A command whose program refuses to start as it is told; `reason` says why, with what would work."""

    program: str
    reason: str
    is_conditional: bool = False


Read: TypeAlias = Launch | NotRead | CannotRun
"""What becomes of a command that is ours to judge."""


def as_started(launch: Launch) -> dict[str, Any]:
    """Return a command's request with nothing on the host that the command does not send there.

    What a request leaves open is the search's to choose, and a command that says nothing of offload does none.
    """
    if launch.kind != "train":
        return dict(launch.request)
    training, layout = launch.request.get("training", {}), launch.request.get("layout", {})
    return {
        **launch.request,
        "training": {"activation_offload": False, **training},
        "layout": {"offload": "none", **layout},
    }
