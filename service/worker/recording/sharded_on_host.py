"""FSDP2's CPUOffloadPolicy: shards that come to the device for each gather, and gradients that leave it once reduced.

In a trace both memories are torch's `cpu`, so that FSDP's own moves between them return the tensor they were given.
Here they copy. Source: torch 2.13, distributed/fsdp/_fully_shard/_fsdp_param.py (`all_gather_inputs`) and
_fsdp_collectives.py (`foreach_reduce`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from plimsoll.service.worker.recording.host_memory import on_host


@contextlib.contextmanager
def shards_on_host() -> Iterator[None]:
    """Let FSDP's parameters that are to lie on the host move as they do between a device and its host."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

    shard: Any = _fsdp_param.FSDPParam
    group: Any = _fsdp_param_group
    inputs, reduce = shard.__dict__["all_gather_inputs"], group.foreach_reduce
    shard.all_gather_inputs = property(functools.partial(_copied_up, inputs.fget))
    group.foreach_reduce = functools.partial(_reduced_and_copied_down, reduce)
    try:
        yield
    finally:
        shard.all_gather_inputs = inputs
        group.foreach_reduce = reduce


def _copied_up(inputs_of: Any, parameter: Any) -> Any:
    """Return what a gather takes of a shard: of a copy on the device, where the shard lies on the host."""
    if not parameter.offload_to_cpu:
        return inputs_of(parameter)
    shard = parameter._sharded_param_data
    parameter._sharded_param_data = shard.clone()
    try:
        return inputs_of(parameter)
    finally:
        parameter._sharded_param_data = shard


def _reduced_and_copied_down(reduce: Any, parameters: list[Any], *rest: Any, **named: Any) -> Any:
    """Reduce a unit's gradients, and let those that lie on the host for the first time be copies there."""
    fresh = [entry for entry in parameters if entry.offload_to_cpu and entry.sharded_param.grad is None]
    result = reduce(parameters, *rest, **named)
    for parameter in fresh:
        gradient = parameter.sharded_param.grad
        with on_host():
            gradient._local_tensor = gradient._local_tensor.clone()
    return result
