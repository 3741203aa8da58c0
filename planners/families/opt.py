"""OPT: learned positions two further than the text, and in the 350M model a narrow embedding and norms after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.architecture.model import Block, ModelSpec
from plimsoll.planners.architecture.operation import OperationKind, Tensor, whole_matmul
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, PartNames, Tracing
from plimsoll.planners.families.reading.assembly import DecoderNames
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.gpt import GptDecoder, GptKeys
from plimsoll.planners.families.reading.own_code import OwnCode

OPT_IGNORED = (
    "activation_dropout", "activation_function", "dropout", "init_std", "layerdrop", "prefix", "output_projection",
)  # fmt: skip
OPT = GptDecoder(
    keys=GptKeys(
        hidden=("hidden_size",),
        layers=("num_hidden_layers",),
        heads=("num_attention_heads",),
        inner=("ffn_dim",),
        positions=("max_position_embeddings",),
        positions_default=2048,
    ),
    layer="model.decoder.layers.{layer}",
    query_key_value=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    feed_forward=("fc1", "fc2"),
    norm_names=("self_attn_layer_norm", "final_layer_norm"),
    names=DecoderNames(embedding="model.decoder.embed_tokens.weight", final_norm="model.decoder.final_layer_norm"),
    position_name="model.decoder.embed_positions.weight",
    position_offset=2,
    ignored=OPT_IGNORED,
)


def opt(config: ConfigReader) -> ModelSpec:
    """Return the description of an OPT model. Source: `transformers` 5.23, modeling_opt."""
    bias = config.flag("enable_bias", default=True)
    norms_before = config.flag("do_layer_norm_before", default=True)
    decoder = dataclasses.replace(
        OPT,
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=bias,
        norms=NormPlacement.PRE if norms_before else NormPlacement.POST_RESIDUAL,
        has_norm_weight=config.flag("layer_norm_elementwise_affine", default=True),
        has_final_norm=norms_before and not config.flag("_remove_final_layer_norm", default=False),
    )
    spec = decoder(config)
    width = config.size("word_embed_proj_dim", default=spec.hidden_size)
    if width == spec.hidden_size:
        return spec
    return dataclasses.replace(
        spec,
        embedding=_projected_in(spec.embedding, width, spec.hidden_size),
        head=_projected_out(spec.head, width, spec.hidden_size),
    )


def _projected_in(block: Block, width: int, hidden_size: int) -> Block:
    """Return the embedding with a table of `width` features and a matrix up to the hidden size."""
    lookup, *rest = block.operations
    project = whole_matmul("project_in", "narrow_embedding", "residual", (width, hidden_size))
    return dataclasses.replace(
        block,
        weights=(
            *(_narrowed(weight, width) for weight in block.weights),
            _whole("project_in", (hidden_size, width), Part.EMBEDDING),
        ),
        tensors=(*block.tensors, Tensor(name="narrow_embedding", width=width)),
        operations=(dataclasses.replace(lookup, output="narrow_embedding"), project, *rest),
    )


def _projected_out(block: Block, width: int, hidden_size: int) -> Block:
    """Return the head that multiplies `width` features, after a matrix down from the hidden size."""
    source = next(op.inputs[0] for op in block.operations if op.kind is OperationKind.MATMUL)
    project = whole_matmul("project_out", source, "narrow_head_input", (hidden_size, width))
    operations = [
        dataclasses.replace(op, inputs=("narrow_head_input",), matmul_shape=(width, op.matmul_shape[1]))
        if op.matmul_shape
        else op
        for op in block.operations
    ]
    position = next(index for index, op in enumerate(operations) if op.matmul_shape)
    return dataclasses.replace(
        block,
        weights=(
            *(_narrowed(weight, width) for weight in block.weights),
            _whole("project_out", (width, hidden_size), Part.HEAD),
        ),
        tensors=(*block.tensors, Tensor(name="narrow_head_input", width=width)),
        operations=(*operations[:position], project, *operations[position:]),
    )


def _narrowed(weight: Weight, width: int) -> Weight:
    """Return a vocabulary matrix of `width` features; any other weight as it is."""
    is_vocabulary = weight.name.endswith(("embed_tokens.weight", "lm_head.weight"))
    return dataclasses.replace(weight, shape=(weight.shape[0], width)) if is_vocabulary else weight


def _whole(name: str, shape: tuple[int, int], part: Part) -> Weight:
    return Weight(name=f"model.decoder.{name}.weight", shape=shape, part=part, is_linear=True)


FAMILIES: Mapping[str, Family] = {
    "opt": Family(
        reader=opt,
        parts=PartNames(decoder="model.decoder", norm="final_layer_norm"),
        tracing=Tracing(),
        own_code=OwnCode(
            activation="relu", activation_keys=("activation_function",), dropout_key="dropout", dropout=0.1
        ),
    ),
}
