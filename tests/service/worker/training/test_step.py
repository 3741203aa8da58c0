"""One rank's bytes, worked out by hand for a small Llama.

Weights of a layer over 4 ranks, rows of each shard: q 64/4 = 16, k and v 32/4 = 8, o 16, gate and up 176/4 = 44,
down 16, two norms 16 elements. Times 64 (176 for down): (16 + 8 + 8 + 16 + 44 + 44) x 64 + 16 x 176 + 32 = 11,552.
Outside: embedding and head ceil(101 / 4) = 26 rows x 64 = 1,664 each, last norm 16. In all
2 x 11,552 + 3,344 = 26,448 elements a rank.
"""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import config, requested_bytes, traced, traced_on_transformers

SHARD_ELEMENTS = 26_448
TENSORS = 9 * 2 + 3
# 34,112 for q to o and the norms... whole layers: 64 x (64 + 32 + 32 + 64) + 3 x 64 x 176 + 128 = 46,208;
# 2 layers, two matrices of 101 x 64 and a norm: 92,416 + 12,928 + 64.
ALL_ELEMENTS = 105_408
TOKENS = 64
LOSS_SCALAR_BYTES = 4


@pytest.fixture(scope="module")
def sharded():
    return traced()


@pytest.mark.slow
class TestFullySharded:
    def test_parameters_are_padded_fp32_shards(self, sharded):
        assert requested_bytes(sharded, Kind.PARAMETER) == 4 * SHARD_ELEMENTS

    def test_gradients_are_as_large_as_the_shards(self, sharded):
        assert requested_bytes(sharded, Kind.GRADIENT) == 4 * SHARD_ELEMENTS

    def test_adamw_keeps_two_fp32_moments_and_a_step_count_a_tensor(self, sharded):
        assert requested_bytes(sharded, Kind.OPTIMIZER_STATE) == 8 * SHARD_ELEMENTS + 4 * TENSORS

    def test_the_second_step_leaves_the_memory_as_it_found_it(self, sharded):
        assert {mark.step for mark in sharded.marks} == {0, 1}

    def test_the_first_step_has_no_optimizer_states_until_its_update(self, sharded):
        ranges = {(mark.step, mark.phase): (start, end) for mark, start, end in sharded.phase_ranges()}
        first = sharded.peak(*ranges[0, "forward"]).bytes_by_kind()
        second = sharded.peak(*ranges[1, "forward"]).bytes_by_kind()
        assert "optimizer_state" not in first
        assert second["optimizer_state"] > 0


def test_the_loss_holds_three_fp32_copies_of_the_logits():
    # The log-softmax, its gradient and the gradient of the logits, for 64 tokens and 4,001 words.
    ledger = traced(config=config(vocab_size=4001))
    assert requested_bytes(ledger, Kind.LOGITS, phase="backward") == 3 * 4 * TOKENS * 4001


def test_pure_bf16_halves_parameters_gradients_and_moments():
    ledger = traced(precision="bf16")
    assert requested_bytes(ledger, Kind.PARAMETER) == 2 * SHARD_ELEMENTS
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 4 * SHARD_ELEMENTS + 4 * TENSORS


def test_hybrid_sharding_divides_by_the_shard_group_alone():
    # Over 2 ranks: (32 + 16 + 16 + 32 + 88 + 88) x 64 + 32 x 176 + 64 = 23,104 a layer; 51 x 64 x 2 + 32 outside.
    ledger = traced(data_parallel=4, shard_group=2)
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * (2 * 23_104 + 6_560)


def test_tensor_parallelism_splits_matrices_first_and_norms_not_at_all():
    # Tensor 2, then data 2: matrices of a layer 46,080 / 4, its norms 128 / 2; the vocabulary is cut to 51 rows and
    # those to 26; the last norm to 32. 2 x (11,520 + 64) + 2 x 26 x 64 + 32 = 26,528.
    ledger = traced(framework="fsdp2", data_parallel=2, tensor_parallel=2, sequence_parallel=True)
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * 26_528


def test_a_tied_head_is_held_once():
    ledger = traced(config=config(tie_word_embeddings=True))
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * (SHARD_ELEMENTS - 26 * 64)


def test_a_padding_token_beyond_the_vocabulary_is_none():
    # SmolLM 3's own is 128,004; the table has the 101 rows of every small model.
    ledger = traced(config=config(model_type="smollm3", pad_token_id=128_004))
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * SHARD_ELEMENTS


# fp16 as bf16 beside fp32 states; in fp32 and TF32 all that a layer keeps is twice as wide.
@pytest.mark.parametrize(("precision", "widening"), [("fp16-mixed", 1), ("fp32", 2), ("tf32", 2)])
def test_experts_are_multiplied_in_every_precision(precision, widening):
    mixture = config(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
    plain, wide = (traced(config=mixture, precision=name) for name in ("bf16-mixed", precision))
    whole = [requested_bytes(ledger, Kind.GATHERED_PARAMETER, phase="backward") for ledger in (plain, wide)]
    assert whole[1] == widening * whole[0]


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("sgd-momentum", 1)])
def test_sgd_keeps_a_momentum_or_nothing(optimizer, moments):
    assert requested_bytes(traced(optimizer=optimizer), Kind.OPTIMIZER_STATE) == moments * 4 * SHARD_ELEMENTS


def test_data_parallel_copies_hold_all_and_buckets_as_large_as_the_gradients():
    ledger = traced(framework="ddp", zero_stage=0)
    assert requested_bytes(ledger, Kind.PARAMETER) == 4 * ALL_ELEMENTS
    assert requested_bytes(ledger, Kind.GRADIENT) == 4 * ALL_ELEMENTS
    assert requested_bytes(ledger, Kind.COMMUNICATION) == 4 * ALL_ELEMENTS


@pytest.mark.parametrize(("zero_stage", "shards"), [(0, 1), (1, 4)])
def test_megatron_holds_18_bytes_a_parameter_or_6_and_a_share_of_12(zero_stage, shards):
    # 2 of the parameter, 4 of its main gradient; 4 + 8 of copy and moments, divided. All lengths divide by 4.
    ledger = traced_on_transformers(framework="megatron", zero_stage=zero_stage)
    assert requested_bytes(ledger, Kind.PARAMETER) == 2 * ALL_ELEMENTS
    assert requested_bytes(ledger, Kind.GRADIENT) == 4 * ALL_ELEMENTS
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 12 * ALL_ELEMENTS // shards + 4 * TENSORS


def test_transformer_engine_hands_autograd_one_empty_gradient_for_each_matrix_of_a_layer():
    # q and o 64 x 64, k and v 32 x 64, gate, up and down 176 x 64, in 2 bytes, for both layers once.
    ledger = traced_on_transformers(framework="megatron", zero_stage=1)
    assert requested_bytes(ledger, Kind.DUMMY_GRADIENT) == 2 * (2 * 4_096 + 2 * 2_048 + 3 * 11_264)


def test_a_stack_with_units_for_the_vocabulary_keeps_a_tied_root_gathered_at_the_loss():
    # Embedding, which is the head too: 26 rows on each of 4 ranks, 64 features, 2 bytes; the last norm 64.
    ledger = traced(framework="fsdp2", config=config(tie_word_embeddings=True))
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
    gathered = [piece for piece in ledger._live_after(ranges[-1][1] - 1) if piece.kind == Kind.GATHERED_PARAMETER]
    assert sum(piece.requested_bytes for piece in gathered) == 2 * (104 * 64 + 64)


def test_autocast_keeps_a_16_bit_copy_of_every_matrix_for_the_backward_pass():
    # Two layers' matrices, 46,080 elements each, and the head's 101 x 64; embedding and norms are not cast.
    ledger = traced(framework="ddp", zero_stage=0, config=config())
    assert requested_bytes(ledger, Kind.CAST_PARAMETER, phase="forward") == 2 * (2 * 46_080 + 6_464)


def test_megatron_s_fused_kernels_keep_33_5_bytes_of_llama_s_shape_less_the_shared_input():
    # A token's bytes with h = 64, keys 32, ffn 176, 4 heads: norm inputs 2 x 2h and outputs 2 x 2h, statistics 2 x 4,
    # query and attention output 2h each, key and value 2 x 32 each, log-sum-exp 4 x 4, gate, up and product 2 x 176
    # each: 12 x 64 + 8 + 128 + 16 + 1,056 = 1,976; and 24 bytes of the flash kernel's seed. Two layers; the last norm
    # keeps 2h + 4 + 2h, the loss nothing but logits, the rotary cosines and sines 2 x 2 x 16 bytes a position of 32.
    kept = _kept_by_forward(traced_on_transformers(framework="megatron", zero_stage=1))
    assert kept == 2 * (TOKENS * 1_976 + 24) + TOKENS * 260 + 32 * 64 + LOSS_SCALAR_BYTES


def test_the_textbook_s_gradients_take_two_bytes():
    ledger = traced(framework="reference", zero_stage=0)
    assert requested_bytes(ledger, Kind.GRADIENT) == 2 * ALL_ELEMENTS
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 12 * ALL_ELEMENTS + 4 * TENSORS


def test_full_recomputation_keeps_a_layer_s_input_instead_of_its_tensors():
    # A token's bytes in transformers' Llama layer, h = 64, keys 32, ffn 176, 4 heads. Each of two norms: the fp32 copy
    # 4h, its statistic 4, the normed bf16 2h, times the weight 2h; query and attention output 2h each, key and value
    # 2 x 32 each, log-sum-exp 4 x 4; gate, its SiLU, up and their product 2 x 176 each:
    # 16 x 64 + 8 + 4 x 64 + 4 x 32 + 16 + 8 x 176 = 2,840. Full recomputation keeps the bf16 input, 128.
    # The flash kernel keeps a seed and an offset as well: 24 bytes a layer.
    kept = {mode: _kept_by_forward(traced(recompute=mode)) for mode in ("none", "full")}
    assert kept["none"] - kept["full"] == 2 * (TOKENS * (2_840 - 128) + 24)


def _kept_by_forward(ledger):
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
    end = ranges[-1][1]
    return sum(piece.requested_bytes for piece in ledger._live_after(end - 1) if piece.kind == Kind.FORWARD_ACTIVATION)


def test_accumulation_under_tensor_parallelism_opens_the_parallel_loss_for_each_micro_batch():
    # Step 0 without optimizer states, step 1 with: the second micro-batch of each finds whole gradients.
    layout = {"framework": "fsdp2", "data_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True}
    once, twice = traced(**layout), traced(**layout, accumulation_steps=2)
    assert requested_bytes(twice, Kind.GRADIENT) == requested_bytes(once, Kind.GRADIENT)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_megatron_keeps_a_rank_s_own_tokens_of_a_split_sequence(recompute):
    # Of 64 tokens of 64 features 32 are a rank's own: 4,096 bytes fewer of each tensor outside split matrices. Those
    # are input and output of each norm, its statistic (128 bytes fewer) beside them: five norms; recomputed layers keep
    # their inputs alone.
    layout = {
        "framework": "megatron",
        "zero_stage": 1,
        "data_parallel": 2,
        "tensor_parallel": 2,
        "recompute": recompute,
    }
    whole, split = (_kept_by_forward(traced_on_transformers(**layout, sequence_parallel=own)) for own in (False, True))
    norm = 2 * 4_096 + 128
    assert whole - split == (5 * norm if recompute == "none" else 2 * 4_096 + norm)


def test_accumulation_meets_the_second_micro_batch_with_gradients_in_hand():
    ledger = traced(accumulation_steps=5)
    forwards = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
    assert len(forwards) == 4  # two of five micro-batches, two steps
    assert "gradient" not in ledger.peak(*forwards[-2]).bytes_by_kind()
    assert ledger.peak(*forwards[-1]).bytes_by_kind()["gradient"] > 0


def test_eager_attention_keeps_scores_that_flash_does_not():
    # A layer keeps the softmax in fp32 and again in bf16: 6 bytes x 2 sequences x 4 heads x 32 x 32, where flash keeps
    # the fp32 log-sum-exp, 4 x 2 x 4 x 32.
    eager, flash = (_kept_by_forward(traced(attention=attention)) for attention in ("eager", "flash"))
    assert eager - flash > 2 * (6 * 2 * 4 * 32 * 32 - 4 * 2 * 4 * 32) * 0.9
