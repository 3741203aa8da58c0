"""Modules in place of Transformer Engine's, beneath Megatron-Core's own layers; what they allocate and keep is TE's.

Matrices are Megatron-Core's own, which hold what TE's hold but for one thing: a split sequence is gathered into a new
tensor each time, as TE does it, where Megatron-Core has one buffer for good (which its head, no module of TE's, uses).
Norms, rotation, attention and grouped products are stood in for by shape.

Source: Transformer Engine, pytorch: module/linear.py, module/layernorm_linear.py, module/grouped_linear.py,
module/base.py (`get_dummy_wgrad`), attention/rope.py (`FusedRoPEFunc`), attention/dot_product_attention/backends.py
(`FlashAttention`, which copies queries, keys and values batch first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel import layers
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from plimsoll.service.worker.recording.patches import replaced
from plimsoll.service.worker.stacks.megatron.fused_kernels import FusedRmsNorm
from plimsoll.service.worker.training.kernels.attention import traced_attention
from plimsoll.service.worker.training.parallel.ring_attention import RingFlashAttention


class _NewTensors:
    """Megatron-Core's memory for what is gathered, which makes a new tensor each time."""

    def get_tensor(self, shape: Sequence[int], dtype: torch.dtype, _name: str) -> torch.Tensor:
        """Return an empty tensor."""
        return torch.empty(shape, dtype=dtype)


def _with_new_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with replaced(layers, "get_global_memory_buffer", _NewTensors):
            return method(*args)

    return call


class _WithParameter:
    """What a product keeps, its weight being the parameter: one that hooks hand back is another tensor.

    Source: Transformer Engine, pytorch/module/linear.py (`weight_object`, "For CPU offloading").
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @property
    def saved_tensors(self) -> tuple[torch.Tensor, nn.Parameter]:
        """Return the input and the weight."""
        given, _ = self._context.saved_tensors
        return given, self._context.weight


class _Product(layers.LinearWithGradAccumulationAndAsyncCommunication):  # type: ignore[misc]
    """Megatron-Core's product over a split sequence or a whole one, gathered into new tensors."""

    @staticmethod
    @_with_new_tensors
    def forward(ctx: Any, *given: Any) -> Any:
        """Return the product."""
        _, ctx.weight, *_ = given
        return layers.LinearWithGradAccumulationAndAsyncCommunication.forward(ctx, *given)

    @staticmethod
    @_with_new_tensors
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the gradients."""
        return layers.LinearWithGradAccumulationAndAsyncCommunication.backward(_WithParameter(ctx), *gradients)


def _product(_module: nn.Module, **given: Any) -> Any:
    return _Product.apply(*(given.get(name) for name in _PRODUCT_ARGUMENTS))


_PRODUCT_ARGUMENTS = (
    "input",
    "weight",
    "bias",
    "gradient_accumulation_fusion",
    "allreduce_dgrad",
    "sequence_parallel",
    "grad_output_buffer",
    "wgrad_deferral_limit",
    "tp_group",
)


class Columns(layers.ColumnParallelLinear):  # type: ignore[misc]
    """A matrix that is split by columns (`TEColumnParallelLinear`)."""

    _forward_impl = _product


class Rows(layers.RowParallelLinear):  # type: ignore[misc]
    """A matrix that is split by rows (`TERowParallelLinear`)."""

    _forward_impl = _product


class Whole(nn.Module):
    """A matrix that every tensor-parallel rank has whole, for its own tokens (`TELinear`, "duplicated")."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **_settings: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: torch.Tensor) -> tuple[Any, None]:
        """Return the product, and no bias."""
        return _Product.apply(hidden, self.weight, None, True, False, False, None, 0, None), None


def _norm_weight(config: Any, length: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(length, dtype=config.params_dtype))
    weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return weight


class Norm(nn.Module):
    """RMSNorm in one kernel (`TENorm`)."""

    def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = _norm_weight(config, hidden_size), eps

    def forward(self, hidden: torch.Tensor) -> Any:
        """Return `hidden` normalized over its last dimension."""
        return FusedRmsNorm.apply(hidden.contiguous(), self.weight)  # type: ignore[no-untyped-call]


class NormedColumns(Columns):
    """A norm and the matrix behind it (`TELayerNormColumnParallelLinear`)."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **settings: Any) -> None:
        super().__init__(input_size, output_size, config=config, **settings)
        self.layer_norm_weight = _norm_weight(config, input_size)

    def forward(self, hidden: torch.Tensor) -> Any:
        """Return the product with what is normalized, and the bias that is still to be added."""
        # A view, as half of a product, is copied (module/base.py, `prepare_forward`).
        normed = FusedRmsNorm.apply(hidden.contiguous(), self.layer_norm_weight)  # type: ignore[no-untyped-call]
        return super().forward(normed)


class Rotation(torch.autograd.Function):
    """The rotary embedding of `heads` [sequence, batch, heads, head_dim] in one kernel, which keeps the angles."""

    @staticmethod
    def forward(ctx: Any, heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Return the rotated heads."""
        ctx.save_for_backward(angles)
        return torch.empty(heads.shape, dtype=heads.dtype)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient turned back."""
        return torch.empty(gradients[0].shape, dtype=gradients[0].dtype), None


def rotated(heads: torch.Tensor, angles: torch.Tensor, interleaved: bool = False) -> Any:  # noqa: ARG001 - TE's own
    """Return heads turned by their angles (`fused_apply_rotary_pos_emb`)."""
    return Rotation.apply(heads, angles)  # type: ignore[no-untyped-call]


class CoreAttention(nn.Module):
    """Flash attention of [sequence, batch, heads, head_dim], over the ranks of `ring` where it has any."""

    def __init__(self, *, ring: DeviceMesh | None, **_settings: Any) -> None:
        super().__init__()
        self._ring = ring

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_masks: Any, **_kinds: Any
    ) -> torch.Tensor:
        """Return the output [sequence, batch, heads x head_dim]."""
        batch_first = (each.transpose(0, 1).contiguous() for each in (query, key, value))
        query, key, value = (each.transpose(1, 2) for each in batch_first)
        if self._ring is None:
            output, _ = traced_attention(self, query, key, value, None)
        else:
            ring = RingFlashAttention.apply(query, key, value, self._ring, None, True)  # type: ignore[no-untyped-call]
            output = ring.transpose(1, 2).contiguous()
        return output.flatten(2).transpose(0, 1).contiguous()


class _GroupedProduct(torch.autograd.Function):
    """Tokens [tokens, inputs] times one matrix for each expert, whose gradients are added up where they accumulate."""

    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, *weights: nn.Parameter) -> torch.Tensor:
        """Return the products, and keep the tokens and the weights."""
        ctx.save_for_backward(tokens, *weights)
        ctx.weights = weights
        return tokens.new_empty(tokens.size(0), weights[0].size(0))

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tokens' gradient, and empty ones for the weights."""
        tokens, *_ = ctx.saved_tensors
        dummies = tuple(layers.get_dummy_wgrad(list(weight.shape), weight.dtype) for weight in ctx.weights)
        for weight in ctx.weights:
            weight.grad_added_to_main_grad = True
        return torch.empty_like(tokens), *dummies


class _GroupedMatrices(nn.Module):
    """A matrix for each of this rank's experts."""

    def __init__(self, matrices: int, inputs: int, outputs: int, *, config: Any) -> None:
        super().__init__()
        for number in range(matrices):
            weight = nn.Parameter(torch.empty(outputs, inputs, dtype=config.params_dtype))
            weight.allreduce = config.expert_model_parallel_size == 1  # type: ignore[attr-defined]
            self.register_parameter(f"weight{number}", weight)

    def forward(self, tokens: torch.Tensor, _tokens_per_expert: Sequence[int]) -> tuple[Any, None]:
        """Return the products expert by expert, and no bias."""
        return _GroupedProduct.apply(tokens, *self.parameters()), None  # type: ignore[no-untyped-call]


class GroupedColumns(_GroupedMatrices):
    """Matrices that are each split by columns (`TEColumnParallelGroupedLinear`)."""

    def __init__(
        self, matrices: int, inputs: int, outputs: int, *, config: Any, pg_collection: Any, **_settings: Any
    ) -> None:
        super().__init__(matrices, inputs, outputs // pg_collection.expt_tp.size(), config=config)


class GroupedRows(_GroupedMatrices):
    """Matrices that are each split by rows (`TERowParallelGroupedLinear`)."""

    def __init__(
        self, matrices: int, inputs: int, outputs: int, *, config: Any, pg_collection: Any, **_settings: Any
    ) -> None:
        super().__init__(matrices, inputs // pg_collection.expt_tp.size(), outputs, config=config)


class Modules(LocalSpecProvider):  # type: ignore[misc]
    """Says which modules a layer is made of, in the words of Megatron-Core (`TESpecProvider`)."""

    def __init__(self, attention: ModuleSpec) -> None:
        self._attention = attention

    def linear(self) -> type:
        """Return the matrix that every rank has whole."""
        return Whole

    def column_parallel_linear(self) -> type:
        """Return the matrix that is split by columns."""
        return Columns

    def row_parallel_linear(self) -> type:
        """Return the matrix that is split by rows."""
        return Rows

    def fuse_layernorm_and_linear(self) -> bool:
        """Return that a norm and the matrix behind it are one module."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """Return that module."""
        return NormedColumns

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:  # noqa: ARG002 - Megatron-Core's own
        """Return a norm by itself."""
        return Norm

    def core_attention(self) -> Any:
        """Return the attention's inner product."""
        return self._attention

    def grouped_mlp_modules(self, *_asked: bool) -> tuple[type, MLPSubmodules]:
        """Return the experts of a mixture."""
        return TEGroupedMLP, MLPSubmodules(linear_fc1=GroupedColumns, linear_fc2=GroupedRows)
