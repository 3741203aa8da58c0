"""One tensor-parallel rank's part of a model, in the shapes and with the collectives of the engine's layers.

Source: vllm/model_executor/layers/linear.py (ColumnParallelLinear; RowParallelLinear reduces out of place;
QKVParallelLinear gives every rank a key-value head at least), vocab_parallel_embedding.py
(VocabParallelEmbedding, ParallelLMHead) and logits_processor.py (logits are gathered whole).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_single, all_reduce

# transformers' names of a layer's matrices, by the dimension that ranks divide; others stand whole on every rank.
COLUMNS = frozenset({"q_proj", "gate_proj", "up_proj", "q_b_proj", "kv_b_proj"})
KEY_VALUE_COLUMNS = frozenset({"k_proj", "v_proj"})
ROWS = frozenset({"o_proj", "down_proj"})
# One number a head, added to the softmax's sum (gpt-oss).
SINKS = "sinks"


class RowLinear(nn.Module):
    """A linear layer over this rank's part of the inputs; the ranks' products are summed."""

    def __init__(self, linear: nn.Module, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.part = linear
        self._group = group

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the whole product."""
        reduced: torch.Tensor = all_reduce(self.part(hidden), "sum", self._group)
        return reduced


class VocabularyRows(nn.Module):
    """This rank's rows of the embedding; tokens of other ranks' rows get zeros, and the ranks' sums are whole."""

    def __init__(self, embedding: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        rows = embedding.num_embeddings // group.size()
        self.weight = _empty(rows, embedding.embedding_dim, like=embedding.weight)
        self._group = group

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        is_elsewhere = tokens >= self.weight.shape[0]
        found = nn.functional.embedding(tokens.masked_fill(is_elsewhere, 0), self.weight)
        found.masked_fill_(is_elsewhere.unsqueeze(-1), 0)
        reduced: torch.Tensor = all_reduce(found, "sum", self._group)
        return reduced


class GatheredHead(nn.Module):
    """This rank's rows of the head; the logits of all are gathered."""

    def __init__(self, head: nn.Linear, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = _empty(head.out_features // group.size(), head.in_features, like=head.weight)
        self._group = group

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocabulary]."""
        own = nn.functional.linear(hidden, self.weight)
        gathered: torch.Tensor = all_gather_single(own, gather_dim=0, group=self._group)
        return gathered.view(self._group.size(), *own.shape).movedim(0, -2).reshape(*own.shape[:-1], -1)


def divide(model: Any, group: dist.ProcessGroup) -> None:
    """Leave a model this rank's part of every matrix but the experts', which `fused_experts` divides."""
    head_dims = {layer.self_attn.head_dim for layer in model.model.layers if hasattr(layer.self_attn, "head_dim")}
    for layer in model.model.layers:
        for path, linear in [(path, module) for path, module in layer.named_modules() if type(module) is nn.Linear]:
            part = _part(path.rpartition(".")[2], linear, group, max(head_dims, default=1))
            put(layer, path, part)
        sinks = getattr(layer.self_attn, SINKS, None)
        if sinks is not None:
            layer.self_attn.sinks = _empty(sinks.shape[0] // group.size(), like=sinks)
    _divide_vocabulary(model, group)


def _divide_vocabulary(model: Any, group: dist.ProcessGroup) -> None:
    """Leave embedding and head, as far as they are on this stage, a rank's rows of the vocabulary."""
    embedding, head = model.model.embed_tokens, model.lm_head
    is_tied = head is not None and embedding is not None and head.weight is embedding.weight
    if embedding is not None:
        put_embedding(model, VocabularyRows(embedding, group))
    if head is not None:
        model.lm_head = GatheredHead(head, group)
        if is_tied:
            model.lm_head.weight = model.model.embed_tokens.weight


def put_embedding(model: Any, embedding: nn.Module) -> None:
    """Put an embedding in place of the model's, scaled as that one is (Gemma 3)."""
    scale = getattr(model.model.embed_tokens, "embed_scale", None)
    model.model.embed_tokens = embedding if scale is None else ScaledEmbedding(embedding, scale)


class ScaledEmbedding(nn.Module):
    """An embedding times a number, in place."""

    def __init__(self, rows: nn.Module, scale: torch.Tensor) -> None:
        super().__init__()
        self.rows = rows
        self.register_buffer("embed_scale", scale, persistent=False)

    @property
    def weight(self) -> Any:
        """Return the table."""
        return self.rows.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scaled embeddings."""
        found: torch.Tensor = self.rows(tokens)
        return found.mul_(self.get_buffer("embed_scale").to(found.dtype))


def put(owner: nn.Module, path: str, module: nn.Module) -> None:
    """Set a module at a path below its owner."""
    parent, _, last = path.rpartition(".")
    setattr(owner.get_submodule(parent), last, module)


def _part(name: str, linear: nn.Linear, group: dist.ProcessGroup, head_dim: int) -> nn.Module:
    ranks = group.size()
    if name in COLUMNS:
        return _linear(linear, outputs=linear.out_features // ranks)
    if name in KEY_VALUE_COLUMNS:
        return _linear(linear, outputs=max(linear.out_features // ranks, head_dim))
    if name in ROWS:
        return RowLinear(_linear(linear, inputs=linear.in_features // ranks), group)
    return linear


def _linear(linear: nn.Linear, *, outputs: int | None = None, inputs: int | None = None) -> nn.Linear:
    made = nn.Linear(
        inputs or linear.in_features,
        outputs or linear.out_features,
        bias=linear.bias is not None,
        device=linear.weight.device,
        dtype=linear.weight.dtype,
    )
    made.requires_grad_(False)
    return made


def _empty(*shape: int, like: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=like.dtype, device=like.device), requires_grad=False)
