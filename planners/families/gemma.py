"""Gemma to Gemma 3: wide heads, norms on both sides of each half, and from the second on windows in some layers.

Source: `transformers` 5.23, modeling_gemma, _gemma2 and _gemma3 and their config classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planners.architecture.decoder import NormPlacement
from plimsoll.planners.architecture.weight import Weight
from plimsoll.planners.families.family import Family, Liger, Serving, Tracing
from plimsoll.planners.families.reading.attention import QueryKeyNorm
from plimsoll.planners.families.reading.config import ConfigReader
from plimsoll.planners.families.reading.dense import NEVER, DenseDecoder
from plimsoll.planners.families.reading.multimodal import Wrapper
from plimsoll.planners.families.reading.own_code import OwnCode
from plimsoll.planners.families.reading.vision import norm, tower_width, vision_weights
from plimsoll.planners.families.reading.windows import Windows

GEMMA_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
# Caps and scales of scores and logits cost nothing that is counted.
GEMMA_IGNORED = (
    "attn_logit_softcapping", "cache_implementation", "final_logit_softcapping", "hidden_activation",
    "query_pre_attn_scalar", "rope_local_base_freq",
)  # fmt: skip


def gemma3_projector(config: ConfigReader, vision: ConfigReader, text_width: int) -> tuple[Weight, ...]:  # noqa: ARG001
    """Return Gemma 3's projector: a norm and one matrix, which stands as [in, out]."""
    width = tower_width(vision)
    return vision_weights(
        (
            ("multi_modal_projector.mm_input_projection_weight", (width, text_width)),
            *norm("multi_modal_projector.mm_soft_emb_norm", width, bias=False),
        )
    )


GEMMA_2 = DenseDecoder(
    norms_scale_in_fp32=True,
    feed_forward_bias=NEVER,
    norms=NormPlacement.SANDWICH,
    norm_names=GEMMA_NORMS,
    tied_by_default=True,
    head_dim_default=256,
    key_value_heads_default=4,
    windows=Windows.EVERY_OTHER,
    window_default=4096,
    ignored=(*GEMMA_IGNORED, "sliding_window_size"),
)

FAMILIES: Mapping[str, Family] = {
    "gemma": Family(
        reader=DenseDecoder(
            norms_scale_in_fp32=True,
            feed_forward_bias=NEVER,
            tied_by_default=True,
            head_dim_default=256,
            key_value_heads_default=16,
            ignored=GEMMA_IGNORED,
        ),
        tracing=Tracing(liger=Liger(norm_offset=1.0)),
        serving=Serving(),
    ),
    "gemma2": Family(
        reader=GEMMA_2,
        tracing=Tracing(),
        serving=Serving(),
        own_code=OwnCode(logit_cap=30.0, score_cap=50.0),
    ),
    "gemma3_text": Family(
        reader=replace(
            GEMMA_2,
            query_key_norm=QueryKeyNorm.HEAD,
            windows=Windows.ALL_BUT_EVERY_SIXTH,
            ignored=GEMMA_IGNORED,
        ),
        tracing=Tracing(),
        serving=Serving(),
        interpolates_positions=True,
        states_stretched_positions=True,
        class_sizes={
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
        },
    ),
    "gemma3": Family(
        reader=Wrapper(
            text_type="gemma3_text", tower="siglip_vision_model", tied_by_default=True, projector=gemma3_projector
        ),
        wrapped_layers=("Gemma3DecoderLayer",),
        interpolates_positions=True,
        states_stretched_positions=True,
    ),
}
