"""Layers for multi-token prediction: each takes the layer below it, and the next token's embedding, one token further.

Source: DeepSeek-AI 2024, section 2.2, arXiv:2412.19437; Megatron-Core, transformer/multi_token_prediction.py.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from plimsoll.planners.architecture.decoder import norm_weights
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import Tensor, matmul, norm
from plimsoll.planners.architecture.weight import Part, Split, Weight
from plimsoll.planners.ground.identity import ByIdentity

# How the assumption on such layers begins that a checkpoint has beside the model.
BESIDE_MODEL = "Multi-token prediction layers"
# Stream and embedding, side by side.
JOINED = 2
# Models that were given further layers.
MOST_KEPT_MODELS = 64


@functools.lru_cache(maxsize=MOST_KEPT_MODELS)
def with_multi_token_prediction(same: ByIdentity[ModelSpec], layers: int) -> ModelSpec:
    """Return the model with so many further layers of its last one's kind, and what joins them to it."""
    model = same.value
    last = max(model.layers, key=lambda block: max(block.layers))
    further = tuple(range(model.num_layers, model.num_layers + layers))
    extended = replace(last, layers=(*last.layers, *further))
    return replace(
        model,
        layers=tuple(extended if block is last else block for block in model.layers),
        multi_token=_joint(last, model.hidden_size, further),
        assumptions=still_assumed(model.assumptions, layers),
    )


def still_assumed(assumptions: tuple[str, ...], layers: int) -> tuple[str, ...]:
    """Return what is assumed of a model that is trained with so many: with any, not that they are left out."""
    return tuple(note for note in assumptions if not (layers and note.startswith(BESIDE_MODEL)))


def _joint(last: Block, hidden_size: int, further: tuple[int, ...]) -> Block:
    """Return what stands around each further layer: two norms and a matrix before it, and a norm behind.

    Names are those of DeepSeek-V3's checkpoint.
    """
    named = next(weight.name for weight in last.weights if "{layer}" in weight.name)
    prefix = named[: named.index("{layer}") + len("{layer}")]
    bias = any(weight.part is Part.NORM and weight.name.endswith(".bias") for weight in last.weights)
    projection = Weight(
        name=f"{prefix}.eh_proj.weight",
        shape=(hidden_size, JOINED * hidden_size),
        part=Part.MULTI_TOKEN,
        split=Split.COLUMN,
        dim=0,
        is_linear=True,
    )
    return Block(
        kind="multi_token",
        weights=(
            *norm_weights(f"{prefix}.enorm", hidden_size, bias=bias),
            *norm_weights(f"{prefix}.hnorm", hidden_size, bias=bias),
            projection,
            *norm_weights(f"{prefix}.shared_head.norm", hidden_size, bias=bias),
        ),
        tensors=(
            *(Tensor(name=name, width=hidden_size) for name in ("embedding", "stream", "residual", "head_input")),
            Tensor(name="joined", width=JOINED * hidden_size),
        ),
        operations=(
            norm("embedding_norm", "embedding", "joined"),
            norm("stream_norm", "stream", "joined"),
            matmul("joint_projection", "joined", "residual", (JOINED * hidden_size, hidden_size)),
            norm("last_norm", "residual", "head_input"),
        ),
        layers=further,
    )
