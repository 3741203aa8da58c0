"""Mixture of experts: a router, experts of which a few work on each token, shared experts beside them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from plimsoll.planners.architecture.feed_forward import gated_operations, gated_weights, plain_operations
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region, Tensor, whole_matmul
from plimsoll.planners.architecture.weight import Part, Split, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """The sizes of one mixture: `experts_per_token` of `experts` gated feed-forwards, `shared_intermediate_size`
    features of a feed-forward that works on every token (0 for none). `has_shared_gate` means that each token's
    own score scales what the shared feed-forward adds (Qwen2-MoE). Without `is_gated` each feed-forward has two
    matrices (Nemotron). With a `latent_size` tokens are projected down to it before they go to the experts and up
    again after, which the shared feed-forward does not take part in (LatentMoE, arXiv:2601.18089).

    Source: Shazeer et al. 2017 (arXiv:1701.06538); shared experts: Dai et al. 2024 (arXiv:2401.06066).
    """

    hidden_size: int
    intermediate_size: int
    experts: int
    experts_per_token: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    is_gated: bool = True
    latent_size: int | None = None

    @property
    def expert_hidden_size(self) -> int:
        """Return the features that an expert reads and writes."""
        return self.hidden_size if self.latent_size is None else self.latent_size


class FusedExperts(StrEnum):
    """How one tensor holds all experts of a layer, the expert in front.

    `output_first` is [expert, output, input] as a linear layer stores it (Granite),
    `input_first` its transpose (Llama 4, gpt-oss). Gate and up are one matrix.
    """

    OUTPUT_FIRST = "output_first"
    INPUT_FIRST = "input_first"


def router_weight(name: str, size: MixtureOfExperts) -> Weight:
    """Return the matrix that scores the experts; every rank holds it whole."""
    return Weight(name=name, shape=(size.experts, size.hidden_size), part=Part.ROUTER)


def expert_weights(prefix: str, size: MixtureOfExperts, *, names: tuple[str, ...]) -> tuple[Weight, ...]:
    """Return the experts' matrices, one tensor an expert; `names` are gate, up and down, or up and down without a gate.

    `prefix` holds `{layer}` and `{expert}`.
    """
    *firsts, last = names
    columns = tuple(
        Weight(
            name=f"{prefix}.{name}.weight",
            shape=(size.intermediate_size, size.expert_hidden_size),
            part=Part.EXPERT,
            split=Split.COLUMN,
            dim=0,
            experts=size.experts,
            is_linear=True,
        )
        for name in firsts
    )
    row = Weight(
        name=f"{prefix}.{last}.weight",
        shape=(size.expert_hidden_size, size.intermediate_size),
        part=Part.EXPERT,
        split=Split.ROW,
        dim=1,
        experts=size.experts,
        is_linear=True,
    )
    return (*columns, row)


def fused_expert_weights(
    names: tuple[str, str], size: MixtureOfExperts, order: FusedExperts, *, bias_suffix: str | None = None
) -> tuple[Weight, ...]:
    """Return all experts' gate and up as one tensor and their down as another; `names` are both tensors'.

    With `bias_suffix` each has a bias, named like the tensor and the suffix.
    """
    experts, hidden, inner = size.experts, size.hidden_size, size.intermediate_size
    input_first = order is FusedExperts.INPUT_FIRST
    first, second = names
    weights = [
        Weight(
            name=first,
            shape=(experts, hidden, 2 * inner) if input_first else (experts, 2 * inner, hidden),
            part=Part.EXPERT,
            split=Split.COLUMN,
            dim=2 if input_first else 1,
            experts=experts,
            is_linear=True,
            is_fused=True,
        ),
        Weight(
            name=second,
            shape=(experts, inner, hidden) if input_first else (experts, hidden, inner),
            part=Part.EXPERT,
            split=Split.ROW,
            dim=1 if input_first else 2,
            experts=experts,
            is_linear=True,
            is_fused=True,
        ),
    ]
    if bias_suffix is not None:
        weights.append(
            Weight(
                name=f"{first}{bias_suffix}",
                shape=(experts, 2 * inner),
                part=Part.EXPERT,
                split=Split.COLUMN,
                dim=1,
                experts=experts,
                is_fused=True,
            )
        )
        weights.append(
            Weight(
                name=f"{second}{bias_suffix}", shape=(experts, hidden), part=Part.EXPERT, experts=experts, is_fused=True
            )
        )
    return tuple(weights)


def shared_expert_weights(
    prefix: str, size: MixtureOfExperts, *, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> tuple[Weight, ...]:
    """Return the feed-forward that works on every token, none where it has no features; `names` are gate, up, down."""
    if not size.shared_intermediate_size:
        return ()
    return gated_weights(prefix, size.hidden_size, size.shared_intermediate_size, names=names, part=Part.SHARED_EXPERT)


def mixture_tensors(size: MixtureOfExperts) -> tuple[Tensor, ...]:
    """Return the activations between the feed-forward's norm and its output.

    A token stands once for each expert that works on it, so the widths are
    `experts_per_token` times those of one expert.
    """
    chosen, width = size.experts_per_token, size.expert_hidden_size
    tensors = [
        Tensor(name="feed_forward_input", width=size.hidden_size),
        Tensor(name="router_scores", width=size.experts),
        Tensor(name="dispatched", width=chosen * width),
        *_inner_tensors("expert", chosen * size.intermediate_size, gated=size.is_gated),
        Tensor(name="expert_output", width=chosen * width),
        Tensor(name="feed_forward_output", width=size.hidden_size),
    ]
    if size.latent_size is not None:
        tensors.append(Tensor(name="expert_latent", width=size.latent_size))
        tensors.append(Tensor(name="combined_latent", width=size.latent_size))
    if size.shared_intermediate_size:
        tensors.extend(_inner_tensors("shared", size.shared_intermediate_size, gated=size.is_gated))
    if size.has_shared_gate:
        tensors.append(Tensor(name="shared_output", width=size.hidden_size))
        tensors.append(Tensor(name="shared_score", width=1))
    return tuple(tensors)


def mixture_operations(size: MixtureOfExperts) -> tuple[Operation, ...]:
    """Return routing, the experts' matrices and, where there are any, the shared experts'."""
    hidden, has_latent = size.hidden_size, size.latent_size is not None
    source = "expert_latent" if has_latent else "feed_forward_input"
    combined = "combined_latent" if has_latent else "feed_forward_output"
    operations = [whole_matmul("router", "feed_forward_input", "router_scores", (hidden, size.experts))]
    if size.latent_size is not None:
        operations.append(whole_matmul("latent_down", "feed_forward_input", source, (hidden, size.latent_size)))
    operations.append(_routing("dispatch", (source, "router_scores"), "dispatched"))
    operations.extend(_expert_operations(size))
    operations.append(_routing("combine", ("expert_output", "router_scores"), combined))
    if size.latent_size is not None:
        operations.append(whole_matmul("latent_up", combined, "feed_forward_output", (size.latent_size, hidden)))
    if size.shared_intermediate_size:
        feed_forward = gated_operations if size.is_gated else plain_operations
        output = "shared_output" if size.has_shared_gate else "feed_forward_output"
        operations.extend(feed_forward("shared", "feed_forward_input", output, hidden, size.shared_intermediate_size))
    if size.has_shared_gate:
        operations.append(whole_matmul("shared_score_projection", "feed_forward_input", "shared_score", (hidden, 1)))
        operations.append(_routing("shared_combine", ("shared_output", "shared_score"), "feed_forward_output"))
    return tuple(operations)


def _inner_tensors(prefix: str, width: int, *, gated: bool) -> tuple[Tensor, ...]:
    names = ("gate", "up", "product") if gated else ("inner", "product")
    return tuple(Tensor(name=f"{prefix}_{name}", width=width, region=Region.TENSOR) for name in names)


def _expert_operations(size: MixtureOfExperts) -> tuple[Operation, ...]:
    feed_forward = gated_operations if size.is_gated else plain_operations
    return feed_forward(
        "expert",
        "dispatched",
        "expert_output",
        size.expert_hidden_size,
        size.intermediate_size,
        copies=size.experts_per_token,
    )


def _routing(name: str, inputs: tuple[str, ...], output: str) -> Operation:
    return Operation(name=name, kind=OperationKind.ROUTING, inputs=inputs, output=output, region=Region.SEQUENCE)
