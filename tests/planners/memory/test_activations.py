import dataclasses

import pytest

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.families import describe_config
from plimsoll.planners.memory import activations, mixture_backward, routing
from plimsoll.planners.memory.activations import (
    checkpoint_width,
    has_dropout,
    meeting_gradients,
    norm_backward_bytes,
    saved_bytes,
)
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import gpt, llama
from tests.planners.families.small_hybrids import NEMOTRON_H

REFERENCE, FSDP2 = load_profile("reference").kernels, load_profile("fsdp2").kernels
H, F = 4096, 14336
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

QWEN_MOE = {
    "model_type": "qwen2_moe", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1,
}  # fmt: skip


def test_korthikanti_s_plain_layer_keeps_34_bytes_a_feature():
    kept = saved_bytes(gpt().layers[0], REFERENCE, attention="flash", element_bytes=2)
    # Tensor parallelism leaves 10 whole (norms' inputs and outputs, two masks) and divides 24.
    assert (kept.sequence_bytes, kept.tensor_bytes) == (10 * H, 24 * H)


def test_scores_cost_five_bytes_a_head_and_position():
    assert saved_bytes(gpt().layers[0], REFERENCE, attention="eager", element_bytes=2).score_bytes == 5 * 32


def test_gated_layers_keep_no_dropout():
    kept = saved_bytes(llama().layers[0], REFERENCE, attention="eager", element_bytes=2)
    assert kept.score_bytes == 2 * 32
    assert kept.sequence_bytes == 8 * H


def test_fp8_products_keep_a_byte_of_each_input_beside_what_attention_keeps():
    kept = saved_bytes(
        llama().layers[0], load_profile("megatron").kernels, attention="flash", element_bytes=2, fp8_input_bytes=1
    )
    # Two norms: inputs 2h each, outputs in fp8 h each, and two fp32 statistics.
    assert kept.sequence_bytes == 6 * H + 2 * 4
    # Query 2h, key and value 2 x 2 x 1,024, context 2h and once more h in fp8, gate and up 4f, their product f in fp8.
    assert kept.tensor_bytes == 2 * H + 4 * 1024 + 3 * H + 4 * F + F + 4 * 32


def test_a_router_s_input_stays_in_16_bits_beside_the_experts_in_fp8():
    kernels = load_profile("megatron").kernels
    layer = describe_config(MIXTRAL, name="mixtral").layers[0]
    plain = saved_bytes(layer, kernels, attention="flash", element_bytes=2)
    in_fp8 = saved_bytes(layer, kernels, attention="flash", element_bytes=2, fp8_input_bytes=1)
    hidden, width, chosen = 64, 128, 2
    # The first norm's output loses a byte; the second's goes to the router alone, and keeps both.
    assert plain.sequence_bytes - in_fp8.sequence_bytes == hidden
    # Each token's two copies of h before the experts and of f before their last matrix lose a byte an element.
    assert plain.dispatched_bytes - in_fp8.dispatched_bytes == chosen * hidden
    assert plain.expert_bytes - in_fp8.expert_bytes == chosen * width


def test_separate_kernels_keep_what_a_trace_of_transformers_shows():
    # Traced: S(16h + 4 nq + 4 kv + 8f) + 4 heads S, and two fp32 statistics of the norms.
    kernels = load_profile("accelerate").kernels
    kept = saved_bytes(llama().layers[0], kernels, attention="flash", element_bytes=2)
    assert kept.sequence_bytes == 16 * H + 2 * 4
    assert kept.tensor_bytes == 4 * H + 4 * 1024 + 8 * F + 4 * 32


def test_stacks_that_keep_gathered_inputs_do_not_divide_them():
    kept = saved_bytes(llama().layers[0], FSDP2, attention="flash", element_bytes=2)
    assert kept.gathered_bytes == 2 * 2 * H


@pytest.mark.parametrize("model", [llama(), gpt()])
def test_full_recompute_keeps_the_layer_s_input(model):
    assert checkpoint_width(model.layers[0]) == H


def test_the_widest_tensor_is_the_feed_forward_s():
    assert meeting_gradients(llama().layers[0], None) == (F, 2)


ADAPTED = frozenset({"query_projection", "key_projection", "value_projection", "output_projection"})


def test_frozen_matrices_keep_no_inputs():
    kernels = load_profile("accelerate").kernels
    kept = saved_bytes(llama().layers[0], kernels, attention="flash", element_bytes=2, learning=ADAPTED)
    # Norms' inputs in fp32 and not their normalised copies, the adapters' input: (4 + 4 + 2) h and two statistics.
    assert kept.sequence_bytes == 10 * H + 8
    # Query 2h, key and value 2h/4 each, context 2h; gate twice and up: 6f; 32 heads' statistics. No product, no 2f.
    assert kept.tensor_bytes == 2 * H + H + 2 * H + 6 * F + 4 * 32


def test_a_frozen_last_matrix_lets_a_third_gradient_meet_the_others():
    assert meeting_gradients(llama().layers[0], ADAPTED) == (F, 3)
    assert meeting_gradients(llama().layers[0], None) == (F, 2)


def test_of_an_ungated_layer_one_gradient_less_meets_the_others():
    assert meeting_gradients(gpt().layers[0], None)[1] == 1
    assert meeting_gradients(gpt().layers[0], frozenset())[1] == 2


@pytest.mark.parametrize(("kept", "meeting", "expected"), [(1, 2, 1), (4, 3, 2), (1, 4, 3), (0, 2, 2)])
def test_transformers_own_activations_hold_what_they_are_written_in(kept, meeting, expected):
    # One of the gradients lies where the next matrix's input lay, but for ReLU, whose result is that input.
    block = gpt().layers[0]
    own = tuple(
        dataclasses.replace(op, kept_tensors=kept, meeting_gradients=meeting)
        if op.kind is OperationKind.ACTIVATION
        else op
        for op in block.operations
    )
    assert meeting_gradients(dataclasses.replace(block, operations=own), None, own_code=True)[1] == expected
    assert meeting_gradients(dataclasses.replace(block, operations=own), None)[1] == 1


def test_in_place_the_product_s_gradient_alone_is_new():
    # That of each half lies where the half lay, and all that was kept is still there, learning or not.
    assert meeting_gradients(llama().layers[0], None, in_place=True) == (F, 1)
    assert meeting_gradients(llama().layers[0], ADAPTED, in_place=True) == (F, 1)
    assert meeting_gradients(gpt().layers[0], None, in_place=True)[1] == 1


LIGER = load_profile("accelerate", "fused").kernels


def test_liger_s_kernels_keep_a_norm_s_input_as_it_is_and_both_halves_of_a_gate():
    kept = saved_bytes(llama().layers[0], LIGER, attention="flash", element_bytes=2)
    # Two norms: inputs and outputs 2h each, and a statistic.
    assert kept.sequence_bytes == 8 * H + 2 * 4
    # Query, key, value and context, gate, up and product, 32 heads' statistics.
    assert kept.tensor_bytes == 4 * H + 4 * 1024 + 6 * F + 4 * 32


def test_under_autocast_liger_s_norm_keeps_its_input_in_fp32_once():
    plain, liger = (
        saved_bytes(llama().layers[0], kernels, attention="flash", element_bytes=2, autocast=True)
        for kernels in (load_profile("ddp").kernels, load_profile("ddp", "fused").kernels)
    )
    # Two norms, each without the normalised copy in fp32.
    assert plain.sequence_bytes - liger.sequence_bytes == 2 * 4 * H


def test_a_norm_in_place_has_its_gradients_in_one_tensor():
    layer = llama().layers[0]
    # Input, the gradient and the residual's; where the norm's own takes a place of its own, a fourth.
    assert norm_backward_bytes(layer, LIGER, 2) == 3 * 2
    assert norm_backward_bytes(layer, load_profile("megatron").kernels, 2) == 4 * 2


PHI = {
    "model_type": "phi3", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip


def test_a_rotation_in_place_leaves_the_attention_s_output_as_the_next_matrix_needs_it():
    layer = describe_config(PHI, name="phi").layers[0]
    liger, plain = (
        saved_bytes(layer, kernels, attention="flash", element_bytes=2).tensor_bytes
        for kernels in (LIGER, load_profile("accelerate").kernels)
    )
    # The output is kept once, 2 x 64, and the gate's activation, 2 x 128, not at all.
    assert plain - liger == 2 * 64 + 2 * 128


def test_older_four_bit_products_keep_their_inputs_in_fp32():
    kernels = load_profile("litgpt").kernels
    plain, four_bit = (
        saved_bytes(
            llama().layers[0], kernels, attention="flash", element_bytes=2, learning=ADAPTED, frozen_input_bytes=size
        )
        for size in (0, 4)
    )
    # Both halves' inputs and the product, 4 bytes a feature, beneath adapters too; the context that attention keeps, 2.
    assert four_bit.sequence_bytes - plain.sequence_bytes == 2 * 4 * H
    assert four_bit.tensor_bytes - plain.tensor_bytes == 4 * F + 2 * H


def test_nanotron_s_query_is_a_view_of_a_buffer_with_keys_and_values():
    kernels = load_profile("nanotron").kernels
    equal_heads = llama(num_key_value_heads=32).layers[0]
    kept = saved_bytes(equal_heads, kernels, attention="flash", element_bytes=2)
    # Query 2h, keys and values twice 4h, context 2h; gate twice, up and product 8f.
    assert kept.tensor_bytes == 2 * H + 8 * H + 2 * H + 8 * F + 4 * 32
    grouped = saved_bytes(llama().layers[0], kernels, attention="flash", element_bytes=2)
    assert grouped.tensor_bytes == 2 * H + H + 2 * H + 8 * F + 4 * 32


def test_dropout_belongs_to_ungated_layers_with_layer_norms():
    hybrid = describe_config({"model_type": "nemotron_h", **NEMOTRON_H}, name="small")
    assert has_dropout(gpt().layers[0])
    assert not has_dropout(llama().layers[0])
    assert not any(has_dropout(layer) for layer in hybrid.layers)


def test_autocast_norms_stay_in_fp32_and_each_matrix_keeps_its_own_cast():
    plain = saved_bytes(llama().layers[0], FSDP2, attention="flash", element_bytes=2)
    cast = saved_bytes(llama().layers[0], FSDP2, attention="flash", element_bytes=2, autocast=True)
    # Of each norm 8 bytes instead of 6; of its output three casts (query, key, value) and two (gate, up), not one.
    kept = {name: getattr(cast, name) - getattr(plain, name) for name in ("sequence_bytes", "gathered_bytes")}
    assert sum(kept.values()) == (2 * 2 + 2 * 2 + 1 * 2) * H
    assert cast.tensor_bytes == plain.tensor_bytes


def test_one_matrix_that_holds_several_keeps_one_cast():
    sizes = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    phi = describe_config({"model_type": "phi3", "num_attention_heads": 4, **sizes}, name="small").layers[0]
    plain, cast = (
        saved_bytes(phi, FSDP2, attention="flash", element_bytes=2, autocast=autocast) for autocast in (False, True)
    )
    kept = {name: getattr(cast, name) - getattr(plain, name) for name in ("sequence_bytes", "gathered_bytes")}
    # Of each norm 8 bytes instead of 6, of its output a single cast as before.
    assert sum(kept.values()) == 2 * 2 * 64


SMALL = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def transformers_layer(model_type, **changes):
    config = {key: value for key, value in SMALL.items() if key != "head_dim" or model_type == "qwen3"}
    layer = describe_config({"model_type": model_type, **config, **changes}, name="small").layers[0]
    kept = saved_bytes(layer, load_profile("accelerate").kernels, attention="flash", element_bytes=2)
    return kept.sequence_bytes, kept.tensor_bytes


# Llama's layer of these sizes: two norms' 16 x 64 and statistics; query and context 2 x 64 each, key and value 2 x 32
# each, four heads' statistics, 8 x 128 of the feed-forward.
PLAIN_SEQUENCE, PLAIN_TENSOR = 16 * 64 + 2 * 4, 4 * 64 + 4 * 32 + 4 * 4 + 8 * 128


def test_norms_of_queries_and_keys_keep_their_inputs_in_fp32_and_normalized():
    # 6 bytes of each feature of 4 query and 2 key heads of 16, and a statistic for each head.
    assert transformers_layer("qwen3") == (PLAIN_SEQUENCE, PLAIN_TENSOR + 6 * (64 + 32) + 4 * 6)


def test_norms_that_scale_in_fp32_keep_the_normalized_in_fp32():
    # OLMo 2 norms each half's output, 8 x 64 twice and two statistics, and queries and keys, 8 bytes a feature and one
    # statistic each; both residual streams are kept as inputs of matrices.
    sequence = 2 * (8 * 64 + 4) + 2 * 2 * 64 + 2 * 4
    assert transformers_layer("olmo2") == (sequence, PLAIN_TENSOR + 8 * (64 + 32))


def test_a_layer_norm_keeps_its_input_and_two_statistics():
    # StarCoder 2: two norms' inputs and outputs 2 x 64 each; the plain feed-forward keeps its two tensors of 128.
    assert transformers_layer("starcoder2") == (8 * 64 + 2 * 8, 4 * 64 + 4 * 32 + 4 * 4 + 4 * 128)


def test_a_value_that_is_a_view_keeps_queries_and_keys_beside_their_rotated_copies():
    # Phi 3: 2 bytes of 64 + 32 features more, and the context once more, turned for the output's matrix.
    assert transformers_layer("phi3", pad_token_id=0) == (PLAIN_SEQUENCE, PLAIN_TENSOR + 2 * (64 + 32) + 2 * 64)


@pytest.mark.parametrize("kernels", [FSDP2, load_profile("megatron").kernels])
def test_a_shared_expert_s_output_is_kept_for_the_gradient_of_its_score(kernels):
    block = describe_config(QWEN_MOE, name="moe").layers[0]
    plain = dataclasses.replace(block, operations=tuple(op for op in block.operations if op.name != "shared_combine"))
    kept, without = (saved_bytes(each, kernels, attention="flash", element_bytes=2) for each in (block, plain))
    assert kept.sequence_bytes - without.sequence_bytes == 2 * 64


def test_litgpt_s_adapters_keep_a_dropout_s_output_and_mask_each():
    kernels = load_profile("litgpt").kernels
    without = dataclasses.replace(kernels, adapter_dropout_bytes=0)
    dropped, shared = (
        saved_bytes(llama().layers[0], each, attention="flash", element_bytes=2, learning=ADAPTED)
        for each in (kernels, without)
    )
    # Queries, keys and values have one adapter: 3 bytes of its input in place of the shared 2. The output's has 3
    # beside the context that attention keeps.
    assert dropped.sequence_bytes - shared.sequence_bytes == H
    assert dropped.tensor_bytes - shared.tensor_bytes == 3 * H


def test_peft_s_queries_keys_and_values_keep_what_a_dropout_of_their_own_leaves():
    kernels = load_profile("accelerate").kernels
    dropping = dataclasses.replace(kernels, adapter_dropout_bytes=3)
    dropped, shared = (
        saved_bytes(llama().layers[0], each, attention="flash", element_bytes=2, learning=ADAPTED)
        for each in (dropping, kernels)
    )
    # Three adapters have 3 bytes each of the input of which they shared 2; the output's 3 beside attention's context.
    assert dropped.sequence_bytes - shared.sequence_bytes == (3 * 3 - 2) * H
    assert dropped.tensor_bytes - shared.tensor_bytes == 3 * H


def test_under_autocast_every_adapter_keeps_a_cast_of_its_own():
    kernels = load_profile("accelerate").kernels
    shared, cast = (
        saved_bytes(
            llama().layers[0], kernels, attention="flash", element_bytes=2, learning=ADAPTED, adapter_casts=casts
        )
        for casts in ({}, {"attention_input": 3, "attention_context": 1})
    )
    # Queries, keys and values keep three tensors in place of the one that they shared, the output's matrix one beside
    # the context that attention keeps.
    assert cast.sequence_bytes - shared.sequence_bytes == 2 * 2 * H
    assert cast.tensor_bytes - shared.tensor_bytes == 2 * H


def test_the_names_by_which_a_mixture_is_looked_at_are_those_of_its_description():
    # A name that no description has would be looked for in vain, and its bytes left out in silence.
    layer = describe_config(QWEN_MOE, name="tiny").layers[0]
    operations = {operation.name for operation in layer.operations}
    tensors = {tensor.name for tensor in layer.tensors}
    assert {activations.ROUTER, activations.COMBINE, activations.SHARED_COMBINE} <= operations
    # Only experts without a gate have an inner tensor.
    gated = {*activations.EXPERT_TENSORS} - {"expert_inner"}
    assert {*activations.DISPATCHED_TENSORS, *gated, routing.SCORES} <= tensors
    assert {mixture_backward.DISPATCHED, mixture_backward.EXPERT_OUTPUT, mixture_backward.EXPERT_PRODUCT} <= tensors


def test_under_autocast_every_matrix_casts_a_stream_that_no_norm_lies_before():
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
    config = {"model_type": "olmo2", "vocab_size": 101, "hidden_size": 64, "intermediate_size": 128, **sizes}
    block, kernels = describe_config(config, name="small").layers[0], load_profile("ddp").kernels
    sized = {"attention": "flash", "element_bytes": 2}
    plain, cast = (saved_bytes(block, kernels, **sized, autocast=autocast) for autocast in (False, True))
    # Three copies for query, key and value, two for the feed-forward's halves; one of each was saved.
    assert cast.sequence_bytes - plain.sequence_bytes == (3 + 2 - 2) * 2 * 64


def test_torchtune_s_layer_scales_in_fp32_and_repeats_keys_and_values():
    layer = llama(num_key_value_heads=8).layers[0]
    kept = saved_bytes(layer, load_profile("torchtune").kernels, attention="flash", element_bytes=2)
    # Traced over torchtune 0.6.1's own layer of Llama 3.1 8B, bytes a token: two norms' input and normalized in fp32,
    # their outputs and statistics; queries, keys, values of 32 heads and the output, statistics of the heads; gate,
    # its SiLU, up and the product.
    assert kept.sequence_bytes + kept.gathered_bytes == 2 * (4 + 4 + 2) * H + 2 * 4
    assert kept.tensor_bytes == 4 * 2 * H + 32 * 4 + 4 * 2 * F


def test_a_single_head_that_all_share_is_repeated_as_a_view():
    layer = llama(num_key_value_heads=1).layers[0]
    kept = saved_bytes(layer, load_profile("torchtune").kernels, attention="flash", element_bytes=2)
    assert kept.tensor_bytes == 2 * 2 * H + 2 * 2 * 128 + 32 * 4 + 4 * 2 * F
