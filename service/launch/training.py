"""What a launch file is made from: the question, the plan chosen for it, and the model's own config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from plimsoll.planners.layouts.experts import experts_are_cut
from plimsoll.planners.plans import Layout, TrainingPlan
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.stacks.profile import load_profile
from plimsoll.planners.training.recovery import node_range

# A plan fixes no learning rate. Programs that will not start without one get that of Llama's 7B and 13B
# (Touvron et al. 2023, arXiv:2302.13971, table 2); it is the reader's to change.
LEARNING_RATE = 3.0e-4
SEED = 42  # transformers.TrainingArguments' own default, and nanotron's
MODEL_FOLDER = "model"
DEEPSPEED_FILE = "deepspeed.json"
# How often all workers start anew before the job is given up: elastic jobs live through that many failures or changes.
MAX_RESTARTS = 3  # torch/distributed/launcher/api.py, LaunchConfig.max_restarts

# Stacks whose launch file names the global batch and lets replicas and accumulation follow from the world's size:
# torchtitan's `data_parallel_shard_degree` -1, and Megatron-LM, which has no argument for either.
DERIVING_STACKS = frozenset({"fsdp2", "megatron"})


class Placeholder(str):
    """A shell variable in the place of a value that the reader knows and this service does not."""

    __slots__ = ()


# Without a budget of tokens a plan has no number of steps.
STEPS = Placeholder("$TRAIN_ITERS")

# The text of a file, or the JSON object it holds.
Content: TypeAlias = str | Mapping[str, Any]


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
        return min(self.layout.gpus, self.question.hardware.gpus_per_node)

    @property
    def nodes(self) -> int:
        """Return how many nodes the plan uses."""
        return self.layout.gpus // self.processes_per_node

    @property
    def elastic_nodes(self) -> tuple[int, int]:
        """Return the fewest and the most nodes on which the plan runs, and on every number between."""
        return node_range(self.layout, self.plan.run.elastic_gpus, self.question.hardware.gpus_per_node)

    @property
    def is_elastic(self) -> bool:
        """Return whether the job may start on other numbers of nodes with the same launch file.

        The file must leave replicas and accumulation to the program. Groups of hybrid
        sharding would grow instead of being joined by others, and torchtitan is told
        how many sequences go through a pipeline at once.
        """
        layout = self.layout
        derives = layout.framework in DERIVING_STACKS and not self.is_hybrid
        fixes_batch = layout.framework == "fsdp2" and layout.pipeline_parallel > 1
        fewest, most = self.elastic_nodes
        return self.has_whole_nodes and derives and not fixes_batch and fewest < most

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One launch file: its name, the plans it is for, and how it is written.

    `why_not` returns what of a plan the program cannot be told, in plain words;
    the file is written only where there is nothing.
    """

    name: str
    is_for: Callable[[TrainingLaunch], bool]
    why_not: Callable[[TrainingLaunch], Sequence[str]]
    write: Callable[[TrainingLaunch], Content]


def of_stacks(*names: str) -> Callable[[TrainingLaunch], bool]:
    """Return whether a plan is one of these stacks', to be asked of a launch."""
    return lambda launch: launch.layout.framework in names


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
