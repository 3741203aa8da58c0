"""`PUT /hardware/{id}/calibration`: what a site measured of its GPUs."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from plimsoll.service.requests.hardware import RateFormat
from plimsoll.service.requests.models import ModelRef
from plimsoll.service.requests.serving import ServingLayoutPart, ServingPart
from plimsoll.service.requests.training import Framework, LayoutPart, TrainingPart
from plimsoll.service.requests.values import (
    MOST_BYTES,
    Degree,
    GpusPerNode,
    Name,
    PositiveByteCount,
    Rate,
    Seconds,
    Sequences,
    SequenceTokens,
    TokensPerSecond,
    Wire,
    whole,
)

MOST_CALIBRATION_RUNS = 200
MOST_MICROBENCHMARKS = 200
MOST_MATRIX_SIDE = 2**24

MatrixSide: TypeAlias = Annotated[int, *whole(least=1, most=MOST_MATRIX_SIDE)]


class MeasuredTraining(TrainingPart):
    """The job as it ran: its sequences and its batch are never assumed."""

    sequence_length: SequenceTokens
    global_batch_size: Sequences


class MeasuredJob(Wire):
    """A run that was not planned here; degrees that are absent are taken as the search would have them."""

    model: ModelRef
    framework: Framework
    training: MeasuredTraining
    layout: LayoutPart = LayoutPart()
    gpus: Degree
    gpus_per_node: GpusPerNode | None = None


class CalibrationRun(Wire):
    """One measured run of a stored plan, or of a job described here."""

    plan_id: Name | None = None
    run: MeasuredJob | None = None
    step_seconds: Seconds | None = None
    tokens_per_second: TokensPerSecond | None = None
    peak_bytes: PositiveByteCount | None = None

    @model_validator(mode="after")
    def _must_be_one_run_with_one_time(self) -> CalibrationRun:
        if (self.plan_id is None) == (self.run is None):
            raise ValueError("needs a plan_id or a run, and not both")
        if (self.step_seconds is None) == (self.tokens_per_second is None):
            raise ValueError("needs step_seconds or tokens_per_second of the whole job, and not both")
        return self


class MeasuredDeployment(Wire):
    """A deployment that ran under a load: `serving` names its concurrency, input_tokens and output_tokens."""

    model: ModelRef
    serving: ServingPart
    layout: ServingLayoutPart = ServingLayoutPart()
    gpus: Degree
    gpus_per_node: GpusPerNode | None = None


class CalibrationServing(Wire):
    """Mean times of one deployment, of a stored plan at its own concurrency or described here."""

    plan_id: Name | None = None
    deployment: MeasuredDeployment | None = None
    tpot_seconds: Seconds | None = None
    ttft_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _must_be_one_deployment_with_a_time(self) -> CalibrationServing:
        if (self.plan_id is None) == (self.deployment is None):
            raise ValueError("needs a plan_id or a deployment, and not both")
        if self.tpot_seconds is None and self.ttft_seconds is None:
            raise ValueError("needs tpot_seconds or ttft_seconds")
        return self


class MatmulBenchmark(Wire):
    """A product of rows x inputs and inputs x outputs; two operations a multiply-add."""

    kind: Literal["matmul"]
    rows: MatrixSide
    inputs: MatrixSide
    outputs: MatrixSide
    format: RateFormat = "bf16"
    flops_per_second: Rate


class MemoryBenchmark(Wire):
    """An element-wise kernel on large tensors: bytes read and written in a second."""

    kind: Literal["memory"]
    bytes_per_second: Rate


class AttentionBenchmark(Wire):
    """Flash attention's forward pass on long sequences; only operations under the causal mask count."""

    kind: Literal["attention"]
    format: RateFormat = "bf16"
    flops_per_second: Rate


class AllReduceBenchmark(Wire):
    """One all-reduce of a message among neighbouring ranks."""

    kind: Literal["all_reduce"]
    message_bytes: Annotated[int, *whole(least=1, most=MOST_BYTES)]
    ranks: Annotated[int, *whole(least=2, most=1_000_000)]
    gpus_per_node: GpusPerNode | None = None
    seconds: Seconds


Microbenchmark: TypeAlias = Annotated[
    MatmulBenchmark | MemoryBenchmark | AttentionBenchmark | AllReduceBenchmark, Field(discriminator="kind")
]


class CalibrationRequest(Wire):
    """Measurements of one kind of GPU to fit its efficiencies to.

    `from_record` adds the newest speeds that `POST /measurements` was told of this
    GPU's stored plans; the report's `record` says which, and why others were not used.
    """

    measurements: Annotated[list[CalibrationRun], Field(max_length=MOST_CALIBRATION_RUNS, default_factory=list)]
    microbenchmarks: Annotated[list[Microbenchmark], Field(max_length=MOST_MICROBENCHMARKS, default_factory=list)]
    serving: Annotated[list[CalibrationServing], Field(max_length=MOST_CALIBRATION_RUNS, default_factory=list)]

    from_record: bool = False

    @model_validator(mode="after")
    def _must_measure_something(self) -> CalibrationRequest:
        if not (self.measurements or self.microbenchmarks or self.serving or self.from_record):
            raise ValueError("has no measurements: give at least one of runs, microbenchmarks, serving or from_record")
        return self
