"""Context parallelism: attention over a sequence that several ranks hold parts of, by torch's own ring.

Keys and values are gathered for each layer and thrown away again; kept are a
rank's own query, key, value and output, and the log-sum-exp.

Source: torch.distributed.tensor.experimental (`context_parallel`), as torchtitan
uses it: keys and values by all-gather, causal halves balanced over the ranks. It stands in for Transformer Engine's
ring (pytorch/attention/dot_product_attention/context_parallel.py, `AttnFuncWithCPAndKVP2P`), which was not compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention as torch_ring

from plimsoll.service.worker.jobs.job import TraceJob
from plimsoll.service.worker.training.kernels.attention import register_attention

RING_ATTENTION = "plimsoll_ring"


def context_mesh(job: TraceJob, device_type: str) -> DeviceMesh:
    """Return the ranks that hold parts of the same sequences: neighbours among those that share a sharded parameter."""
    shape = (job.pipeline_parallel, job.data_parallel, job.context_parallel, job.tensor_parallel)
    with unset_fake_temporarily():
        mesh = init_device_mesh(device_type, shape, mesh_dim_names=("pipeline", "data", "context", "tensor"))
        return mesh["context"]


def attend_over_ranks(model: Any, mesh: DeviceMesh, *, tokens_first: bool) -> None:
    """Make a transformers model's attention a ring over the mesh.

    With `tokens_first` the output that is kept has tokens before heads, as Transformer Engine's ring writes it, and is
    the next matrix's input as it is; torch's has to be copied for that.
    """

    def attention(
        _module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _mask: torch.Tensor | None,
        scaling: float | None = None,
        **_kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        output = RingFlashAttention.apply(query, key, value, mesh, scaling, tokens_first)  # type: ignore[no-untyped-call]
        return output.transpose(1, 2).contiguous(), None

    register_attention(RING_ATTENTION, attention)
    model.config._attn_implementation = RING_ATTENTION


class RingFlashAttention(torch.autograd.Function):
    """Causal flash attention of this rank's tokens [batch, heads, tokens, head_dim] over all ranks' tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mesh: DeviceMesh,
        scaling: float | None,
        tokens_first: bool,
    ) -> torch.Tensor:
        """Return the output, and keep it with its operands and the log-sum-exp."""
        output, statistic, *rest = torch_ring._scaled_dot_product_ring_flash_attention(
            mesh, query, key, value, is_causal=True, scale=scaling
        )
        if tokens_first:
            output = output.transpose(1, 2).contiguous().transpose(1, 2)
        *_sequences, _, _, seed, offset, _ = rest
        ctx.save_for_backward(query, key, value, output, statistic, seed, offset)
        ctx.mesh, ctx.scaling, ctx.rest = mesh, scaling, rest[:4]
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of the operands; those of keys and values go round the ring."""
        query, key, value, output, statistic, seed, offset = ctx.saved_tensors
        query_starts, key_starts, longest_query, longest_key = ctx.rest
        of_query, of_key, of_value, *_ = torch_ring._scaled_dot_product_ring_flash_attention_backward(
            ctx.mesh,
            gradients[0],
            query,
            key,
            value,
            output,
            statistic,
            query_starts,
            key_starts,
            longest_query,
            longest_key,
            0.0,
            True,
            seed,
            offset,
            scale=ctx.scaling,
        )
        return of_query, of_key, of_value, None, None, None
