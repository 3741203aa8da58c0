"""Llama-like mixtures of experts, each by what differs from Mixtral.

Source of every entry: the family's modelling, configuration and conversion
files in `transformers` 5.23, or the file named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from plimsoll.planners.architecture.mixture_of_experts import FusedExperts
from plimsoll.planners.families.family import Family, Serving, Tracing, Untraced
from plimsoll.planners.families.reading.attention import QueryKeyNorm
from plimsoll.planners.families.reading.dense import Bias
from plimsoll.planners.families.reading.experts import NUMBERED_NAMES, MixtureNames, SharedExperts, Sized, counted
from plimsoll.planners.families.reading.layer_kinds import DenseLayers
from plimsoll.planners.families.reading.mixtures import MixtureDecoder
from plimsoll.planners.families.reading.own_code import ROUTED_IN_FP32, OwnCode
from plimsoll.planners.families.reading.sublayers import LAYER
from plimsoll.planners.families.reading.windows import Windows

MIXTRAL_NAMES = MixtureNames(prefix=f"{LAYER}.block_sparse_moe", experts=NUMBERED_NAMES)
ATTENTION_BIAS = Bias(key="attention_bias")
# Routing by groups, scaling and auxiliary losses choose other experts at the same cost.
DEEPSEEK_ROUTING = (
    "aux_loss_alpha", "ep_size", "routed_scaling_factor", "scoring_func", "seq_aux", "topk_group",
    "topk_method",
)  # fmt: skip
# A router of every layer or none: other steps are DeepSeek code that no published model uses.
EVERY_LAYER = {"moe_layer_freq": (1,)}
# Routers whose scores stay in fp32 (`MixtralTopKRouter`), so that experts' outputs are weighed in it.
SCORED_IN_FP32 = frozenset({"combine"})
# DeepSeek V3's router (`Glm4MoeTopkRouter`, `Dots1TopkRouter`): it casts its input up, and its scores stay in fp32.

FAMILIES: Mapping[str, Family] = {
    "mixtral": Family(
        reader=MixtureDecoder(
            experts=Sized("num_local_experts", 8),
            experts_per_token=Sized("num_experts_per_tok", 2),
            expert_width=Sized("intermediate_size"),
            names=MIXTRAL_NAMES,
            key_value_heads_default=8,
            windows=Windows.ALL,
        ),
        has_experts=True,
        tracing=Tracing(groups_experts=True),
        serving=Serving(),
        own_code=OwnCode(fp32_operations=SCORED_IN_FP32),
    ),
    "phimoe": Family(
        reader=MixtureDecoder(
            experts=Sized("num_local_experts", 16),
            experts_per_token=Sized("num_experts_per_tok", 2),
            expert_width=Sized("intermediate_size"),
            names=MIXTRAL_NAMES,
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            head_bias=Bias(key="lm_head_bias"),
            norm_bias=True,
            key_value_heads_default=8,
            windows=Windows.ALL,
            ignored=("hidden_dropout", "input_jitter_noise", "original_max_position_embeddings"),
        ),
        has_experts=True,
        tracing=Tracing(),
    ),
    "minimax_m2": Family(
        reader=MixtureDecoder(
            experts=Sized("num_local_experts", 256),
            experts_per_token=Sized("num_experts_per_tok", 8),
            expert_width=Sized("intermediate_size"),
            names=replace(MIXTRAL_NAMES, balancing_bias="e_score_correction_bias"),
            query_key_norm=QueryKeyNorm.WIDTH,
            head_dim_default=128,
            key_value_heads_default=8,
            multi_token_keys=("num_mtp_modules", "mtp_transformer_layers"),
            only={
                "attn_type_list": (1,),  # 0 is the linear attention of MiniMax-Text-01
                "qk_norm_type": ("per_layer",),
                "shared_intermediate_size": (0,),
                "use_qk_norm": (True,),
                "use_routing_bias": (True,),
            },
            ignored=("rotary_dim", "scoring_func", "use_mtp"),
        ),
        has_experts=True,
        tracing=Tracing(),
        own_code=OwnCode(joins_rotated=True, fp32_operations=SCORED_IN_FP32),
        needs_remote_code=True,
    ),
    "qwen2_moe": Family(
        reader=MixtureDecoder(
            experts=Sized("num_experts", 60),
            experts_per_token=Sized("num_experts_per_tok", 4),
            expert_width=Sized("moe_intermediate_size", 1408),
            names=MixtureNames(shared="shared_expert", shared_gate="shared_expert_gate"),
            shared=SharedExperts(width=counted("shared_expert_intermediate_size", 5632)),
            dense_layers=DenseLayers.BETWEEN_STEPS,
            qkv_bias=Bias(key="qkv_bias", default=True),
            key_value_heads_default=16,
            windows=Windows.EVERY_OTHER_BELOW_MAX_WINDOW_LAYERS,
            window_default=4096,
            windows_used_by_default=False,
        ),
        has_experts=True,
        tracing=Tracing(),
        serving=Serving(),
    ),
    "qwen3_moe": Family(
        reader=MixtureDecoder(
            experts=Sized("num_experts", 128),
            experts_per_token=Sized("num_experts_per_tok", 8),
            expert_width=Sized("moe_intermediate_size", 768),
            dense_layers=DenseLayers.BETWEEN_STEPS,
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            query_key_norm=QueryKeyNorm.HEAD,
            key_value_heads_default=4,
            windows=Windows.ALL,
            window_default=4096,
            windows_used_by_default=False,
            only={"shared_expert_intermediate_size": (0,)},
            ignored=("qkv_bias", "rope_scaling_factor", "use_qk_norm"),
        ),
        has_experts=True,
        tracing=Tracing(groups_experts=True),
        serving=Serving(),
    ),
    "olmoe": Family(
        reader=MixtureDecoder(
            experts=Sized("num_experts", 64),
            experts_per_token=Sized("num_experts_per_tok", 8),
            expert_width=Sized("intermediate_size"),
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            query_key_norm=QueryKeyNorm.WIDTH,
            ignored=("clip_qkv",),
        ),
        has_experts=True,
        tracing=Tracing(),
        serving=Serving(is_divided=False),
    ),
    "glm4_moe": Family(
        reader=MixtureDecoder(
            experts=Sized("n_routed_experts", 128),
            experts_per_token=Sized("num_experts_per_tok", 8),
            expert_width=Sized("moe_intermediate_size", 1408),
            names=MixtureNames(balancing_bias="gate.e_score_correction_bias"),
            shared=SharedExperts(count=counted("n_shared_experts", 1)),
            groups="n_group",
            dense_layers=DenseLayers.FIRST,
            first_dense_default=1,
            qkv_bias=ATTENTION_BIAS,
            query_key_norm=QueryKeyNorm.HEAD,
            query_key_norm_switch="use_qk_norm",
            key_value_heads_default=8,
            multi_token_keys=("num_nextn_predict_layers",),
            only=EVERY_LAYER,
            ignored=("partial_rotary_factor", *DEEPSEEK_ROUTING),
        ),
        has_experts=True,
        tracing=Tracing(),
        own_code=OwnCode(joins_rotated=True, fp32_operations=ROUTED_IN_FP32),
    ),
    "dots1": Family(
        reader=MixtureDecoder(
            experts=Sized("n_routed_experts"),
            experts_per_token=Sized("num_experts_per_tok"),
            expert_width=Sized("moe_intermediate_size", 1408),
            names=MixtureNames(balancing_bias="gate.e_score_correction_bias"),
            shared=SharedExperts(count=counted("n_shared_experts")),
            groups="n_group",
            dense_layers=DenseLayers.FIRST,
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            query_key_norm=QueryKeyNorm.HEAD,
            key_value_heads_default=32,
            windows=Windows.FROM_MAX_WINDOW_LAYERS,
            window_default=4096,
            max_window_layers_default=62,
            only=EVERY_LAYER,
            ignored=DEEPSEEK_ROUTING,
        ),
        has_experts=True,
        tracing=Tracing(),
        own_code=OwnCode(fp32_operations=ROUTED_IN_FP32),
    ),
    # Source: modeling_deepseek.py and configuration_deepseek.py beside the weights of deepseek-moe-16b-base.
    "deepseek": Family(
        reader=MixtureDecoder(
            experts=Sized("n_routed_experts"),
            experts_per_token=Sized("num_experts_per_tok"),
            expert_width=Sized("moe_intermediate_size", 1407),
            shared=SharedExperts(count=counted("n_shared_experts")),
            groups="n_group",
            dense_layers=DenseLayers.FIRST,
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            only=EVERY_LAYER,
            ignored=DEEPSEEK_ROUTING,
        ),
        has_experts=True,
        untraced=Untraced.REMOTE_CODE,
        needs_remote_code=True,
    ),
    "granitemoe": Family(
        reader=MixtureDecoder(
            experts=Sized("num_local_experts", 8),
            experts_per_token=Sized("num_experts_per_tok", 2),
            expert_width=Sized("intermediate_size"),
            names=MixtureNames(
                prefix=f"{LAYER}.block_sparse_moe",
                router="router.layer",
                fused=FusedExperts.OUTPUT_FIRST,
                fused_names=("input_linear.weight", "output_linear.weight"),
            ),
            qkv_bias=ATTENTION_BIAS,
            output_bias=ATTENTION_BIAS,
            ignored=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
        ),
        has_experts=True,
    ),
}
