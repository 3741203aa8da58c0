"""Decoders built like Llama whose checkpoints fuse queries, keys and values under names of their own.

All of them need code of their own from their repositories; `transformers` has
no module for them, so that their counts are checked against the published ones.
Each family is one `FusedNames` and a reader of its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plimsoll.planners.architecture.attention import GroupedAttention, output_projection, query_key_value_weights
from plimsoll.planners.architecture.decoder import attention_half, decoder_layer, feed_forward_half, norm_weights
from plimsoll.planners.architecture.feed_forward import feed_forward_column, feed_forward_row
from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.architecture.weight import Part, Weight
from plimsoll.planners.families.family import Family, Untraced
from plimsoll.planners.families.reading.assembly import DecoderNames, decoder_model
from plimsoll.planners.families.reading.attention import read_attention
from plimsoll.planners.families.reading.config import MOST_LAYERS, ConfigReader

# The config class's own, in the repositories of Qwen.
QWEN_DEFAULT_CHANNELS = 128
# ChatGLM's rotation takes half of a head's features, two by two.
GLM_ROTARY_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedNames:
    """What a family calls its weights; `gate_up` has one name where gate and up are one matrix."""

    layer: str
    query_key_value: str
    output: str
    gate_up: tuple[str, ...]
    down: str
    norms: tuple[str, str]
    outside: DecoderNames


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedSizes:
    """The sizes of one model of such a family."""

    attention: GroupedAttention
    intermediate_size: int
    num_layers: int
    vocabulary_size: int
    max_position_embeddings: int | None
    qkv_bias: bool = False
    output_bias: bool = False


INTERNLM2 = FusedNames(
    layer="model.layers.{layer}",
    query_key_value="attention.wqkv",
    output="attention.wo",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    norms=("attention_norm", "ffn_norm"),
    outside=DecoderNames(embedding="model.tok_embeddings.weight", head="output"),
)
BAICHUAN = FusedNames(
    layer="model.layers.{layer}",
    query_key_value="self_attn.W_pack",
    output="self_attn.o_proj",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    norms=("input_layernorm", "post_attention_layernorm"),
    outside=DecoderNames(),
)
QWEN = FusedNames(
    layer="transformer.h.{layer}",
    query_key_value="attn.c_attn",
    output="attn.c_proj",
    gate_up=("mlp.w2", "mlp.w1"),
    down="mlp.c_proj",
    norms=("ln_1", "ln_2"),
    outside=DecoderNames(embedding="transformer.wte.weight", final_norm="transformer.ln_f"),
)
CHATGLM = FusedNames(
    layer="transformer.encoder.layers.{layer}",
    query_key_value="self_attention.query_key_value",
    output="self_attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    norms=("input_layernorm", "post_attention_layernorm"),
    outside=DecoderNames(
        embedding="transformer.embedding.word_embeddings.weight",
        final_norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
    ),
)


def internlm2(config: ConfigReader) -> ModelSpec:
    """Return an InternLM2 model. Source: internlm/internlm2-7b, modeling_internlm2.py."""
    attention = read_attention(config)
    bias = config.flag("bias", default=True)
    config.ignore("attn_implementation", "hidden_act")
    sizes = FusedSizes(
        attention=attention,
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        vocabulary_size=config.size("vocab_size"),
        max_position_embeddings=config.optional_size("max_position_embeddings"),
        qkv_bias=bias,
        output_bias=bias,
    )
    return fused_decoder(config, INTERNLM2, sizes)


def baichuan(config: ConfigReader) -> ModelSpec:
    """Return a Baichuan or Baichuan 2 model; the 13B ones bias scores by distance instead of rotating.

    Source: baichuan-inc/Baichuan2-7B-Base and Baichuan2-13B-Base, modeling_baichuan.py;
    which of the two a config means is told by `model_max_length`, which only the 13B ones have.
    """
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.must_divide("num_attention_heads", heads, "hidden_size", hidden_size)
    config.ignore("gradient_checkpointing", "hidden_act", "tokenizer_class", "z_loss_weight")
    has_distance_bias = not config.is_absent("model_max_length")
    positions = config.optional_size(config.named("max_position_embeddings", "model_max_length"))
    sizes = FusedSizes(
        attention=GroupedAttention(
            hidden_size=hidden_size,
            heads=heads,
            key_value_heads=heads,
            head_dim=hidden_size // heads,
            has_rotary=not has_distance_bias,
        ),
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        vocabulary_size=config.size("vocab_size"),
        max_position_embeddings=positions,
    )
    return fused_decoder(config, BAICHUAN, sizes)


def qwen(config: ConfigReader) -> ModelSpec:
    """Return a Qwen (1) model; its `intermediate_size` counts gate and up together.

    Source: Qwen/Qwen-7B, modeling_qwen.py.
    """
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    channels = config.size("kv_channels", default=QWEN_DEFAULT_CHANNELS)
    inner = config.size("intermediate_size")
    config.must_divide("intermediate_size", 2, "intermediate_size", inner)
    config.ignore(
        "attn_dropout_prob", "bf16", "emb_dropout_prob", "fp16", "fp32", "onnx_safe", "rotary_emb_base", "rotary_pct",
        "scale_attn_weights", "seq_length", "softmax_in_fp32", "tokenizer_class", "tokenizer_type",
        "use_cache_kernel", "use_cache_quantization", "use_dynamic_ntk", "use_flash_attn", "use_logn_attn",
    )  # fmt: skip
    sizes = FusedSizes(
        attention=GroupedAttention(hidden_size=hidden_size, heads=heads, key_value_heads=heads, head_dim=channels),
        intermediate_size=inner // 2,
        num_layers=config.size("num_hidden_layers", most=MOST_LAYERS),
        vocabulary_size=config.size("vocab_size"),
        max_position_embeddings=config.optional_size(config.named("seq_length", "max_position_embeddings")),
        qkv_bias=True,
        output_bias=not config.flag("no_bias", default=True),
    )
    if sizes.output_bias:
        raise config.error("no_bias", "Qwen with biases in every matrix is not described.")
    return fused_decoder(config, QWEN, sizes)


def chatglm2(config: ConfigReader) -> ModelSpec:
    """Return a ChatGLM2, ChatGLM3 or GLM-4 model under the names of its own code.

    Source: zai-org/chatglm3-6b and zai-org/glm-4-9b, modeling_chatglm.py.
    """
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    is_grouped = config.flag("multi_query_attention", default=False)
    groups = config.size("multi_query_group_num", default=1)
    channels = config.size("kv_channels", default=QWEN_DEFAULT_CHANNELS)
    config.must_be("add_bias_linear", False)
    config.must_be("rmsnorm", True)
    config.must_be("post_layer_norm", True)
    config.ignore(
        "apply_query_key_layer_scaling", "apply_residual_connection_post_layernorm", "attention_softmax_in_fp32",
        "bias_dropout_fusion", "classifier_dropout", "fp32_residual_connection", "hidden_dropout",
        "interleaved_qkv", "layernorm_epsilon", "original_rope", "pre_seq_len", "prefix_projection",
        "quantization_bit", "rope_ratio", "tokenizer_class", "use_flash_attn",
    )  # fmt: skip
    sizes = FusedSizes(
        attention=GroupedAttention(
            hidden_size=hidden_size, heads=heads, key_value_heads=groups if is_grouped else heads, head_dim=channels
        ),
        intermediate_size=config.size("ffn_hidden_size"),
        num_layers=config.size("num_layers", most=MOST_LAYERS),
        vocabulary_size=config.size(config.named("padded_vocab_size", "vocab_size")),
        max_position_embeddings=config.optional_size("seq_length"),
        qkv_bias=config.flag("add_qkv_bias", default=False),
    )
    frequencies = Weight(
        name="transformer.rotary_pos_emb.inv_freq",
        shape=(channels // GLM_ROTARY_SHARE,),
        part=Part.EMBEDDING,
        is_buffer=True,
    )
    return fused_decoder(config, CHATGLM, sizes, buffers=(frequencies,))


def fused_decoder(
    config: ConfigReader,
    names: FusedNames,
    sizes: FusedSizes,
    *,
    buffers: tuple[Weight, ...] = (),
) -> ModelSpec:
    """Return the model of these sizes under these names."""
    attention = sizes.attention
    layers = decoder_layer(
        layers=tuple(range(sizes.num_layers)),
        hidden_size=attention.hidden_size,
        mixer=attention_half(attention),
        feed_forward=feed_forward_half(attention.hidden_size, sizes.intermediate_size, gated=True),
        weights=_layer_weights(names, sizes),
        kv=attention.kv_state(),
    )
    return decoder_model(
        config,
        attention=attention,
        vocabulary_size=sizes.vocabulary_size,
        layers=(layers,),
        max_position_embeddings=sizes.max_position_embeddings,
        names=names.outside,
        other_embeddings=buffers,
    )


def _layer_weights(names: FusedNames, sizes: FusedSizes) -> tuple[Weight, ...]:
    attention, inner = sizes.attention, sizes.intermediate_size
    hidden, layer = attention.hidden_size, names.layer
    output_bias = (Weight(name=f"{layer}.{names.output}.bias", shape=(hidden,), part=Part.ATTENTION),)
    rows = inner * 2 // len(names.gate_up)
    return (
        *query_key_value_weights((f"{layer}.{names.query_key_value}",), attention, bias=sizes.qkv_bias),
        output_projection(f"{layer}.{names.output}.weight", attention),
        *(output_bias if sizes.output_bias else ()),
        *(
            feed_forward_column(f"{layer}.{matrix}.weight", (rows, hidden), dim=0, is_linear=True)
            for matrix in names.gate_up
        ),
        feed_forward_row(f"{layer}.{names.down}.weight", (hidden, inner), dim=1),
        *(weight for short in names.norms for weight in norm_weights(f"{layer}.{short}", hidden)),
    )


FAMILIES: Mapping[str, Family] = {
    "baichuan": Family(
        reader=baichuan,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "internlm2": Family(
        reader=internlm2,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "qwen": Family(
        reader=qwen,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
}
