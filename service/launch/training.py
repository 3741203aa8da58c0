"""What a launch file is made from: the question, the plan chosen for it, and the model's own config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plimsoll.planners.layouts.experts import experts_are_cut
from plimsoll.planners.plans import Layout, TrainingPlan
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.recovery import node_range
from plimsoll.service.launch.files import Content

# A plan fixes no learning rate. Programs that will not start without one get that of Llama's 7B and 13B
# (Touvron et al. 2023, arXiv:2302.13971, table 2); it is the reader's to change.
LEARNING_RATE = 3.0e-4
SEED = 42  # transformers.TrainingArguments' own default, and nanotron's
MODEL_FOLDER = "model"
# How often all workers start anew before the job is given up: elastic jobs live through that many failures or changes.
MAX_RESTARTS = 3  # torch/distributed/launcher/api.py, LaunchConfig.max_restarts


class Placeholder(str):
    """A shell variable in the place of a value that the reader knows and this service does not."""

    __slots__ = ()


# Without a budget of tokens a plan has no number of steps.
STEPS = Placeholder("$TRAIN_ITERS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLaunch:
    """A plan to write down for programs.

    `model_config` is the model's `config.json`. `model_name` is its name on the
    hub, or None for a model that no hub is known to have: the reader then has
    it in the folder `model`.
    """

    question: TrainingQuestion
    plan: TrainingPlan
    model_config: Mapping[str, Any]
    model_name: str | None = None

    @property
    def layout(self) -> Layout:
        """Return how the plan divides the work."""
        return self.plan.layout

    @property
    def is_of_older_version(self) -> bool:
        """Return whether the plan is for a version of its stack that runs otherwise than the newest."""
        release = load_profile(self.layout.framework, version=self.layout.framework_version).release
        return release is not None and not release.is_newest

    @property
    def model_path(self) -> str:
        """Return what a program loads the model by."""
        return self.model_name or MODEL_FOLDER

    @property
    def steps(self) -> int | Placeholder:
        """Return the steps of the run, for a program that will not start without them."""
        return self.plan.run.steps or STEPS

    @property
    def has_whole_nodes(self) -> bool:
        """Return whether every node has as many processes as any other."""
        return self.layout.gpus % self.processes_per_node == 0

    @property
    def processes_per_node(self) -> int:
        """Return how many processes a node has: one a GPU that the plan uses."""
        return min(self.layout.gpus, self.question.hardware.gpus_per_host)

    @property
    def nodes(self) -> int:
        """Return how many nodes the plan uses."""
        return self.layout.gpus // self.processes_per_node

    @property
    def elastic_nodes(self) -> tuple[int, int]:
        """Return the fewest and the most nodes on which the plan runs, and on every number between."""
        return node_range(self.layout, self.plan.run.elastic_gpus, self.question.hardware.gpus_per_host)

    @property
    def has_elastic_nodes(self) -> bool:
        """Return whether the plan runs on several numbers of nodes, so that a job may start on any of them.

        Groups of hybrid sharding would grow instead of being joined by others.
        """
        fewest, most = self.elastic_nodes
        return self.has_whole_nodes and not self.is_hybrid and fewest < most

    @property
    def expert_tensor_parallel(self) -> int:
        """Return over how many tensor-parallel ranks each expert is cut: none where experts need those ranks."""
        layout = self.layout
        replicas = np.array(layout.data_parallel * layout.context_parallel)
        is_cut = experts_are_cut(load_profile(layout.framework), replicas, np.array(layout.expert_parallel))
        return layout.tensor_parallel if is_cut else 1

    @property
    def is_hybrid(self) -> bool:
        """Return whether several groups of ranks each hold the whole of what is sharded."""
        return self.layout.zero_stage > 0 and self.layout.shard_group < self.layout.data_parallel


def _tells_all(_launch: TrainingLaunch) -> Sequence[str]:
    return ()


def _for_every_plan(_launch: TrainingLaunch) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One launch file of a stack's plans: its name, and how it is written.

    `why_not` returns what of a plan the program cannot be told, in plain words;
    the file is written only where there is nothing. Plans that it is not for have
    neither file nor reason. It is `saved_as` what its program looks for; by default an
    object is JSON and a text a shell's command. A starter runs any script, which does
    what the file does not say; of the others few can name the modules that are recomputed.
    """

    name: str
    write: Callable[[TrainingLaunch], Content]
    why_not: Callable[[TrainingLaunch], Sequence[str]] = _tells_all
    is_for: Callable[[TrainingLaunch], bool] = _for_every_plan
    saved_as: str | None = None
    is_starter: bool = False
    names_recomputed_modules: bool = False


def given_reasons(*reasons: tuple[bool, str]) -> tuple[str, ...]:
    """Return the words of the reasons that hold."""
    return tuple(words for holds, words in reasons if holds)


def uneven_nodes(launch: TrainingLaunch) -> tuple[bool, str]:
    """Return the reason of a launcher that starts as many processes on every node."""
    return not launch.has_whole_nodes, f"{launch.layout.gpus} GPUs are not a whole number of nodes."


def chosen_dtypes(question: TrainingQuestion, program: str) -> tuple[tuple[bool, str], ...]:
    """Return the reasons of a program that has no option for the dtypes of gradients and optimizer states."""
    return (
        (question.gradient_dtype is not None, f"{program} has no option for gradient_dtype {question.gradient_dtype}."),
        (
            question.optimizer_state_dtype is not None,
            f"{program} has no option for optimizer_state_dtype {question.optimizer_state_dtype}.",
        ),
    )
