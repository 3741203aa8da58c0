"""FSDP2: who holds which part of the parameters, gradients and optimizer states."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from service.worker.dry_run.job import TraceJob
from service.worker.dry_run.precision import sharding_policy


def shard_fully(model: Any, mesh: DeviceMesh, job: TraceJob, *, wraps_vocabulary: bool, frees_root: bool) -> None:
    """Shard the model over the data-parallel ranks, a decoder layer at a time.

    ZeRO-3 frees a layer's gathered parameters after its forward pass and gathers
    them again for the backward; ZeRO-2 keeps them in between. What no layer holds
    (embedding, last norm, head) is the root's unit, or with `wraps_vocabulary` two
    of their own, of which the last stays gathered from the forward to the
    backward pass. With `frees_root` the root too is freed after the forward pass; torch's own
    default keeps it.
    """
    # A pipeline would gather anew for every micro-batch (torchtitan, models/llama3/infra/parallelize.py).
    reshard = job.zero_stage == 3 and job.pipeline_parallel == 1
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": sharding_policy(job)}
    inner = model.model
    if wraps_vocabulary and inner.embed_tokens is not None:
        fully_shard(inner.embed_tokens, reshard_after_forward=reshard, **settings)
    for layer in inner.layers:
        fully_shard(layer, reshard_after_forward=reshard, **settings)
    if wraps_vocabulary and isinstance(model.lm_head, nn.Linear):
        fully_shard([inner.norm, model.lm_head], reshard_after_forward=False, **settings)
    fully_shard(model, reshard_after_forward=reshard if frees_root else None, **settings)
