"""What the launch files of every program that serves have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.serving.answer import ServingPlan
from plimsoll.planners.serving.releases.cards import is_amd
from plimsoll.service.launch.checkpoint import Checkpoint
from plimsoll.service.launch.words import shell_text

# One port for every engine's HTTP server in a manifest.
SERVING_PORT = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of one replica; `rank` and `address` are variables for this node's number and the first's address."""

    count: int
    rank: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCommand:
    """The words that start one replica, and the files they read by name.

    `worker_words` start the nodes after the first where those are started otherwise.
    """

    words: Sequence[str]
    worker_words: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def shell_text(self) -> str:
        """Return the command as a person types it."""
        return shell_text(self.words)

    @property
    def worker_shell_text(self) -> str:
        """Return the further nodes' command as a person types it."""
        return shell_text(self.worker_words)


class NoOption(Exception):
    """A program has no option for what was planned; the message says for what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a program that serves is launched.

    `command` raises `NoOption` where the program has none for the plan. `listen` are
    the words that make it answer other machines on SERVING_PORT; `image` is its
    container's, with `{version}` in it, `rocm_image` that for AMD's GPUs from the version
    `rocm_since` on, None where none is known. `newest_patches` completes versions that are
    told apart by two numbers, 0 where it names none. `joins_nodes` is the first version whose
    processes find each other over nodes without a cluster of another program's; None
    where none do.
    """

    artifact: str
    command: Callable[[Checkpoint, ServingPlan, Nodes], ServingCommand]
    image: str
    rocm_image: str | None = None
    rocm_since: tuple[int, ...] = ()
    newest_patches: Mapping[str, int] = field(default_factory=dict)
    listen: Sequence[str]
    health_path: str = "/health"
    joins_nodes: tuple[int, ...] | None = None

    def image_for(self, gpu: Gpu, version: str) -> str | None:
        """Return the image of a version on that GPU, None where none is known."""
        image = self.rocm_image if is_amd(gpu) else self.image
        if image is None or (is_amd(gpu) and version_numbers(version) < self.rocm_since):
            return None
        return image.format(version=version, patch=self.newest_patches.get(version, 0))


def check_loadable(program: str, checkpoint: Checkpoint, weights: str, quantizes_to: Collection[str]) -> None:
    """Raise `NoOption` where a program cannot load a checkpoint in the format: stored so, or made so while loading."""
    if checkpoint.is_stored_as(weights):
        return
    if checkpoint.stored_weights is not None:
        raise NoOption(
            f"{checkpoint.name} is stored in {checkpoint.stored_weights}, and {program} serves it as that, "
            f"not in {weights}."
        )
    if weights not in quantizes_to:
        raise NoOption(
            f"{program} has no option that quantizes a checkpoint of 16 bits to {weights} while it loads. "
            f"Name a checkpoint that is stored in {weights}, or quantize it beforehand."
        )


def version_numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, for comparing."""
    return tuple(int(part) for part in version.split("."))
