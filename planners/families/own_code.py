"""What transformers' own code of a family keeps that the shapes of its layers do not tell.

Autograd keeps what each of torch's operations needs, so that the same formula written in more operations keeps more:
GELU in six, LayerNorm in fp32 by hand, a cap on the logits, dropout's masks. Stacks that train their own layers or
kernels have none of it.

Source of every entry: the family's modelling and configuration files in transformers 5.23, and its activations.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Operation, OperationKind, Region

# Tensors of its input's width that autograd keeps of an activation, where they are not the input alone: of `gelu_new`
# the input, its half, the hyperbolic tangent and one more than that; of ReLU the result alone, as the next matrix does.
KEPT_OF_ACTIVATION: Mapping[str, int] = {"gelu_new": 4, "relu": 0}
# Those of a gated one beside its other half and its result: of gpt-oss the gate, the gate clamped, its sigmoid, their
# product, and the other half clamped and one more (`GptOssExperts._apply_gate`).
KEPT_OF_GATED: Mapping[str, int] = {"gpt_oss": 5}
ACTIVATION_KEYS = ("hidden_act", "activation_function")
# What a config that names no activation has, where that is written in several operations or is ReLU.
DEFAULT_ACTIVATIONS: Mapping[str, str] = {
    "gpt2": "gelu_new",
    "gpt_neo": "gelu_new",
    "gptj": "gelu_new",
    "opt": "relu",
    "phi": "gelu_new",
}
# LayerNorm written out in fp32, without a bias (`CohereLayerNorm`).
CENTRED_NORMS = ("cohere", "cohere2")
# torch's LayerNorm of an input cast to fp32, without weights (`OlmoLayerNorm`).
UNSCALED_NORMS = ("olmo",)
LOGIT_CAP_KEY = "final_logit_softcapping"
DEFAULT_LOGIT_CAPS: Mapping[str, float] = {"gemma2": 30.0}
# The keys of the probabilities with which elements of a half's output are dropped, with the config classes' defaults.
RESIDUAL_DROPOUTS: Mapping[str, tuple[str, float]] = {
    "gpt2": ("resid_pdrop", 0.1),
    "gpt_bigcode": ("resid_pdrop", 0.1),
    "gpt_neox": ("hidden_dropout", 0.0),
    "opt": ("dropout", 0.1),
    "phi": ("resid_pdrop", 0.0),
    "seed_oss": ("residual_dropout", 0.1),
    "starcoder2": ("residual_dropout", 0.0),
}
READ_KEYS = frozenset({*ACTIVATION_KEYS, LOGIT_CAP_KEY, *(key for key, _ in RESIDUAL_DROPOUTS.values())})
"""All that this module looks at in a config."""

Rewrite = Callable[[Operation], Operation]


def with_own_code(model: ModelSpec, config: Mapping[str, Any], model_type: str) -> ModelSpec:
    """Return the model with what transformers' code of its family keeps written into its operations."""
    rewrites = [
        rewrite
        for rewrite in (
            _activations(config, model_type),
            _gated_activations(model_type),
            _norms(model_type),
            _dropouts(config, model_type),
        )
        if rewrite is not None
    ]
    cap = config.get(LOGIT_CAP_KEY, DEFAULT_LOGIT_CAPS.get(model_type))
    if not rewrites and cap is None:
        return model
    return dataclasses.replace(
        model,
        layers=tuple(_rewritten(block, rewrites) for block in model.layers),
        head=_capped(_rewritten(model.head, rewrites)) if cap is not None else _rewritten(model.head, rewrites),
    )


def _rewritten(block: Block, rewrites: list[Rewrite]) -> Block:
    operations = block.operations
    for rewrite in rewrites:
        operations = tuple(rewrite(operation) for operation in operations)
    return dataclasses.replace(block, operations=operations)


def _activations(config: Mapping[str, Any], model_type: str) -> Rewrite | None:
    """Return what writes down how many tensors an ungated activation keeps; None where it is the input alone."""
    key = "activation_function" if model_type == "opt" else next((key for key in ACTIVATION_KEYS if key in config), "")
    kept = KEPT_OF_ACTIVATION.get(str(config.get(key) or DEFAULT_ACTIVATIONS.get(model_type)))
    if kept is None:
        return None
    return lambda op: dataclasses.replace(op, kept_tensors=kept) if op.kind is OperationKind.ACTIVATION else op


def _gated_activations(model_type: str) -> Rewrite | None:
    kept = KEPT_OF_GATED.get(model_type)
    if kept is None:
        return None
    return lambda op: dataclasses.replace(op, kept_tensors=kept) if op.kind is OperationKind.GATED_ACTIVATION else op


def _norms(model_type: str) -> Rewrite | None:
    if model_type in CENTRED_NORMS:
        return lambda op: dataclasses.replace(op, is_centred=True) if op.kind is OperationKind.NORM else op
    if model_type in UNSCALED_NORMS:
        return lambda op: dataclasses.replace(op, has_scale=False) if op.kind is OperationKind.NORM else op
    return None


def _dropouts(config: Mapping[str, Any], model_type: str) -> Rewrite | None:
    key, default = RESIDUAL_DROPOUTS.get(model_type, ("", 0.0))
    if not config.get(key, default):
        return None
    return lambda op: dataclasses.replace(op, drops_out=True) if op.kind is OperationKind.ADD else op


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
