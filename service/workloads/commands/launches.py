"""What a launch command says, as a planning request, and what of it could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A request without its hardware, which the pods say; `notes` are for people.

    `spans_pods` where ranks of it run in other pods than its own, `is_elsewhere` where
    those are known to be another object's. It runs on `nodes` of `gpus_per_node` GPUs each,
    where it says so. `is_conditional` where the shell text may start something else
    instead. With one of `lowering` it may need less than is planned. `leaner` are requests
    that the command may as well mean and that may need less, and `leaner_words` say what
    they are. Commands of one `cohort` run beside each other on the same GPUs; None for one
    whose GPUs are its own or unknown. `shortens` where the engine was told to take no
    longer requests than fit. Rules in `unchecked` are ones that this command's program may
    have been told to let pass. `quantization` is the scheme that an engine is told of the
    hub's own checkpoint. `unsaid` is what the command leaves open that only adds to what it needs: it is judged without
    that, and stays unjudged where it is not refused.
    """

    program: str
    kind: Literal["train", "infer"]
    request: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    spans_pods: bool = False
    is_elsewhere: bool = False
    nodes: int | None = None
    gpus_per_node: int | None = None
    is_conditional: bool = False
    lowering: tuple[str, ...] = ()
    cohort: int | None = None
    shortens: bool = False
    leaner: tuple[Mapping[str, Any], ...] = ()
    leaner_words: str = ""
    unchecked: frozenset[str] = frozenset()
    quantization: str | None = None
    unsaid: str = ""

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
