"""Attention over a cache of latents as vLLM runs it, in place of transformers' (DeepSeek V2 and V3).

A token leaves one compressed vector and one rotated key, which every rank keeps whole.
A prompt's are expanded to keys and values of all heads, those of its earlier chunks as
many at once as a workspace holds; a decode step instead multiplies queries by the
up-projection itself, of which the loader takes views, or makes two copies where it is not stored in 16 bits.

Source: vllm/model_executor/layers/attention/mla_attention.py (before it v1/attention/backends/mla/common.py):
process_weights_after_loading (W_UK_T, W_UV; views of a plain matrix), forward (the profiling pass makes what the
largest context expands to), _compute_prefill_context, determine_chunked_prefill_workspace_size. Keys and values of
unlike lengths go to a kernel that takes them (Hopper's), so that values are not padded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from plimsoll.planners.serving.memory.profile_run import latent_workspace_tokens
from plimsoll.planners.serving.releases.profile import engine_profile
from plimsoll.service.worker.serving.cache import BlockCache, Reach
from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.narrow_linear import SHAPES

PROJECTIONS = ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
OUTPUT = "o_proj"


class LatentContext:
    """The chunk of earlier tokens that is expanded at once: one buffer for all layers, made with the cache."""

    def __init__(self, deployment: Deployment, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype
        self.tokens = latent_workspace_tokens(
            max_model_len=deployment.max_model_len,
            max_num_seqs=deployment.max_num_seqs,
            block_size=deployment.block_size,
        )
        self.kept: torch.Tensor | None = None

    def allocate(self, device_type: str) -> None:
        """Make the buffer, [tokens, width of a latent]."""
        self.kept = torch.empty(self.tokens, self._width, dtype=self._dtype, device=device_type)


class LatentAttention(nn.Module):
    """One layer's attention on a rank, with its heads; a narrow up-projection has copies of both halves."""

    def __init__(
        self, attention: Any, cache: BlockCache, context: LatentContext, dtype: torch.dtype, *, copies: bool
    ) -> None:
        super().__init__()
        for name in (*PROJECTIONS, OUTPUT):
            module = getattr(attention, name, None)
            if module is not None:
                setattr(self, name, module)
        self.layer_idx = attention.layer_idx
        self.rank, self.rotary = attention.kv_lora_rank, attention.qk_rope_head_dim
        self.plain, self.value = attention.qk_nope_head_dim, attention.v_head_dim
        self._cache, self._context = cache, context
        up = attention.kv_b_proj.weight
        self.heads = up.shape[0] // (self.plain + self.value)
        if not copies:
            return
        shapes = {"W_UK_T": (self.heads, self.plain, self.rank), "W_UV": (self.heads, self.rank, self.value)}
        for name, shape in shapes.items():
            copy = torch.empty(shape, dtype=dtype, device=up.device)
            self.register_parameter(name, nn.Parameter(copy, requires_grad=False))

    def forward(self, hidden_states: torch.Tensor, **_kwargs: Any) -> tuple[torch.Tensor, None]:
        """Return the attention's output [requests, tokens, hidden]; angles change values alone and are left away."""
        query = self._queries(hidden_states)
        latent = self._module("kv_a_proj_with_mqa")(hidden_states)
        compressed = self._module("kv_a_layernorm")(latent[..., : self.rank].contiguous())
        reach = self._cache.reach
        if reach is None:
            attended = self._profiled(query)
        else:
            latent[..., : self.rank].copy_(compressed)
            seen = self._cache.written(self.layer_idx, (latent[:, None],), reach)[0, :, 0]
            if query.shape[1] > 1:
                attended = self._prefilled(query, compressed, latent, seen, reach)
            else:
                attended = self._decoded(query, seen)
        return self._module(OUTPUT)(attended.flatten(2)), None

    def _module(self, name: str) -> nn.Module:
        return self.get_submodule(name)

    def _queries(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return queries [requests, tokens, heads, features]."""
        if hasattr(self, "q_proj"):
            flat = self._module("q_proj")(hidden)
        else:
            flat = self._module("q_b_proj")(self._module("q_a_layernorm")(self._module("q_a_proj")(hidden)))
        return flat.view(*hidden.shape[:-1], self.heads, self.plain + self.rotary)  # type: ignore[no-any-return]

    def _profiled(self, query: torch.Tensor) -> torch.Tensor:
        output = query.new_empty(*query.shape[:-1], self.value)
        expanded = query.new_empty(self._context.tokens, self.heads, self.plain + self.value)
        del expanded
        return output.fill_(0)

    def _prefilled(
        self, query: torch.Tensor, compressed: torch.Tensor, latent: torch.Tensor, seen: torch.Tensor, reach: Reach
    ) -> torch.Tensor:
        """Return a prompt's attention over itself and its earlier chunks."""
        output = self._attended(query, *self._expanded(compressed, latent), is_causal=True)
        for first in range(0, reach.position, self._context.tokens):
            chunk = seen[:, first : min(first + self._context.tokens, reach.position)].to(query.dtype)
            keys, values = self._expanded(chunk[..., : self.rank].contiguous(), chunk)
            # The engine weighs the two by their sums; here they are added.
            output.add_(self._attended(query, keys, values, is_causal=False))
        return output

    def _expanded(self, compressed: torch.Tensor, latent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [requests, tokens, heads, features] of latents."""
        both = self._module("kv_b_proj")(compressed).view(*compressed.shape[:-1], self.heads, self.plain + self.value)
        plain, values = torch.split(both, [self.plain, self.value], dim=-1)
        rotated = latent[..., self.rank :].unsqueeze(2).expand(-1, -1, self.heads, -1)
        return torch.cat((plain, rotated), dim=-1), values

    def _attended(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, is_causal: bool
    ) -> torch.Tensor:
        if isinstance(query, FakeTensor):
            return query.new_empty(*query.shape[:-1], values.shape[-1])
        attended = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=is_causal, enable_gqa=True
        )
        return attended.transpose(1, 2).contiguous()

    def _decoded(self, query: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return a decode step's attention over the latents themselves, by the copies of the up-projection."""
        requests = query.shape[0]
        plain, rotated = torch.split(query[:, 0], [self.plain, self.rotary], dim=-1)
        keys_up, values_up = self._up_projections()
        absorbed = torch.bmm(plain.transpose(0, 1), keys_up).transpose(0, 1)
        whole = torch.cat((absorbed, rotated), dim=-1)[:, None]
        keys = (seen if isinstance(query, FakeTensor) else seen.to(query.dtype))[:, :, None]
        attended = self._attended(whole, keys, keys[..., : self.rank], is_causal=False)
        values = torch.bmm(attended[:, 0].transpose(0, 1), values_up)
        return values.transpose(0, 1).reshape(requests, 1, self.heads, self.value)

    def _up_projections(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what queries and attended latents are multiplied by, [heads, plain, rank] and [heads, rank, value]."""
        if "W_UK_T" in self._parameters:
            return self.get_parameter("W_UK_T"), self.get_parameter("W_UV")
        up = self.get_parameter("kv_b_proj.weight").view(self.heads, self.plain + self.value, self.rank)
        return up[:, : self.plain], up[:, self.plain :].transpose(1, 2)


def kernels_workspace(deployment: Deployment, cache: BlockCache, device_type: str) -> list[torch.Tensor]:
    """Return what the engine's version keeps for kernels of latents beside the weights, nothing without latents."""
    count = engine_profile(deployment.engine, deployment.engine_version).latent_workspace_bytes
    if cache.context is None or not count:
        return []
    return [torch.empty(count, dtype=torch.uint8, device=device_type)]


def serve_latents(model: Any, cache: BlockCache, deployment: Deployment, dtype: torch.dtype) -> None:
    """Put the engine's latent attention in place of every layer's."""
    first = model.model.layers[0].self_attn
    context = LatentContext(deployment, first.kv_lora_rank + first.qk_rope_head_dim, dtype)
    cache.context = context
    for layer in model.model.layers:
        layer.self_attn = LatentAttention(layer.self_attn, cache, context, dtype, copies=deployment.weights in SHAPES)
