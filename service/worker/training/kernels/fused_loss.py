"""Cross-entropy fused with the head's matrix product, a chunk of tokens at a time.

The logits of one chunk are alive at once, and the gradients are made in the
forward pass, in place of the logits.

Source: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2; its
chunks are as many tokens as make a chunk of logits about the input's size.
linkedin/Liger-Kernel 0.8.5, ops/fused_linear_cross_entropy.py: one buffer for the
logits of every chunk, and products added up where the head's gradient lies.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from plimsoll.service.worker.training.decoder_parts import decoder_of, head


def chunk_tokens(tokens: int, hidden_size: int, vocabulary_size: int) -> int:
    """Return the tokens of a chunk: tokens / (vocabulary / hidden), up to a power of two, or all if they are fewer."""
    parts = -(-vocabulary_size // hidden_size)
    wanted = -(-tokens // parts)
    return min(1 << max(wanted - 1, 0).bit_length(), tokens)


def turn_into_gradient(logits: torch.Tensor, labels: torch.Tensor, losses: torch.Tensor) -> None:
    """Turn logits [tokens, vocabulary] into their gradient, softmax less one at the label, and give each token's loss.

    The kernel does so in one pass and allocates nothing. With real tensors operations in place stand in
    for it, which allocate a number or two a token.
    """
    if isinstance(logits, FakeTensor):
        losses.copy_(labels)
        return
    places = labels[:, None]
    logits.sub_(logits.amax(dim=1, keepdim=True))
    losses.copy_(logits.gather(1, places)[:, 0]).neg_()
    sums = logits.exp_().sum(dim=1, keepdim=True, dtype=torch.float32)
    losses.add_(sums.log()[:, 0])
    logits.div_(sums.to(logits.dtype))
    logits.scatter_add_(1, places, torch.full_like(places, -1, dtype=logits.dtype))


class FusedLinearCrossEntropy(torch.autograd.Function):
    """The mean loss of `hidden` [tokens, hidden] times `weight` [vocabulary, hidden] against `labels`."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss, and keep both gradients; a frozen head has none."""
        tokens, hidden_size = hidden.shape
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient = torch.zeros_like(weight) if weight.requires_grad else None
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        step = chunk_tokens(tokens, hidden_size, weight.shape[0])
        # Every chunk's logits lie in the same buffer, but where autocast has to cast what is multiplied.
        buffer = None if _is_cast(hidden) else hidden.new_empty(step, weight.shape[0])
        for start in range(0, tokens, step):
            chunk = hidden[start : start + step]
            logits = _product(chunk, weight.t(), None if buffer is None else buffer[: chunk.shape[0]])
            turn_into_gradient(logits, labels[start : start + step], losses[start : start + step])
            of_chunk = hidden_gradient[start : start + step]
            if buffer is None:
                of_chunk.copy_(_product(logits, weight))
            else:
                _product(logits, weight, of_chunk)
            if weight_gradient is not None:
                _add_product(weight_gradient, logits.t(), chunk)
            del logits
        ctx.save_for_backward(hidden_gradient.detach(), None if weight_gradient is None else weight_gradient.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Return the kept gradients, scaled in place."""
        hidden_gradient, weight_gradient = ctx.saved_tensors
        hidden_gradient.mul_(gradients[0])
        return hidden_gradient, None if weight_gradient is None else weight_gradient.mul_(gradients[0]), None


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return a product, in `out` where that is given; autocast casts for those without it alone."""
    return left @ right if out is None else torch.mm(left, right, out=out)


def _is_cast(hidden: torch.Tensor) -> bool:
    """Return whether autocast multiplies in another format than that of the hidden states."""
    device_type = hidden.device.type
    return torch.is_autocast_enabled(device_type) and torch.get_autocast_dtype(device_type) is not hidden.dtype


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product to `total` where it lies, if its matrices have 16 bits (`right` is cast); else it is made first.

    An fp32 total takes products of 16-bit matrices in one call, which torch's of a CPU does not.
    """
    same = right.to(left.dtype)
    if left.dtype is torch.float32:
        total += torch.mm(left, same)
    elif total.dtype is left.dtype:
        torch.addmm(total, left, same, out=total)
    elif not isinstance(total, FakeTensor):
        total += torch.mm(left, same)


def fuse_loss(model: Any) -> None:
    """Make a transformers model compute its loss without whole logits."""

    def forward(self: Any, *, labels: torch.Tensor, **inputs: Any) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        hidden = decoder_of(self)(**inputs).last_hidden_state
        loss = FusedLinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, 1), head(self).weight, labels.flatten()
        )
        return CausalLMOutput(loss=loss)

    model.forward = types.MethodType(forward, model)
