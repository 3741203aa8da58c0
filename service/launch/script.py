"""What every process of a training job runs, whichever program starts the processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plimsoll.service.launch.training import TrainingLaunch

# The reader's own.
OWN_SCRIPT = ("train.py",)


def _own_script(_launch: TrainingLaunch) -> Sequence[str]:
    return OWN_SCRIPT


def _no_variables(_launch: TrainingLaunch) -> Sequence[str]:
    return ()


def _fixed(_launch: TrainingLaunch) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A stack's script, the reader's own where the stack has none that is made for its launch file.

    `words` are the script and its arguments, `environment` the variables that must be
    set. `derives_replicas` where its launch file names the global batch and lets
    replicas and accumulation follow from the number of processes.
    """

    words: Callable[[TrainingLaunch], Sequence[str]] = _own_script
    environment: Callable[[TrainingLaunch], Sequence[str]] = _no_variables
    derives_replicas: Callable[[TrainingLaunch], bool] = _fixed

    def is_elastic(self, launch: TrainingLaunch) -> bool:
        """Return whether the job may start on other numbers of nodes with the same launch file."""
        return launch.has_elastic_nodes and self.derives_replicas(launch)

    def nodes_text(self, launch: TrainingLaunch) -> str:
        """Return the number of nodes, or the fewest and the most with a colon between."""
        if not self.is_elastic(launch):
            return str(launch.nodes)
        fewest, most = launch.elastic_nodes
        return f"{fewest}:{most}"

    def started_by(self, launch: TrainingLaunch, starter: Sequence[str]) -> str:
        """Return the command: a starter's words with the script's behind them."""
        return " ".join([*self.environment(launch), *starter, *self.words(launch)])
