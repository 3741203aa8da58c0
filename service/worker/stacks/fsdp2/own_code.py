"""What stands in for torchtitan's own code: experts dealt to other ranks, products in fp8."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.jobs.job import FP8_MIXED, TraceJob
from plimsoll.service.worker.stacks.fsdp2.eight_bit import cast_products, styles_in_fp8
from plimsoll.service.worker.stacks.fsdp2.experts import deal_experts
from plimsoll.service.worker.training.own_code import OwnCode
from plimsoll.service.worker.training.parallel.tensor_parallel import LayerStyles


def _place_experts(model: Any, _job: TraceJob, mesh: DeviceMesh) -> None:
    deal_experts(model, mesh["expert"].get_group())


def _cast_products(model: Any, job: TraceJob) -> None:
    if job.precision == FP8_MIXED:
        cast_products(model)


def _layer_styles(job: TraceJob) -> LayerStyles:
    return styles_in_fp8() if job.precision == FP8_MIXED else LayerStyles()


OWN_CODE = OwnCode(place_experts=_place_experts, cast_products=_cast_products, layer_styles=_layer_styles)
