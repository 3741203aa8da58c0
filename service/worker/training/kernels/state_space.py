"""Mamba-2's training kernel by shapes: what mamba_ssm's fused function makes, keeps and lets go of.

transformers calls it where mamba_ssm or the hub's copy of it is installed, which needs a GPU, and else goes through
chunks in operations of its own. One function does convolution, scan, gated norm and output projection: it keeps what
was projected, the scan's output and the norm's roots, and makes all else again.

Source: state-spaces/mamba 2.3.2, ops/triton/ssd_combined.py (`MambaSplitConv1dScanCombinedFn`), ssd_chunk_state.py,
ssd_state_passing.py, ssd_bmm.py, ssd_chunk_scan.py and layernorm_gated.py there; Dao-AILab/causal-conv1d 1.6.1,
cpp_functions.py.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from plimsoll.planners.families.family import Tracing
from plimsoll.service.worker.recording.patches import models_calling

# The kernels read channels in vectors of eight (ssd_combined.py, `ensure_stride`).
VECTOR_CHANNELS = 8
# Of an H100 SXM (NVIDIA's H100 whitepaper, table 3): heads, and the norm's rows, are divided over them.
MULTIPROCESSORS = 132
# The smallest tiles that kernels may be tuned to, for which sums of parts have room.
LEAST_QUERY_TILE = 32
LEAST_STATE_TILE = 64
# Of the gated norm's kernel: features that one warp takes, the most warps, and those that share a multiprocessor.
WARP_FEATURES = 256
MOST_WARPS = 8
WARPS_OF_A_ROW = 4
MOST_FUSED_BYTES = 65536


def state_space_kernels(tracing: Tracing) -> AbstractContextManager[None]:
    """Let transformers' code of a family call this kernel; nothing where it has no Mamba-2 layers."""
    return models_calling(tracing.state_space_module, mamba2_split_conv1d_scan_combined=split_conv1d_scan_combined)


def split_conv1d_scan_combined(
    projected: torch.Tensor,
    convolution_weight: torch.Tensor,
    convolution_bias: torch.Tensor | None,
    step_bias: torch.Tensor,
    decay: torch.Tensor,
    *,
    D: torch.Tensor,  # noqa: N803 - transformers' call
    chunk_size: int,
    rmsnorm_weight: torch.Tensor,
    outproj_weight: torch.Tensor,
    outproj_bias: torch.Tensor | None,
    headdim: int,
    ngroups: int,
    **_: Any,
) -> torch.Tensor:
    """Return the layer's output [batch, sequence, hidden size]."""
    output: torch.Tensor = SplitScan.apply(  # type: ignore[no-untyped-call]
        projected,
        convolution_weight,
        convolution_bias,
        step_bias,
        decay,
        D,
        rmsnorm_weight,
        outproj_weight,
        outproj_bias,
        chunk_size,
        headdim,
        ngroups,
    )
    return output


class _Split(NamedTuple):
    """The views of what was projected that the function reads, and how it goes through them."""

    gate: torch.Tensor
    convolved: torch.Tensor
    step: torch.Tensor
    chunk: int
    head_dim: int
    groups: int
    state: int

    @property
    def heads(self) -> int:
        return self.step.shape[-1]

    @property
    def chunks(self) -> int:
        return math.ceil(self.step.shape[1] / self.chunk)

    @property
    def splits(self) -> int:
        """Return in how many sums the gradients that a group's heads share are added up."""
        of_group = self.heads // self.groups
        in_one = math.ceil(self.step.shape[0] * self.chunks * self.heads / MULTIPROCESSORS)
        return math.ceil(of_group / max(min(in_one, of_group), 1))

    def of_chunks(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor [batch, chunks, ...] of a kernel."""
        return self.step.new_empty(self.step.shape[0], self.chunks, *shape, dtype=dtype)

    def of_steps(self, *shape: int) -> torch.Tensor:
        """Return a tensor in fp32 [batch, heads, chunks, ..., tokens of a chunk]."""
        return self.step.new_empty(self.step.shape[0], self.heads, self.chunks, *shape, self.chunk, dtype=torch.float32)


class SplitScan(torch.autograd.Function):
    """Convolution, chunked scan, gated norm and output projection of one Mamba-2 layer."""

    @staticmethod
    def forward(
        ctx: Any,
        projected: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        step_bias: torch.Tensor,
        decay: torch.Tensor,
        skip: torch.Tensor,
        norm_weight: torch.Tensor,
        output_weight: torch.Tensor,
        output_bias: torch.Tensor | None,
        chunk: int,
        head_dim: int,
        groups: int,
    ) -> torch.Tensor:
        """Return the output; keep what was projected, the scan's output, the norm's roots and the weights."""
        split = _split(projected, weight, skip, chunk, head_dim, groups)
        convolved = torch.empty_like(_with_vectors(split.convolved))
        steps, decays = split.of_steps(), split.of_steps()
        states = _states(split)
        states, final = _states(split, convolved.dtype), _final_states(split)
        scores = _scores(split)
        scanned = split.gate.new_empty(split.gate.shape)
        del scores
        normed, roots = torch.empty_like(scanned), _roots(split)
        ctx.output_dtype = output_weight.dtype
        device_type = projected.device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            output_weight = output_weight.to(dtype)
            output_bias = None if output_bias is None else output_bias.to(dtype)
        output = linear(normed, output_weight, output_bias)
        del convolved, steps, decays, states, final, normed
        ctx.save_for_backward(
            projected, weight, bias, scanned, decay, skip, step_bias, norm_weight, roots, output_weight, output_bias
        )
        ctx.sizes = chunk, head_dim, groups
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of what was projected and of the weights, from a scan that is made again."""
        (projected, weight, bias, scanned, decay, skip, step_bias, norm_weight, _, output_weight, output_bias) = (
            ctx.saved_tensors
        )
        (gradient,) = gradients
        split = _split(projected, weight, skip, *ctx.sizes)
        normed = torch.empty_like(scanned)
        convolved = torch.empty_like(_with_vectors(split.convolved))
        of_projected = torch.empty_like(projected)
        of_split = _split(of_projected, weight, skip, *ctx.sizes)
        of_convolved = torch.empty_like(split.convolved)
        of_normed = linear(gradient, output_weight.t())
        of_scanned, of_norm_weight = _of_gated_norm(scanned, norm_weight, split)
        of_decay, of_skip, of_step_bias = _of_scan(split, convolved, of_scanned, decay, skip, step_bias)
        of_output_weight = torch.einsum("bso,bsd->od", gradient, normed)
        of_output_bias = None if output_bias is None else gradient.sum(dim=(0, 1))
        copied = _with_vectors(split.convolved), _with_vectors(of_convolved), _with_vectors(of_split.convolved)
        of_weight = torch.zeros_like(weight, dtype=torch.float32).type_as(weight)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32).type_as(bias)
        del copied, of_normed, of_convolved, convolved
        return (
            of_projected, of_weight, of_bias, of_step_bias, of_decay, of_skip, of_norm_weight, of_output_weight,
            of_output_bias, None, None, None,
        )  # fmt: skip


def _split(
    projected: torch.Tensor, weight: torch.Tensor, skip: torch.Tensor, chunk: int, head_dim: int, groups: int
) -> _Split:
    heads, convolved = skip.shape[0], weight.shape[0]
    inner = heads * head_dim
    gate, convolved_part, step = torch.split(projected, [inner, convolved, heads], dim=-1)
    state = (convolved - inner) // groups // 2
    return _Split(gate, convolved_part, step, chunk, head_dim, groups, state)


def _with_vectors(channels: torch.Tensor) -> torch.Tensor:
    """Return channels whose tokens begin where a vector does: as they are, or a copy."""
    return channels if channels.stride(1) % VECTOR_CHANNELS == 0 else channels.contiguous()


def _states(split: _Split, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a matrix for each head and chunk."""
    return split.of_chunks(split.heads, split.head_dim, split.state, dtype=dtype)


def _final_states(split: _Split) -> torch.Tensor:
    return split.step.new_empty(split.step.shape[0], split.heads, split.head_dim, split.state, dtype=torch.float32)


def _scores(split: _Split, *splits: int) -> torch.Tensor:
    """Return a chunk's products of queries and keys."""
    return split.of_chunks(*splits, split.groups, split.chunk, split.chunk)


def _roots(split: _Split) -> torch.Tensor:
    return split.step.new_empty(split.step.shape[:2].numel() * split.groups, dtype=torch.float32)


def _of_gated_norm(
    scanned: torch.Tensor, norm_weight: torch.Tensor, split: _Split
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the scan's output and of the norm's weight, of which each multiprocessor adds up a part.

    The gate's gradient is written into that of what was projected.
    """
    of_scanned = torch.empty_like(scanned)
    features = norm_weight.numel()
    block = min(MOST_FUSED_BYTES // scanned.element_size(), 1 << (features // split.groups - 1).bit_length())
    warps = min(max(block // WARP_FEATURES, 1), MOST_WARPS)
    partials = math.ceil(MULTIPROCESSORS * math.ceil(WARPS_OF_A_ROW / warps) / split.groups)
    of_weight = norm_weight.new_empty(partials, features, dtype=torch.float32).sum(0).to(norm_weight.dtype)
    return of_scanned, of_weight


def _of_scan(
    split: _Split,
    convolved: torch.Tensor,
    of_scanned: torch.Tensor,
    decay: torch.Tensor,
    skip: torch.Tensor,
    step_bias: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of decay, skip and step bias; those of channels and steps are written into others."""
    step = split.step.clone()
    steps, decays = split.of_steps(), split.of_steps()
    scores = _scores(split)
    states = _states(split)
    states, final = _states(split), _final_states(split)
    of_states = _states(split, states.dtype)
    of_states, states, of_chunk_decays = _of_passed_states(split, of_states, states, convolved.dtype)
    of_skip, of_steps = _of_channels(split, skip), split.of_steps()
    of_keys, of_decays_next = _of_shared_by_heads(split)
    of_queries, of_decays_before = _of_shared_by_heads(split)
    of_scores = _scores(split, split.splits).sum(2)
    of_decays_before[..., -1] += of_chunk_decays
    of_decays_before_it = of_decays_before.flip([-1]).cumsum(dim=-1).flip([-1])
    of_decays = split.of_steps(math.ceil(split.chunk / LEAST_QUERY_TILE)).sum(dim=3)
    of_decays += of_decays_next + of_decays_before_it
    of_step_bias, of_decay = torch.empty_like(step_bias, dtype=torch.float32), torch.empty_like(decay)
    del step, steps, decays, scores, states, final, of_states, of_steps, of_keys, of_queries, of_scores, of_scanned
    return of_decay, of_skip, of_step_bias


def _of_passed_states(
    split: _Split, of_states: torch.Tensor, states: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the states' gradients and the states in the channels' format, and the gradients of chunks' decays."""
    narrow, narrow_states = torch.empty_like(of_states, dtype=dtype), states
    if dtype != states.dtype:
        narrow_states = torch.empty_like(states, dtype=dtype)
    tiles = math.ceil(split.head_dim * split.state / LEAST_STATE_TILE)
    batch = split.step.shape[0]
    of_chunk_decays = split.step.new_empty(batch, split.heads, split.chunks, tiles, dtype=torch.float32).sum(dim=-1)
    return narrow, narrow_states, of_chunk_decays


def _of_channels(split: _Split, skip: torch.Tensor) -> torch.Tensor:
    """Return the skip's gradient, of which tiles of queries add up a part."""
    tiles = math.ceil(split.chunk / LEAST_QUERY_TILE)
    parts = skip.new_zeros(tiles, split.step.shape[0], split.chunks, split.heads, 1, dtype=torch.float32)
    return parts.sum(dim=(0, 1, 2)).sum(dim=-1).to(skip.dtype)


def _of_shared_by_heads(split: _Split) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of keys, or of queries, that heads share, parts summed, and that of the decays."""
    of_decays = split.of_steps()
    parts = split.step.new_empty(*split.step.shape[:2], split.splits, split.groups, split.state, dtype=torch.float32)
    return parts.sum(2), of_decays
