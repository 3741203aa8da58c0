"""GPT-like families, encoders and encoder-decoders: what their switches change, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from plimsoll.planners.architecture import KvKind, ModelSpec, OperationKind
from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.planners.memory.activations import saved_bytes
from plimsoll.planners.stacks.profile import load_profile

FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
NEO: dict[str, Any] = {
    "model_type": "gpt_neo",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_layers": 3,
    "num_heads": 8,
    "window_size": 16,
    "attention_types": [[["global", "local"], 1], [["global"], 1]],
}
MPT: dict[str, Any] = {"model_type": "mpt", "vocab_size": 128, "d_model": 64, "n_layers": 2, "n_heads": 8}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "ffn_dim": 256,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 128,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 256,
    "num_layers": 2,
    "num_heads": 8,
}


def described(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return describe_config({**config, **changes}, name="small")


def refused(config: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(InvalidModelConfig) as caught:
        described(config, **changes)
    assert caught.value.pointer is not None
    return caught.value.pointer.removeprefix("/model/config/")


def attention_flops(spec: ModelSpec, context: float) -> float:
    """Return the attention's own operations of one token."""
    return sum(
        operation.forward_flops_per_token(context) * block.repeats
        for block in spec.layers
        for operation in block.operations
        if operation.kind is OperationKind.ATTENTION
    )


@pytest.mark.parametrize(
    ("changes", "key_value_heads"),
    [
        ({}, 1),
        ({"multi_query": False}, 8),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
        ({"new_decoder_architecture": True}, 8),
        # The old architecture does not read it.
        ({"num_kv_heads": 8}, 1),
    ],
)
def test_falcons_layouts_keep_as_many_keys_as_their_switches_say(changes: dict[str, Any], key_value_heads: int) -> None:
    spec = described(FALCON, **changes)
    assert spec.key_value_heads == key_value_heads
    assert [block.kv.heads for block in spec.layers if block.kv] == [key_value_heads]


def test_a_fused_multi_query_matrix_is_split_by_query_head_and_its_one_key_is_repeated() -> None:
    spec = described(FALCON)
    weight = next(w for name, w in spec.named_weights() if name.endswith("0.self_attention.query_key_value.weight"))
    # 8 query heads of 8 features and one key and value: 80 rows; on 4 ranks 2 heads, the key and the value: 32.
    assert weight.shape == (80, 64)
    assert weight.local_shape(4) == (32, 64)
    assert weight.local_shape(8) == (24, 64)


def test_the_new_falcon_is_never_one_half_after_the_other() -> None:
    assert refused(FALCON, new_decoder_architecture=True, parallel_attn=False) == "parallel_attn"


def test_falcons_key_value_heads_must_divide_its_heads() -> None:
    assert refused(FALCON, new_decoder_architecture=True, num_kv_heads=3) == "num_kv_heads"


def test_gpt_neos_local_layers_look_back_over_the_window() -> None:
    windows = {layer: block.kv.window for block in described(NEO).layers if block.kv for layer in block.layers}
    assert windows == {0: None, 1: 16, 2: None}


@pytest.mark.parametrize(
    "types",
    [
        [[["global", "local"], 1]],
        [[["global"], 4]],
        [[["sideways"], 3]],
        [["global", 3]],
        [[["global"], 0]],
        [[["global"], 10**9]],
        [[[[], "local"], 2]],
        "global",
        [7],
    ],
)
def test_gpt_neos_kinds_must_be_known_and_name_every_layer(types: Any) -> None:
    assert refused(NEO, attention_types=types) == "attention_types"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"no_bias": False}, "no_bias"),
        ({"expansion_ratio": 3}, "expansion_ratio"),
        ({"attn_config": {"attn_type": "multiquery_attention"}}, "attn_config/attn_type"),
        ({"attn_config": {"alibi": False}}, "attn_config/alibi"),
        ({"attn_config": {"qk_ln": True}}, "attn_config/qk_ln"),
        ({"attn_config": {"prefix_lm": True}}, "attn_config/prefix_lm"),
        ({"attn_config": 7}, "attn_config"),
    ],
)
def test_mpts_options_that_change_weights_are_refused_by_name(changes: dict[str, Any], pointer: str) -> None:
    assert refused(MPT, **changes) == pointer


def test_a_nested_key_that_nobody_reads_is_named_with_its_section() -> None:
    spec = described(MPT, attn_config={"alibi": True, "mystery": 1})
    (said,) = spec.assumptions
    assert said.endswith(": attn_config.mystery.")


def test_cross_attention_in_gpt_bigcode_is_refused() -> None:
    config = {"model_type": "gpt_bigcode", "vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 8}
    assert refused(config, add_cross_attention=True) == "add_cross_attention"


def test_a_narrow_embedding_multiplies_its_way_up_and_down() -> None:
    plain, narrow = described(OPT), described(OPT, word_embed_proj_dim=16)
    # The head multiplies 16 features instead of 64 by 128 words, and two matrices of 16 x 64 come on top.
    saved = 2 * (64 - 16) * 128 - 2 * 2 * 16 * 64
    assert plain.forward_flops_per_token(0) - narrow.forward_flops_per_token(0) == saved


def test_a_model_with_norms_after_the_sum_has_no_last_norm() -> None:
    head = described(OPT, do_layer_norm_before=False).head
    assert all(operation.kind is not OperationKind.NORM for operation in head.operations)
    # Two norms in each layer, each of which reads the sum of a half and the residual.
    norms = [op.inputs for op in described(OPT, do_layer_norm_before=False).layers[0].operations if op.kind == "norm"]
    assert norms == [("attention_sum",), ("feed_forward_sum",)]


def test_an_encoders_tokens_see_the_whole_sequence_and_cache_nothing() -> None:
    spec = described(BERT)
    # A mean causal context of 8.5 is a sequence of 16: 2 layers x 4 x 64 features x 16 positions.
    assert attention_flops(spec, 8.5) == 2 * 4 * 64 * 16
    assert all(block.kv is None for block in spec.layers)


@pytest.mark.parametrize("switch", [{"is_decoder": True}, {"tie_word_embeddings": False}, {"architectures": ["X"]}])
def test_a_bert_that_is_no_masked_word_model_is_refused(switch: dict[str, Any]) -> None:
    assert refused(BERT, **switch) in switch


def test_bert_base_has_the_published_number_of_parameters() -> None:
    sizes = {"vocab_size": 30_522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    spec = described(BERT, **sizes, num_attention_heads=12, architectures=["BertForPreTraining"])
    # Embeddings (30,522 + 512 + 2) x 768 + 1,536 = 23,837,184; a layer 4 x (768^2 + 768) + 2 x 768 x 3,072 + 3,072
    # + 768 + 3,072 = 7,087,872, 12 of them 85,054,464; masked words 768^2 + 768 + 1,536 + 30,522 = 622,650;
    # pooler 768^2 + 768 and next sentence 2 x 768 + 2 = 592,130.
    assert spec.parameters == 110_106_428


def test_bert_drops_elements_of_scores_and_of_both_halves_outputs() -> None:
    # BERT large in fp32, 4 sequences of 512: traced over transformers 5.23's BertLayer each layer saves 336 MiB, with
    # dropout's noise in fp32 as torch has it off a GPU; a mask of a byte saves 3 of 4 of these 64 + 2 x 8 MiB.
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    kernels = load_profile("accelerate").kernels
    saved = saved_bytes(described(BERT, **sizes).layers[0], kernels, attention="eager", element_bytes=4)
    tokens = 4 * 512
    held = tokens * (saved.sequence_bytes + saved.tensor_bytes + 512 * saved.score_bytes)
    assert held / 2**20 == pytest.approx(336 - 3 / 4 * (64 + 2 * 8), abs=0.1)


def test_t5_drops_elements_of_scores_and_of_both_halves_outputs() -> None:
    # An encoder's layer of T5 large in fp32, 4 sequences of 512: traced over transformers 5.23's T5Block it saves 384
    # MiB, of which a mask of a byte saves 3 of 4 of the dropouts' 64 + 32 + 2 x 8 MiB. The one in the feed-forward is
    # not planned.
    sizes = {"d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16}
    kernels = load_profile("accelerate").kernels
    saved = saved_bytes(described(T5, **sizes).layers[1], kernels, attention="eager", element_bytes=4)
    held = 4 * 512 * (saved.sequence_bytes + saved.tensor_bytes + 512 * saved.score_bytes)
    assert held / 2**20 == pytest.approx(384 - 3 / 4 * (64 + 32 + 2 * 8), rel=0.03)


def test_t5_counts_the_decoders_layers_from_zero_again() -> None:
    names = {name for name, _ in described(T5).named_weights()}
    assert "encoder.block.1.layer.1.DenseReluDense.wi.weight" in names
    assert "decoder.block.0.layer.1.EncDecAttention.k.weight" in names
    assert "decoder.block.1.layer.2.DenseReluDense.wo.weight" in names
    assert not any(name.startswith("decoder.block.2") for name in names)


def test_t5s_encoder_and_cross_attention_see_everything_and_its_decoder_what_came_before() -> None:
    # A sequence of 16, 4 x 64 features a position: 2 encoder layers and 2 cross attentions see 16, 2 decoders 8.5.
    assert attention_flops(described(T5), 8.5) == 4 * 64 * (2 * 16 + 2 * 16 + 2 * 8.5)


def test_t5s_encoder_output_is_kept_once() -> None:
    widths = [t.width for block in described(T5).layers for t in block.tensors if t.name == "encoder_output"]
    assert widths == [64, 0]


def test_flan_t5_base_has_a_head_of_its_own() -> None:
    sizes = {"vocab_size": 32_128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12}
    spec = described(T5, **sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    # Table and head 2 x 32,128 x 768 = 49,348,608; feed-forwards 24 x (3 x 768 x 2,048 + 768) = 113,264,640;
    # attentions 36 x (4 x 768^2 + 768) = 84,962,304; position tables 2 x 32 x 12 = 768; last norms 2 x 768 = 1,536.
    assert spec.parameters == 247_577_856


def test_grouped_keys_of_a_window_are_cached_as_such() -> None:
    (layer,) = described({**OPT, "model_type": "phi3", "intermediate_size": 96, "sliding_window": 16}).layers
    assert layer.kv is not None
    assert (layer.kv.kind, layer.kv.window) == (KvKind.SLIDING_WINDOW, 16)
