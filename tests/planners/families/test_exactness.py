"""Descriptions equal the modules that transformers builds: every name, every shape, every count.

The modules are built on the meta device, which allocates nothing, from the
config alone, without a network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
    SiglipVisionConfig,
)

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.catalogue import CatalogueModel, catalogue
from plimsoll.planners.families import describe_config, known_model_types
from tests.planners.families.published_names import published_shapes
from tests.planners.families.small_hybrids import HYBRID_VARIANTS
from tests.planners.families.small_mixtures import MIXTURE_VARIANTS
from tests.planners.families.small_recent import PER_LAYER_VARIANTS, RECENT_VARIANTS

# One process builds each module once, and compares all models that are alike with it.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("exactness")]

Shapes = Mapping[str, tuple[int, ...]]
Value = TypeVar("Value")

# Small sizes in which no two dimensions are equal, so that a transposed or swapped shape shows.
SMALL: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    # Their config classes' defaults lie beyond a small vocabulary.
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
GPT2: Mapping[str, Any] = {"vocab_size": 131, "n_embd": 64, "n_layer": 3, "n_head": 8, "n_positions": 96}

MAMBA: Mapping[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "state_size": 12,
    "conv_kernel": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA2: Mapping[str, Any] = {**MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2}

TOKENS: Mapping[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT_LIKE: Mapping[str, Any] = {**GPT2, **TOKENS}
BLOOM: Mapping[str, Any] = {**TOKENS, "vocab_size": 131, "hidden_size": 64, "n_layer": 3, "n_head": 8}
GPT_NEO: Mapping[str, Any] = {
    **TOKENS,
    "vocab_size": 131,
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": 8,
    "max_position_embeddings": 96,
    "attention_types": [[["global", "local"], 1], [["local"], 1]],
}
OPT: Mapping[str, Any] = {**SMALL, "ffn_dim": 88}
FALCON: Mapping[str, Any] = {**TOKENS, "vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3,
                             "num_attention_heads": 8}  # fmt: skip
MPT: Mapping[str, Any] = {"vocab_size": 131, "d_model": 64, "n_layers": 3, "n_heads": 8, "max_seq_len": 96}

TWO_STACKS: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40,
}  # fmt: skip
BART: dict[str, Any] = {**TWO_STACKS, "max_position_embeddings": 64}
WHISPER: dict[str, Any] = {**TWO_STACKS, "max_source_positions": 50, "max_target_positions": 20, "pad_token_id": 0}
T5: Mapping[str, Any] = {
    **TOKENS,
    "vocab_size": 131,
    "d_model": 64,
    "d_kv": 12,
    "d_ff": 88,
    "num_layers": 3,
    "num_heads": 8,
    "relative_attention_num_buckets": 10,
    "decoder_start_token_id": 0,
}
GEMMA4_TEXT: Mapping[str, Any] = {
    **SMALL,
    "head_dim": 12,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GEMMA4_EXPERTS: Mapping[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
}
GEMMA4_TOWER: Mapping[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "position_embedding_size": 30,
}
SIGLIP: Mapping[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
CLIP: Mapping[str, Any] = {**SIGLIP, "model_type": "clip_vision_model", "projection_dim": 24}
PIXTRAL: Mapping[str, Any] = {**SIGLIP, "model_type": "pixtral"}
QWEN2_TOWER: Mapping[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 14, "spatial_merge_size": 2}
GEMMA3: Mapping[str, Any] = {
    "mm_tokens_per_image": 4,
    "text_config": {"model_type": "gemma3_text", **SMALL},
    "vision_config": {**SIGLIP, "vision_use_head": False},
}

# Further configs that walk down every branch of a family's reader.
VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "llama": (
        SMALL,
        {**SMALL, "tie_word_embeddings": True, "head_dim": 12},
        {**SMALL, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (SMALL, {**SMALL, "head_dim": 12, "sliding_window": 32}),
    "arcee": (SMALL, {**SMALL, "head_dim": 12, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    # Its module has no head dimension where a config leaves it out.
    "ministral": (
        {**SMALL, "head_dim": 12, "tie_word_embeddings": True},
        {**SMALL, "head_dim": 12, "sliding_window": 32, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    ),
    "ministral3": (SMALL, {**SMALL, "head_dim": 12, "sliding_window": 32, "tie_word_embeddings": True}),
    "qwen2": (SMALL, {**SMALL, "tie_word_embeddings": True, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": (SMALL, {**SMALL, "head_dim": 12, "tie_word_embeddings": True}, {**SMALL, "attention_bias": True}),
    "gpt2": (GPT2, {**GPT2, "n_inner": 88}, {**GPT2, "tie_word_embeddings": False}),
    "opt": (
        OPT,
        {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False},
        {**OPT, "word_embed_proj_dim": 40, "do_layer_norm_before": False},
        {**OPT, "word_embed_proj_dim": 40, "tie_word_embeddings": False, "_remove_final_layer_norm": True},
    ),
    "bloom": (BLOOM, {**BLOOM, "n_embed": 48, "tie_word_embeddings": False}),
    "gpt_neox": (SMALL, {**SMALL, "attention_bias": False, "use_parallel_residual": False}),
    "gptj": (GPT_LIKE, {**GPT_LIKE, "n_inner": 88}),
    "gpt_neo": (GPT_NEO, {**GPT_NEO, "intermediate_size": 88, "tie_word_embeddings": False}),
    "gpt_bigcode": (GPT_LIKE, {**GPT_LIKE, "n_inner": 88, "multi_query": False}),
    "mpt": (MPT,),
    "falcon": (
        FALCON,
        {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 88},
        {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
        {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    ),
    "phi3": (SMALL, {**SMALL, "sliding_window": 32, "tie_word_embeddings": True}),
    "gemma": (SMALL, {**SMALL, "head_dim": 12, "attention_bias": True}),
    "gemma2": (SMALL, {**SMALL, "head_dim": 12, "tie_word_embeddings": False}),
    "gemma3_text": (SMALL, {**SMALL, "head_dim": 12, "attention_bias": True}),
    "bert": (SMALL, {**SMALL, "type_vocab_size": 5, "architectures": ["BertForPreTraining"]}),
    "bart": (BART, {**BART, "encoder_layers": 1, "encoder_ffn_dim": 24}),
    "whisper": (WHISPER, {**WHISPER, "decoder_layers": 1, "num_mel_bins": 128}),
    "t5": (T5, {**T5, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu"}),
    "gemma4_text": (
        GEMMA4_TEXT,
        {**GEMMA4_TEXT, "attention_bias": True, "tie_word_embeddings": False, "num_global_key_value_heads": 4},
        {**GEMMA4_TEXT, **GEMMA4_EXPERTS, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
        *PER_LAYER_VARIANTS,
    ),
    "gemma4": (
        {"text_config": {"model_type": "gemma4_text", **GEMMA4_TEXT}, "vision_config": GEMMA4_TOWER},
        {
            "text_config": {"model_type": "gemma4_text", **GEMMA4_TEXT, **GEMMA4_EXPERTS},
            "vision_config": {**GEMMA4_TOWER, "standardize": True},
        },
    ),
    "gemma3": (
        GEMMA3,
        {**GEMMA3, "vision_config": SIGLIP, "tie_word_embeddings": False},
    ),
    "llava": (
        {"text_config": {"model_type": "llama", **SMALL}, "vision_config": CLIP},
        {
            "text_config": {"model_type": "qwen2", **SMALL, "tie_word_embeddings": True},
            "vision_config": PIXTRAL,
            "multimodal_projector_bias": False,
            "vision_feature_layer": [-2, -1],
        },
    ),
    "llava_next": (
        {"text_config": {"model_type": "mistral", **SMALL}, "vision_config": CLIP},
        # Granite Vision: the features of several layers of a SigLIP tower.
        {
            "text_config": {"model_type": "granite", **SMALL},
            "vision_config": SIGLIP,
            "tie_word_embeddings": True,
            "vision_feature_layer": [-2, -1],
        },
    ),
    "mistral3": (
        {
            "text_config": {"model_type": "mistral", **SMALL},
            "vision_config": PIXTRAL,
            "tie_word_embeddings": False,
        },
        {
            "text_config": {"model_type": "mistral", **SMALL},
            "vision_config": PIXTRAL,
            "tie_word_embeddings": True,
            "multimodal_projector_bias": True,
            "spatial_merge_size": 3,
        },
        {"text_config": {"model_type": "ministral3", **SMALL}, "vision_config": PIXTRAL, "tie_word_embeddings": True},
    ),
    "qwen2_vl": (
        {**SMALL, "vision_config": {**QWEN2_TOWER, "embed_dim": 40, "hidden_size": 64, "mlp_ratio": 2}},
        {
            "text_config": {"model_type": "qwen2_vl_text", **SMALL, "tie_word_embeddings": True},
            "vision_config": {**QWEN2_TOWER, "embed_dim": 40, "hidden_size": 64, "mlp_ratio": 2},
        },
    ),
    "qwen2_5_vl": (
        {
            **SMALL,
            "vision_config": {**QWEN2_TOWER, "hidden_size": 40, "out_hidden_size": 64, "intermediate_size": 56},
        },
    ),
    "deepseek_v2": ({**SMALL, **LATENT}, {**SMALL, **LATENT, "q_lora_rank": None}),
    "deepseek_v3": ({**SMALL, **LATENT}, {**SMALL, **LATENT, "attention_bias": True}),
    "glm4_moe_lite": (
        {**SMALL, **LATENT, "n_shared_experts": 1},
        {**SMALL, **LATENT, "mlp_layer_types": ["dense", "dense", "sparse"]},
    ),
    "mamba": (MAMBA, {**MAMBA, "use_bias": True, "time_step_rank": 7}, {**MAMBA, "use_conv_bias": False}),
    "mamba2": (MAMBA2, {**MAMBA2, "use_bias": True, "tie_word_embeddings": True}),
    "starcoder2": (SMALL, {**SMALL, "use_bias": False}),
    "stablelm": (
        SMALL,
        {**SMALL, "use_qkv_bias": True},
        {**SMALL, "use_parallel_residual": True},
        {**SMALL, "qk_layernorm": True},
    ),
    "cohere": (SMALL, {**SMALL, "use_qk_norm": True}, {**SMALL, "attention_bias": True}),
    "phi": (SMALL, {**SMALL, "tie_word_embeddings": True}),
    "glm": (SMALL, {**SMALL, "attention_bias": False}),
    "glm4": (SMALL, {**SMALL, "attention_bias": False}),
    "granite": (SMALL, {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "olmo": (SMALL, {**SMALL, "attention_bias": True}),
    "olmo2": (SMALL, {**SMALL, "attention_bias": True}),
    "olmo3": (SMALL,),
    "smollm3": (SMALL, {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    "seed_oss": (SMALL, {**SMALL, "attention_bias": False}, {**SMALL, "attention_out_bias": True, "mlp_bias": True}),
    "ernie4_5": (SMALL, {**SMALL, "use_bias": True, "tie_word_embeddings": False}),
    "nemotron": (SMALL, {**SMALL, "attention_bias": True, "mlp_bias": True}),
    "cohere2": (SMALL, {**SMALL, "attention_bias": True}),
    **MIXTURE_VARIANTS,
    **HYBRID_VARIANTS,
    **RECENT_VARIANTS,
}
# Types whose checkpoints need code of their own: transformers has no module for them.
WITHOUT_A_MODULE = frozenset(
    {
        "Yi", "aquila", "baichuan", "bailing_moe_v2", "chatglm", "deepseek", "internlm2", "kimi_k2", "kimi_vl", "mimo",
        "minicpm", "nemotron-nas", "qwen",
    }
)  # fmt: skip
# Text models that are published only within a wrapper and are compared there.
WITHIN_A_WRAPPER = frozenset(
    {
        "minimax_m3", "minimax_m3_vl_text", "mllama_text_model", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text",
        "qwen3_vl_moe_text", "step3p5",
    }
)  # fmt: skip
# Types, and architectures of a type that has several, that are no causal language models.
FACTORIES: Mapping[str, Any] = {
    **dict.fromkeys(
        ("gemma3", "gemma3n", "gemma4", "llama4", "llava", "llava_next", "mistral3"), AutoModelForImageTextToText
    ),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), AutoModelForImageTextToText),
    **dict.fromkeys(("kimi_k25", "mistral4", "qwen3_5", "qwen3_5_moe"), AutoModelForImageTextToText),
    **dict.fromkeys(("minimax_m3_vl", "mllama", "step3p7"), AutoModelForImageTextToText),
    "bert": AutoModelForMaskedLM,
    "BertForPreTraining": AutoModelForPreTraining,
    "bart": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM,
    "whisper": AutoModelForSpeechSeq2Seq,
}
# Gemma 3n's eyes are a module of timm's, a package that the tests do without: their sizes are worked out by hand in
# test_gemma3n_towers.py, and everything else is compared around a stand-in.
WITHOUT_EYES = frozenset({"gemma3n"})
EYES = "model.vision_tower."
# In the files CLIP and SigLIP towers have one more level, which transformers drops on reading and writes no more.
TOWER_LEVEL = ("vision_tower.vision_model.", "vision_tower.")


# Models that are alike are neighbours in the catalogue; thousands of names of each module are not kept for long.
@lru_cache(maxsize=8)
def built_shapes(config_json: str) -> tuple[Shapes, int]:
    """Return every tensor of the checkpoint, tied ones once, and the number of trainable parameters.

    In memory transformers 5 stacks experts and renames some families' weights;
    saving undoes that, so the names here are those of the files.
    """
    model_type, module = json.loads(config_json)["model_type"], built_module(config_json)
    shapes = published_shapes(model_type, module)
    parameters = {name: parameter.numel() for name, parameter in module.named_parameters()}
    return without_eyes(model_type, shapes), sum(without_eyes(model_type, parameters).values())


def built_module(config_json: str) -> PreTrainedModel:
    """Return the module that transformers builds of a config, without storage."""
    fields = json.loads(config_json)
    model_type = fields.pop("model_type")
    named = (*(fields.get("architectures") or ()), model_type)
    factory = next((FACTORIES[name] for name in named if name in FACTORIES), AutoModelForCausalLM)
    config = AutoConfig.for_model(model_type, **fields)
    if model_type in WITHOUT_EYES:
        # The config's own setter takes no tower of another kind.
        vars(config)["vision_config"] = stand_in_eyes(config.vision_config)
    with torch.device("meta"):
        module: PreTrainedModel = factory.from_config(config)
    return module


def stand_in_eyes(vision: Any) -> SiglipVisionConfig:
    """Return the config of a small tower with the sizes that the embedder behind the eyes reads."""
    stand_in = SiglipVisionConfig(hidden_size=vision.hidden_size, num_hidden_layers=1, num_attention_heads=1)
    stand_in.vocab_size = vision.vocab_size
    stand_in.rms_norm_eps, stand_in.vocab_offset = vision.rms_norm_eps, vision.vocab_offset
    return stand_in


def without_eyes(model_type: str, by_name: Mapping[str, Value]) -> dict[str, Value]:
    """Return what is compared: all, but of a type whose eyes are not built."""
    return {
        name: value for name, value in by_name.items() if model_type not in WITHOUT_EYES or not name.startswith(EYES)
    }


def described_shapes(spec: ModelSpec) -> Shapes:
    """Return the description's tensors, as they are named and shaped in the checkpoint."""
    shapes = {name.replace(*TOWER_LEVEL): weight.shape for name, weight in spec.named_weights()}
    return without_eyes(spec.model_type, shapes)


def trainable_parameters(spec: ModelSpec) -> int:
    """Return the parameters without the buffers that a checkpoint holds beside them."""
    elements = {name: math.prod(weight.shape) for name, weight in spec.named_weights() if not weight.is_buffer}
    return sum(without_eyes(spec.model_type, elements).values())


def parameters_key(model: CatalogueModel) -> str:
    """Return the part of the config that decides the parameters, so that models alike are built once."""
    without_weights = {"rope_theta", "rope_scaling", "max_position_embeddings", "sliding_window"}
    return json.dumps({key: model.config[key] for key in sorted(model.config) if key not in without_weights})


WITH_A_MODULE = [model for model in catalogue().models if model.config["model_type"] not in WITHOUT_A_MODULE]


@pytest.mark.parametrize("model", WITH_A_MODULE, ids=lambda model: model.id)
def test_a_catalogue_model_is_described_exactly(model: CatalogueModel) -> None:
    spec = describe_config(model.config, name=model.id)
    shapes, total = built_shapes(parameters_key(model))
    assert described_shapes(spec) == shapes
    assert trainable_parameters(spec) == total


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b", "gpt2"])
def test_the_whole_published_config_builds_the_same_module(name: str) -> None:
    config = catalogue().model(name).config
    shapes, _ = built_shapes(json.dumps(config))
    assert described_shapes(describe_config(config, name=name)) == shapes


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        pytest.param(model_type, fields, id=f"{model_type}-{number}")
        for model_type, variants in VARIANTS.items()
        for number, fields in enumerate(variants)
    ],
)
def test_every_branch_of_a_familys_reader_is_exact(model_type: str, fields: Mapping[str, Any]) -> None:
    config = {"model_type": model_type, **fields}
    spec = describe_config(config, name="small")
    shapes, total = built_shapes(json.dumps(config))
    assert described_shapes(spec) == shapes
    assert trainable_parameters(spec) == total


@pytest.mark.parametrize(
    ("fields", "flags"),
    [
        ({}, {"model_type": "qwen2"}),
        ({"sliding_window": 32, "use_sliding_window": True}, {"model_type": "qwen2"}),
        ({"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1}, {"model_type": "qwen3"}),
        ({"sliding_window": 32, "use_sliding_window": False, "max_window_layers": 0}, {"model_type": "qwen3"}),
        ({"sliding_window": 32}, {"model_type": "gemma2"}),
        ({"sliding_window": 32}, {"model_type": "gemma3_text"}),
        ({"sliding_window": 32, "sliding_window_pattern": 2}, {"model_type": "gemma3_text"}),
        ({"sliding_window": 32, "hidden_size_per_layer_input": 0}, {"model_type": "gemma4_text"}),
    ],
)
def test_the_windows_are_on_the_layers_where_transformers_puts_them(
    fields: Mapping[str, Any], flags: Mapping[str, Any]
) -> None:
    config = {**SMALL, **flags, **fields}
    spec = describe_config(config, name="small")
    windows = {layer: block.kv.window for block in spec.layers if block.kv for layer in block.layers}
    types = AutoConfig.for_model(**config).layer_types
    assert [windows[layer] for layer in range(3)] == [32 if kind == "sliding_attention" else None for kind in types]


def test_without_a_window_given_mistral_slides_over_its_config_classs_own() -> None:
    config = {"model_type": "mistral", **SMALL}
    spec = describe_config(config, name="small")
    assert {block.kv.window for block in spec.layers if block.kv} == {AutoConfig.for_model(**config).sliding_window}


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "starcoder2", "glm", "granite"])
def test_left_out_key_value_heads_are_the_config_classs_own(model_type: str) -> None:
    config = {"model_type": model_type, **SMALL, "num_attention_heads": 32}
    del config["num_key_value_heads"]
    spec = describe_config(config, name="small")
    defaulted = AutoConfig.for_model(**config).num_key_value_heads
    assert spec.key_value_heads == (32 if defaulted is None else defaulted)


def test_key_value_heads_of_null_are_as_many_as_query_heads() -> None:
    config = {"model_type": "mistral", **SMALL, "num_key_value_heads": None}
    assert describe_config(config, name="small").key_value_heads == 8


def test_every_known_type_is_compared_or_listed_as_having_no_module() -> None:
    assert set(known_model_types()) == set(VARIANTS) | WITHOUT_A_MODULE | WITHIN_A_WRAPPER
