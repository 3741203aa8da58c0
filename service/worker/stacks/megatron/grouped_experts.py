"""Megatron-Core's experts: tokens permuted, sent, worked on in one grouped product, sent back and added up.

Each function makes the tensors that Megatron's own makes, and holds on to them as long; of the fused kernels those are
kept that they save. Every expert gets as many tokens as another, and there is no auxiliary loss.

Source: NVIDIA/Megatron-LM, core/transformer/moe: `router.py` (`TopKRouter`), `moe_utils.py`
(`topk_routing_with_score_function`, `permute`, `unpermute`, `sort_chunks_by_idxs`, without `--moe-permute-fusion`),
`token_dispatcher.py` (`MoEAlltoAllTokenDispatcher`), `experts.py` (`TEGroupedMLP`), `moe_layer.py` (`MoELayer`);
core/fusions/fused_bias_swiglu.py (`WeightedSwiGLUFunction`); Transformer Engine, pytorch/module/grouped_linear.py.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_gather_single_autograd, reduce_scatter_single_autograd
from torch.distributed.tensor import DTensor

from plimsoll.service.worker.training.kernels.rms_norm import has_values
from plimsoll.service.worker.training.parallel.experts import EXPERT_TENSORS, exchanged


class GroupedLinear(torch.autograd.Function):
    """Tokens [tokens, inputs] times one matrix for each expert, of `weights` [experts, outputs, inputs].

    The weights' gradients are added up where they accumulate, in `main_grad`.
    """

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weights: nn.Parameter) -> torch.Tensor:
        """Return the products, and keep the tokens and the weights."""
        ctx.save_for_backward(tokens)
        ctx.weights = weights
        output = tokens.new_empty(tokens.size(0), weights.size(1))
        if has_values(tokens):
            for part, product, weight in _by_expert(tokens, output, weights.detach()):
                torch.mm(part, weight.t(), out=product)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the tokens' gradient."""
        (tokens,) = ctx.saved_tensors
        of_tokens = torch.empty_like(tokens)
        if has_values(tokens):
            for of_output, result, weight in _by_expert(gradients[0], of_tokens, ctx.weights.detach()):
                torch.mm(of_output, weight, out=result)
            for of_output, part, main in _by_expert(gradients[0], tokens, ctx.weights.main_grad):
                main.add_(of_output.t() @ part)
        return of_tokens, None


class WeightedSwiGlu(torch.autograd.Function):
    """SiLU of the first half of `inner` [tokens, 2 x features] times the second, times each token's score."""

    @staticmethod
    def forward(ctx: Any, inner: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the weighted product, and keep both inputs."""
        ctx.save_for_backward(inner, scores)
        if has_values(inner):
            gate, up = inner.chunk(2, dim=-1)
            return nn.functional.silu(gate).mul_(up).mul_(scores)
        return inner.new_empty(inner.size(0), inner.size(1) // 2)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of the input and of the scores."""
        inner, scores = ctx.saved_tensors
        of_inner, of_scores = torch.empty_like(inner), torch.empty_like(scores)
        if has_values(inner):
            gate, up = inner.chunk(2, dim=-1)
            product = nn.functional.silu(gate)
            of_scores.copy_((product * up * gradients[0]).sum(dim=-1, keepdim=True))
            weighted = gradients[0] * scores
            of_gate, of_up = of_inner.chunk(2, dim=-1)
            of_up.copy_(product.mul_(weighted))
            of_gate.copy_(torch.ops.aten.silu_backward(weighted.mul_(up), gate))
        return of_inner, of_scores


class Dispatcher:
    """Sends a rank's tokens to their experts and fetches them back; remembers the last routing, as Megatron's does.

    `held` experts are on this rank. `group` are the ranks that hold different ones, `tensor_group` those that each
    have a part of the same, None where experts are whole.
    """

    def __init__(
        self, *, held: int, per_token: int, group: dist.ProcessGroup, tensor_group: dist.ProcessGroup | None
    ) -> None:
        self.held, self.per_token = held, per_token
        self._group, self._tensor_group = group, tensor_group
        self._probs: torch.Tensor | None = None
        self._routing_map: torch.Tensor | None = None
        self._places: torch.Tensor | None = None

    def permuted(
        self, hidden: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of `hidden` [tokens, features] expert by expert, once for each that they go to."""
        # Without its graph, which Megatron's checkpoints differentiate and empty, and torch's leave as it was made.
        self._probs, self._routing_map = probs.detach(), routing_map
        by_expert = routing_map.T.contiguous()
        chosen = by_expert.reshape(-1).argsort(descending=True, stable=True)[: hidden.size(0) * self.per_token]
        self._places = chosen % hidden.size(0)
        return hidden.index_select(0, self._places), probs.T.contiguous().reshape(-1)[chosen]

    def sent(self, tokens: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the other ranks sent."""
        if self._group.size() == 1:
            return tokens, scores
        return exchanged(tokens, self._group), exchanged(scores, self._group)

    def gathered(self, tokens: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens expert by expert of whichever rank they came from."""
        if self._tensor_group is not None:
            tokens = all_gather_single_autograd(tokens, 0, self._tensor_group)
            scores = all_gather_single_autograd(scores, 0, self._tensor_group)
        return self._regrouped(tokens, self.held), self._regrouped(scores, self.held)

    def restored(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the experts' outputs rank by rank, of experts in parts summed."""
        outputs = self._regrouped(outputs, self._sources)
        if self._tensor_group is not None:
            outputs = reduce_scatter_single_autograd(outputs, "sum", 0, self._tensor_group)
        return outputs

    def fetched(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return this rank's own tokens from the other ranks."""
        return outputs if self._group.size() == 1 else exchanged(outputs, self._group)

    def unpermuted(self, outputs: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the sum of each of so many tokens' outputs."""
        if self._places is None:
            raise RuntimeError("Tokens were fetched back before any was sent.")
        total = torch.zeros(tokens, outputs.size(1), dtype=outputs.dtype)
        return total.scatter_add_(0, self._places.unsqueeze(1).expand(-1, outputs.size(1)), outputs)

    @property
    def _sources(self) -> int:
        """Return how many ranks the tokens of this rank's experts come from."""
        return self._group.size() * (1 if self._tensor_group is None else self._tensor_group.size())

    def _regrouped(self, tokens: torch.Tensor, inner: int) -> torch.Tensor:
        """Return tokens in chunks for each source and expert, of which `inner` follow one another, the other way."""
        if self.held == 1:
            return tokens
        chunks = tokens.tensor_split(self._sources * self.held)
        return torch.cat([chunks[place] for first in range(inner) for place in range(first, len(chunks), inner)])


def group_experts(
    model: Any, *, group: dist.ProcessGroup, tensor_group: dist.ProcessGroup | None, per_token: int
) -> None:
    """Leave each mixture of the model the first rank's experts, and give it Megatron's way through them."""
    parts = 1 if tensor_group is None else tensor_group.size()
    for layer in model.model.layers:
        experts = getattr(layer.mlp, "experts", None)
        if experts is None:
            continue
        held = experts.num_experts // group.size()
        first, last = (getattr(experts, name) for name in EXPERT_TENSORS)
        experts.gate_up_proj = nn.Parameter(first.new_empty(held, first.size(1) // parts, first.size(2)))
        experts.down_proj = nn.Parameter(last.new_empty(held, last.size(1), last.size(2) // parts))
        dispatcher = Dispatcher(held=held, per_token=per_token, group=group, tensor_group=tensor_group)
        layer.mlp.dispatcher = dispatcher
        layer.mlp.forward = types.MethodType(_mixture, layer.mlp)


def _mixture(mlp: Any, hidden_states: Any) -> Any:
    """Return a mixture's output for `hidden_states` [batch, sequence, features], a rank's own tokens where split."""
    if isinstance(hidden_states, DTensor):
        hidden_states = hidden_states.to_local()
    shape = hidden_states.shape
    dispatcher = mlp.dispatcher
    # The names live as long as those of `custom_forward`, and so do their tensors.
    permuted, scores = _routed(mlp, hidden_states.view(-1, shape[-1]))
    dispatched, scores = dispatcher.sent(permuted, scores)
    output = _outputs(mlp, dispatched, scores)
    output = _combined(dispatcher, output, shape.numel() // shape[-1])
    return output.view(shape)


def _routed(mlp: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of `hidden` [tokens, features] for each of their experts, with the experts' scores."""
    logits = nn.functional.linear(hidden, mlp.gate.weight)
    highest, chosen = torch.topk(logits, mlp.dispatcher.per_token, dim=1)
    scores = torch.softmax(highest, dim=-1, dtype=torch.float32).type_as(logits)
    probs = torch.zeros_like(logits).scatter(1, chosen, scores)
    routing_map = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    result: tuple[torch.Tensor, torch.Tensor] = mlp.dispatcher.permuted(hidden, probs, routing_map)
    return result


def _outputs(mlp: Any, dispatched: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    tokens, scores = mlp.dispatcher.gathered(dispatched, scores)
    inner = GroupedLinear.apply(tokens, mlp.experts.gate_up_proj)  # type: ignore[no-untyped-call]
    product = WeightedSwiGlu.apply(inner, scores.unsqueeze(-1))  # type: ignore[no-untyped-call]
    outputs = GroupedLinear.apply(product, mlp.experts.down_proj)  # type: ignore[no-untyped-call]
    restored: torch.Tensor = mlp.dispatcher.restored(outputs)
    return restored


def _combined(dispatcher: Dispatcher, output: torch.Tensor, tokens: int) -> torch.Tensor:
    fetched = dispatcher.fetched(output)
    return dispatcher.unpermuted(fetched, tokens)


def _by_expert(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the rows of the first two tensors that belong to each expert of the last."""
    *rows, weights = tensors
    parts = [tensor.tensor_split(weights.size(0)) for tensor in rows]
    yield from zip(*parts, weights, strict=True)
