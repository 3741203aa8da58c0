"""What transformers' own code of a family keeps that the shapes of its layers do not tell.

Autograd keeps what each of torch's operations needs, so that the same formula written in more operations keeps more:
GELU in six, LayerNorm in fp32 by hand, a cap on the logits, dropout's masks. Stacks that train their own layers or
kernels have none of it.

Source of every family's: its modelling and configuration files in transformers 5.23, and its activations.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region

# What autograd keeps of an activation of its input's width, and what meets backwards, where it is not the input alone
# and two gradients. Of `gelu_new` the input, its half, the hyperbolic tangent and one more than that, and three
# gradients at the product of the last; of ReLU the result alone, as the next matrix does; of its square one, and the
# result's gradient, the power's derivative and two products of these (activations.py, `ReLUSquaredActivation`).
OF_ACTIVATION: Mapping[str, tuple[int, int]] = {"gelu_new": (4, 3), "relu": (0, 2), "relu2": (1, 4)}
# Of a mixture whose router casts its input up, and whose scores stay in fp32 until the experts' outputs are summed.
ROUTED_IN_FP32 = frozenset({"router", "combine"})
ACTIVATION_KEYS = ("hidden_act", "activation_function")
LOGIT_CAP_KEY = "final_logit_softcapping"
SCORE_CAP_KEY = "attn_logit_softcapping"

Rewrite = Callable[[Operation], Operation]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCode:
    """What sets transformers' code of one family apart; the defaults are Llama's.

    `activation` is that of a config that names none under `activation_keys`. `kept_of_gated` are the tensors that a
    gated activation keeps beside its other half and its result. `centres_norms`: LayerNorm is written out in fp32,
    without a bias. `has_unscaled_norms`: it is torch's, of an input cast to fp32, without weights. `logit_cap` is the
    config class's own, and `score_cap` that of attention's scores. `dropout_key` names the probability with which
    elements of a half's output are dropped, in the class's default `dropout`; `score_dropout_key` and `score_dropout`
    are those of scores. `softmax_in_fp32`: eager attention casts its scores up. `joins_rotated`: see
    `Operation.concatenates`. `scales_additions`: what a half adds to the stream is scaled first. `fp32_operations` are
    those of a mixture's routing that are in fp32.
    """

    activation: str | None = None
    activation_keys: tuple[str, ...] = ACTIVATION_KEYS
    kept_of_gated: int | None = None
    centres_norms: bool = False
    has_unscaled_norms: bool = False
    logit_cap: float | None = None
    dropout_key: str | None = None
    dropout: float = 0.0
    score_cap: float | None = None
    score_dropout_key: str = "attention_dropout"
    score_dropout: float = 0.0
    softmax_in_fp32: bool = True
    joins_rotated: bool = False
    scales_additions: bool = False
    fp32_operations: frozenset[str] = frozenset()


LIKE_LLAMA = OwnCode()


def with_own_code(model: ModelSpec, config: Mapping[str, Any], code: OwnCode) -> ModelSpec:
    """Return the model with what transformers' code of its family keeps written into its operations."""
    rewrites = [
        rewrite
        for rewrite in (
            _activations(config, code),
            _gated_activations(code),
            _norms(code),
            _dropouts(config, code),
            _additions(code),
            _scores(config, code),
            _rotations(code),
            _routing(code),
        )
        if rewrite is not None
    ]
    cap = config.get(LOGIT_CAP_KEY, code.logit_cap)
    if not rewrites and cap is None:
        return model
    head = _rewritten(model.head, rewrites)
    return dataclasses.replace(
        model,
        layers=tuple(_rewritten(block, rewrites) for block in model.layers),
        head=head if cap is None else _capped(head),
    )


def _rewritten(block: Block, rewrites: list[Rewrite]) -> Block:
    operations = block.operations
    for rewrite in rewrites:
        operations = tuple(rewrite(operation) for operation in operations)
    return dataclasses.replace(block, operations=operations)


def _activations(config: Mapping[str, Any], code: OwnCode) -> Rewrite | None:
    """Return what writes down what an ungated activation keeps and holds; None where it is its input and gradients."""
    named = next((config[key] for key in code.activation_keys if key in config), None)
    found = OF_ACTIVATION.get(str(named or code.activation))
    if found is None:
        return None
    kept, meeting = found

    def rewritten(op: Operation) -> Operation:
        if op.kind is not OperationKind.ACTIVATION:
            return op
        return dataclasses.replace(op, kept_tensors=kept, meeting_gradients=meeting)

    return rewritten


def _gated_activations(code: OwnCode) -> Rewrite | None:
    kept = code.kept_of_gated
    if kept is None:
        return None
    return lambda op: dataclasses.replace(op, kept_tensors=kept) if op.kind is OperationKind.GATED_ACTIVATION else op


def _norms(code: OwnCode) -> Rewrite | None:
    if code.centres_norms:
        return lambda op: dataclasses.replace(op, is_centred=True) if op.kind is OperationKind.NORM else op
    if code.has_unscaled_norms:
        return lambda op: dataclasses.replace(op, has_scale=False) if op.kind is OperationKind.NORM else op
    return None


def _dropouts(config: Mapping[str, Any], code: OwnCode) -> Rewrite | None:
    if code.dropout_key is None or not config.get(code.dropout_key, code.dropout):
        return None
    return lambda op: dataclasses.replace(op, drops_out=True) if op.kind is OperationKind.ADD else op


def _additions(code: OwnCode) -> Rewrite | None:
    if not code.scales_additions:
        return None
    return lambda op: dataclasses.replace(op, is_scaled=True) if op.kind is OperationKind.ADD else op


def _scores(config: Mapping[str, Any], code: OwnCode) -> Rewrite | None:
    """Return what writes down how eager attention treats its scores; None where it does as Llama's."""
    changes: dict[str, Any] = {
        "caps_scores": bool(config.get(SCORE_CAP_KEY, code.score_cap)),
        "drops_out": bool(config.get(code.score_dropout_key, code.score_dropout)),
        "softmax_in_fp32": code.softmax_in_fp32,
    }
    if changes == {"caps_scores": False, "drops_out": False, "softmax_in_fp32": True}:
        return None
    return lambda op: dataclasses.replace(op, **changes) if op.kind is OperationKind.ATTENTION else op


def _rotations(code: OwnCode) -> Rewrite | None:
    if not code.joins_rotated:
        return None
    return lambda op: dataclasses.replace(op, concatenates=True) if op.kind is OperationKind.ROTARY else op


def _routing(code: OwnCode) -> Rewrite | None:
    if not code.fp32_operations:
        return None
    return lambda op: dataclasses.replace(op, in_fp32=True) if op.name in code.fp32_operations else op


def _capped(head: Block) -> Block:
    """Return the head with a hyperbolic tangent between its matrix and the loss, of which the result is kept."""
    cap = Operation(
        name="logit_cap",
        kind=OperationKind.ACTIVATION,
        inputs=("logits",),
        output="capped_logits",
        region=Region.TENSOR,
    )
    *before, loss = head.operations
    return dataclasses.replace(head, operations=(*before, cap, dataclasses.replace(loss, inputs=("capped_logits",))))
