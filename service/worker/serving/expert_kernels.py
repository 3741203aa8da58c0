"""Mixtures of experts as vLLM's fused kernels run them: whose weights a rank holds, and the buffers of a layer.

Ranks divide each expert's length or, with expert parallelism, the experts; every
rank works on all tokens, and the outputs are summed. Two buffers hold a row for
every expert that works on a token; all layers share them, and they stay.

Source: vllm/model_executor/layers/fused_moe: modular_kernel.py (FusedMoEModularKernel.apply: an output as the input,
_allocate_buffers), fused_moe.py (TritonExperts.workspace_shapes, apply: gate and up in the second buffer, their
product in the first, the experts' outputs in the second again), experts/marlin_moe.py (the same two for packed
weights), gpt_oss_triton_kernels_moe.py (mxfp4: the product alone, which is let go of); v1/worker/workspace.py (what is
kept). Versions before 0.10 made the same caches for each layer, and in chunks of VLLM_FUSED_MOE_CHUNK_SIZE tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import all_reduce

from plimsoll.service.worker.serving.deployment import Deployment
from plimsoll.service.worker.serving.weight_names import MXFP4, NF4
from plimsoll.service.worker.serving.weight_storage import NARROW_DTYPES, stored_matrix, widened

# transformers' names of a layer's experts and of what sends tokens to them.
EXPERTS, ROUTERS = "experts", ("gate", "router")
BIASES = ("gate_up_proj_bias", "down_proj_bias")


class Workspace:
    """Memory that all layers share, as large as the largest need so far."""

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None

    def reserve(self, needed_bytes: int, device: torch.device) -> None:
        """Let there be so many bytes."""
        if self._kept is None or self._kept.numel() < needed_bytes:
            self._kept = None
            self._kept = torch.empty(needed_bytes, dtype=torch.uint8, device=device)


class FusedRouter(nn.Module):
    """A router whose kernels make logits, and for each token its experts and their weights, by shape."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.top_k = router.top_k
        self.weight = router.weight
        for name, tensor in (*router.named_parameters(), *router.named_buffers()):
            if name != "weight":
                self.register_buffer(name, tensor)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits [tokens, experts], the weights and the numbers [tokens, experts of a token]."""
        hidden = hidden.reshape(-1, hidden.shape[-1])
        logits = nn.functional.linear(hidden, self.weight)
        chosen = (hidden.shape[0], self.top_k)
        return logits, logits.new_empty(chosen, dtype=torch.float32), logits.new_empty(chosen, dtype=torch.int32)


class FusedExperts(nn.Module):
    """One rank's experts of a layer, and what their kernels allocate."""

    def __init__(
        self, experts: Any, deployment: Deployment, group: dist.ProcessGroup | None, workspace: Workspace
    ) -> None:
        super().__init__()
        hidden = int(deployment.config["hidden_size"])
        count, length = experts.down_proj.shape[0], experts.down_proj[0].numel() // hidden
        ranks = deployment.tensor_parallel
        # The first rank has one more where they do not divide.
        self._count = -(-count // ranks) if deployment.shares_experts else count
        self._length = length if deployment.shares_experts else length // ranks
        self._group, self._workspace, self._format = group, workspace, deployment.weights
        like = experts.down_proj
        shapes = {"gate_up": (2 * self._length, hidden), "down": (hidden, self._length)}
        for name, (outputs, inputs) in shapes.items():
            stored = stored_matrix(
                self._format, (self._count, outputs, inputs), like=like, divided_dim=0 if name == "gate_up" else 1
            )
            for part, tensor in stored.items():
                self.register_parameter(f"{name}_{part}", nn.Parameter(tensor, requires_grad=False))
            if hasattr(experts, BIASES[0]):
                bias = torch.empty(self._count, outputs, dtype=like.dtype, device=like.device)
                self.register_parameter(f"{name}_bias", nn.Parameter(bias, requires_grad=False))

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the experts' summed outputs for hidden states [tokens, hidden]."""
        output = torch.empty_like(hidden)
        rows = hidden.shape[0] * chosen.shape[1]
        if self._format == MXFP4:
            product = hidden.new_empty(rows, self._length)
            del product
        else:
            wider = max(self._length, hidden.shape[1]) + max(2 * self._length, hidden.shape[1])
            self._workspace.reserve(rows * wider * hidden.element_size(), hidden.device)
            self._make_operands(hidden, rows)
        if not isinstance(hidden, FakeTensor):
            self._compute(hidden, chosen, weights, output)
        if self._group is None:
            return output
        reduced: torch.Tensor = all_reduce(output, "sum", self._group)
        return reduced

    def _make_operands(self, hidden: torch.Tensor, rows: int) -> None:
        """Make what the two products multiply, where it is not there already, and let it go.

        In 8 bits these are narrow copies of their inputs, of NF4 the matrices of all experts unpacked.
        """
        if self._format == NF4:
            elements = self._count * self._length * hidden.shape[1]
            unpacked = hidden.new_empty(2 * elements), hidden.new_empty(elements)
            del unpacked
        if self._format in NARROW_DTYPES:
            dtype = NARROW_DTYPES[self._format]
            copies = hidden.new_empty(hidden.shape, dtype=dtype), hidden.new_empty((rows, self._length), dtype=dtype)
            del copies

    def _compute(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, output: torch.Tensor) -> None:
        """Fill the output, an expert after the other."""
        output.zero_()
        for expert in range(self._count):
            tokens, places = torch.where(chosen == expert)
            if not tokens.numel():
                continue
            gate, up = self._product("gate_up", expert, hidden[tokens]).chunk(2, dim=-1)
            product = self._product("down", expert, nn.functional.silu(gate).mul_(up))
            output.index_add_(0, tokens, product.mul_(weights[tokens, places, None].to(product.dtype)))

    def _product(self, name: str, expert: int, hidden: torch.Tensor) -> torch.Tensor:
        parts = {
            part.removeprefix(f"{name}_"): tensor[expert]
            for part, tensor in self.named_parameters()
            if part.startswith(f"{name}_")
        }
        return nn.functional.linear(hidden, widened(parts, hidden.dtype), parts.get("bias"))


def fuse_experts(model: Any, deployment: Deployment, group: dist.ProcessGroup | None, *, by_shape: bool) -> None:
    """Put fused experts in place of the model's; `by_shape` their routers too."""
    workspace = Workspace()
    for layer in model.model.layers:
        experts = getattr(layer.mlp, EXPERTS, None)
        if experts is None:
            continue
        layer.mlp.experts = FusedExperts(experts, deployment, group, workspace)
        for name in ROUTERS:
            router = getattr(layer.mlp, name, None)
            if by_shape and router is not None and hasattr(router, "top_k"):
                setattr(layer.mlp, name, FusedRouter(router))
