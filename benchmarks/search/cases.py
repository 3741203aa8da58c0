"""The questions whose search is timed: three dense models and a mixture, on 8 to 16,384 GPUs, everything free."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.hardware import GpuCount, Hardware
from plimsoll.planners.questions import TrainingQuestion

GPU = "h100-sxm-80gb"
GPUS_PER_NODE = 8
SEQUENCE_LENGTH = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question; `global_batch_size` counts sequences."""

    model: str
    gpus: int
    global_batch_size: int
    framework: str = "any"

    @property
    def name(self) -> str:
        """Return how the tables call it."""
        return f"{self.model.rsplit('/', 1)[-1]}, {self.gpus:,} GPUs, {self.framework}"

    def question(self) -> TrainingQuestion:
        """Return the question as the planner takes it."""
        return TrainingQuestion(
            model=described(self.model),
            hardware=Hardware(
                gpu=catalogue().gpu(GPU),
                gpus=GpuCount(minimum=self.gpus, maximum=self.gpus),
                gpus_per_node=GPUS_PER_NODE,
            ),
            sequence_length=SEQUENCE_LENGTH,
            global_batch_size=self.global_batch_size,
            framework=self.framework,
        )

    def request(self, number: int) -> dict[str, object]:
        """Return the question as a client sends it, a different one for each number: an answered one is kept."""
        return {
            "model": self.model,
            "hardware": {"gpu": GPU, "gpus": self.gpus, "gpus_per_node": GPUS_PER_NODE},
            "training": {
                "sequence_length": SEQUENCE_LENGTH,
                "global_batch_size": self.global_batch_size,
                "tokens": 1e12 + number,
            },
            "framework": self.framework,
        }


@functools.cache
def described(model: str) -> ModelSpec:
    """Return a model of the catalogue."""
    listed = catalogue().model(model)
    return describe_config(listed.config, name=listed.id)


DENSE_8B = "meta-llama/Llama-3.1-8B"
DENSE_70B = "meta-llama/Llama-3.1-70B"
DENSE_405B = "meta-llama/Llama-3.1-405B"
MIXTURE = "mistralai/Mixtral-8x7B-v0.1"

# Four sequences a GPU up to Llama 3's 16 million tokens of 8,192 (arXiv:2407.21783, table 4).
BATCH_SIZES = {8: 64, 64: 256, 1024: 2048, 16384: 2048}

CASES = tuple(
    Case(model=model, gpus=gpus, global_batch_size=batch_size)
    for model in (DENSE_8B, DENSE_70B, DENSE_405B, MIXTURE)
    for gpus, batch_size in BATCH_SIZES.items()
)
# One framework with every axis, and large batches, which leave the most choices open.
WIDE_CASES = (
    Case(model=DENSE_70B, gpus=1024, global_batch_size=15_360, framework="reference"),
    Case(model=DENSE_405B, gpus=16_384, global_batch_size=491_520, framework="megatron"),
    Case(model=DENSE_405B, gpus=16_384, global_batch_size=491_520, framework="reference"),
)
HTTP_CASES = (
    Case(model=DENSE_8B, gpus=8, global_batch_size=64, framework="fsdp2"),
    *(Case(model=DENSE_8B, gpus=gpus, global_batch_size=size) for gpus, size in BATCH_SIZES.items()),
    Case(model=DENSE_70B, gpus=1024, global_batch_size=2048),
    Case(model=DENSE_405B, gpus=16_384, global_batch_size=2048),
)
