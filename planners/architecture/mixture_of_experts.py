"""Mixture of experts: a router, experts of which a few work on each token, shared experts beside them."""

from __future__ import annotations

from dataclasses import dataclass

from planners.architecture.feed_forward import gated_operations
from planners.architecture.operation import Operation, OperationKind, Region, Tensor
from planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The sizes of one mixture: `experts_per_token` of `experts` gated feed-forwards, `shared_intermediate_size`
    features of a feed-forward that works on every token (0 for none).

    Source: Shazeer et al. 2017 (arXiv:1701.06538); shared experts: Dai et al. 2024 (arXiv:2401.06066).
    """

    hidden_size: int
    intermediate_size: int
    experts: int
    experts_per_token: int
    shared_intermediate_size: int = 0


def router_weight(name: str, size: MixtureOfExperts) -> Weight:
    """Return the matrix that scores the experts; every rank holds it whole."""
    return Weight(name=name, shape=(size.experts, size.hidden_size), part=Part.ROUTER)


def expert_weights(prefix: str, size: MixtureOfExperts, *, names: tuple[str, str, str]) -> tuple[Weight, ...]:
    """Return the experts' matrices, one tensor an expert; `names` are gate, up and down.

    `prefix` holds `{layer}` and `{expert}`.
    """
    gate, up, down = names
    columns = tuple(
        Weight(
            name=f"{prefix}.{name}.weight",
            shape=(size.intermediate_size, size.hidden_size),
            part=Part.EXPERT,
            split=Split.COLUMN,
            dim=0,
            experts=size.experts,
            is_linear=True,
        )
        for name in (gate, up)
    )
    row = Weight(
        name=f"{prefix}.{down}.weight",
        shape=(size.hidden_size, size.intermediate_size),
        part=Part.EXPERT,
        split=Split.ROW,
        dim=1,
        experts=size.experts,
        is_linear=True,
    )
    return (*columns, row)


def mixture_tensors(size: MixtureOfExperts) -> tuple[Tensor, ...]:
    """Return the activations between the feed-forward's norm and its output.

    A token stands once for each expert that works on it, so the widths are
    `experts_per_token` times those of one expert.
    """
    chosen, inner = size.experts_per_token, size.intermediate_size
    tensors = [
        Tensor(name="feed_forward_input", width=size.hidden_size),
        Tensor(name="router_scores", width=size.experts),
        Tensor(name="dispatched", width=chosen * size.hidden_size),
        Tensor(name="expert_gate", width=chosen * inner, region=Region.TENSOR),
        Tensor(name="expert_up", width=chosen * inner, region=Region.TENSOR),
        Tensor(name="expert_product", width=chosen * inner, region=Region.TENSOR),
        Tensor(name="expert_output", width=chosen * size.hidden_size),
        Tensor(name="feed_forward_output", width=size.hidden_size),
    ]
    if size.shared_intermediate_size:
        tensors.extend(
            Tensor(name=name, width=size.shared_intermediate_size, region=Region.TENSOR)
            for name in ("shared_gate", "shared_up", "shared_product")
        )
    return tuple(tensors)


def mixture_operations(size: MixtureOfExperts) -> tuple[Operation, ...]:
    """Return routing, the experts' matrices and, where there are any, the shared experts'."""
    hidden, inner, chosen = size.hidden_size, size.intermediate_size, size.experts_per_token
    operations = [
        Operation(
            name="router",
            kind=OperationKind.MATMUL,
            inputs=("feed_forward_input",),
            output="router_scores",
            region=Region.SEQUENCE,
            matmul_shape=(hidden, size.experts),
        ),
        Operation(
            name="dispatch",
            kind=OperationKind.ROUTING,
            inputs=("feed_forward_input", "router_scores"),
            output="dispatched",
            region=Region.SEQUENCE,
        ),
        *gated_operations("expert", "dispatched", "expert_output", hidden, inner, copies=chosen),
        Operation(
            name="combine",
            kind=OperationKind.ROUTING,
            inputs=("expert_output", "router_scores"),
            output="feed_forward_output",
            region=Region.SEQUENCE,
        ),
    ]
    if size.shared_intermediate_size:
        operations.extend(
            gated_operations(
                "shared", "feed_forward_input", "feed_forward_output", hidden, size.shared_intermediate_size
            )
        )
    return tuple(operations)
