"""`POST /quantize` and `POST /plans/{plan_id}/validate`: work for a worker."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Tag

from plimsoll.service.requests.models import ModelRef
from plimsoll.service.requests.training import ValidationLevel
from plimsoll.service.requests.values import Path, Wire, whole

Scheme: TypeAlias = Literal["int8", "int8-channel", "int8-group", "nf4", "fp4", "fp8", "fp8-channel", "int4", "mxfp4"]

MOST_BLOCK_ELEMENTS = 2**20
MOST_SEED = 2**63 - 1


class CheckpointPath(Wire):
    """A safetensors checkpoint under an allowed root."""

    path: Path


def _weights_form(value: Any) -> str | None:
    if value == "random":
        return "(random)"
    return "(path)" if isinstance(value, dict | CheckpointPath) else None


WeightsRef: TypeAlias = Annotated[
    Annotated[Literal["random"], Tag("(random)")] | Annotated[CheckpointPath, Tag("(path)")],
    Discriminator(
        _weights_form,
        custom_error_type="weights_form",
        custom_error_message="Should be 'random', or an object with the path of a checkpoint",
    ),
]


class QuantizeRequest(Wire):
    """A model to quantize: dry, on random weights, or a real checkpoint."""

    model: ModelRef
    scheme: Scheme
    double_quantization: bool = False
    block_size: Annotated[int, *whole(least=1, most=MOST_BLOCK_ELEMENTS)] | None = None
    weights: WeightsRef = "random"
    seed: Annotated[int, *whole(least=0, most=MOST_SEED)] = 0
    output: Path | None = None


DeviceChoice: TypeAlias = Literal["any", "cpu", "gpu"]


class ValidateRequest(Wire):
    """How strong the proof is to be: weights counted, one rank traced, or the device itself.

    `device` and `any_gpu_kind` say where the last of them takes place. `any` is the accelerator of the worker that
    comes first, where it is of the plan's kind, and else its CPU; `gpu` waits for a worker with the plan's kind, or
    with `any_gpu_kind` for one with any.
    """

    level: ValidationLevel
    device: DeviceChoice = "any"
    any_gpu_kind: bool = False
