"""Adapters and four-bit bases, worked out by hand for the small Llama of `cases`.

A layer's matrices (outputs x inputs): q and o 64 x 64, k and v 32 x 64, gate and up 176 x 64, down 64 x 176. Rank 4 on
q and v: A 4 x 64 each, B 64 x 4 and 32 x 4, so 256 + 256 + 256 + 128 = 896 elements a layer and 1,792 in two.
"""

import dataclasses

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from plimsoll.planners.formats import tensor_bytes
from plimsoll.planners.ground.errors import InvalidModelConfig, InvalidQuestion
from plimsoll.planners.jobs.adapters import check_targets
from plimsoll.planners.questions import Lora
from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.proofs.count.module import whole_module
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.kernels.four_bit import FourBitLinear
from tests.service.worker.cases import config, requested_bytes, traced

LORA = Lora(rank=4, target_modules=("q_proj", "v_proj"))
ADAPTERS, ADAPTER_TENSORS = 1_792, 8
ALL_ELEMENTS = 105_408
PACKED = 2 * 46_080
REPLICATED = {"framework": "ddp", "zero_stage": 0, "lora": LORA}


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def replicated():
    return traced(method="lora", **REPLICATED)


def test_the_base_takes_two_bytes_and_an_adapter_four(replicated):
    assert requested_bytes(replicated, Kind.PARAMETER) == 2 * ALL_ELEMENTS + 4 * ADAPTERS


def test_only_adapters_have_gradients_buckets_and_moments(replicated):
    assert requested_bytes(replicated, Kind.GRADIENT) == 4 * ADAPTERS
    assert requested_bytes(replicated, Kind.COMMUNICATION) == 4 * ADAPTERS
    assert requested_bytes(replicated, Kind.OPTIMIZER_STATE) == 8 * ADAPTERS + 4 * ADAPTER_TENSORS


def test_four_ranks_shard_base_and_adapters():
    # Base: 26,448 elements a rank (see test_step). Adapters: A one row of 64, B 16 and 8 rows of 4: 64 + 64 + 64 + 32.
    ledger = traced(method="lora", lora=LORA)
    assert requested_bytes(ledger, Kind.PARAMETER) == 2 * 26_448 + 4 * 2 * 224


def test_a_four_bit_base_leaves_embedding_head_and_norms_in_16_bits():
    ledger = traced(method="qlora", **REPLICATED)
    packed_bytes = PACKED // 2
    assert requested_bytes(ledger, Kind.PARAMETER) == 2 * (ALL_ELEMENTS - PACKED) + packed_bytes + 4 * ADAPTERS


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("features", [(64, 176), (33, 7)])
def test_a_packed_layer_takes_what_the_planner_counts_and_its_codebook(features, double):
    linear = torch.nn.Linear(*features, bias=False, dtype=torch.bfloat16, device="meta")
    with torch.device("meta"):
        layer = FourBitLinear(linear, double_quantization=double)
    held = [*layer.parameters(), *layer.buffers()]
    stored = sum(tensor.untyped_storage().nbytes() for tensor in held)
    assert stored == tensor_bytes("nf4", features[::-1], double_quantization=double) + 16 * 4


def test_scales_are_on_every_rank_and_packed_weights_on_one():
    whole, sharded = (traced(method="qlora", lora=LORA, data_parallel=ranks) for ranks in (1, 4))
    assert requested_bytes(whole, Kind.BUFFER) == requested_bytes(sharded, Kind.BUFFER)
    assert requested_bytes(whole, Kind.PARAMETER) > 3 * requested_bytes(sharded, Kind.PARAMETER)


def test_targets_that_no_layer_has_are_no_question():
    with pytest.raises(InvalidQuestion, match="c_attn"):
        traced(method="lora", lora=Lora(target_modules=("c_attn",)))


def test_a_fused_loss_makes_no_gradient_of_a_frozen_head():
    # With 4,001 words the head's gradient would be 2 x 4,001 x 64 bytes.
    ledger = traced(method="lora", lora=LORA, fused_cross_entropy=True, config=config(vocab_size=4001))
    made = [event.piece for event in ledger.events if event.piece.kind is Kind.FORWARD_ACTIVATION]
    assert all(piece.requested_bytes != 2 * 4001 * 64 for piece in made)


# 64 tokens of 32 features in 16 bits, those of the keys; labels and losses take less.
STATES_BYTES = 64 * 32 * 2


def _activations(**changes):
    # With 4,001 words the backward pass is fullest at the loss, when all layers still have what they saved.
    ledger = traced(**{"lora": LORA, "config": config(vocab_size=4001)} | changes)
    backward = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "backward"]
    live = ledger.peak(*backward[-1]).live
    return sum(
        piece.requested_bytes for piece in live if piece.requested_bytes >= STATES_BYTES and "activation" in piece.kind
    )


def test_under_autocast_each_adapter_saves_a_cast_of_its_own():
    # Queries and values save one more tensor of 64 tokens of 64 features, in each of two layers.
    whole, sharded = (_activations(method="lora", **ways) for ways in ({"framework": "ddp", "zero_stage": 0}, {}))
    assert whole - sharded == 2 * 64 * 64 * 2


def test_beside_four_bits_adapters_share_their_input_under_autocast_too():
    whole, sharded = (_activations(method="qlora", **ways) for ways in ({"framework": "ddp", "zero_stage": 0}, {}))
    assert whole == sharded


TEXTBOOK = {"framework": "reference", "zero_stage": 0, "method": "lora", "lora": Lora(rank=4), "data_parallel": 2}


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_over_tensor_ranks_the_factor_that_faces_the_split_is_halved(sequence_parallel):
    # Rank 4 on a layer's seven matrices. Beside columns A stays whole, 4 x 64 five times, and B is halved: of
    # 64 + 32 + 32 + 176 + 176 rows of 4. Beside rows A is halved, of 4 x (64 + 176), and B whole, 64 x 4 twice.
    layer = 5 * 4 * 64 + 4 * 480 // 2 + 4 * 240 // 2 + 2 * 4 * 64
    split = traced(**TEXTBOOK, tensor_parallel=2, sequence_parallel=sequence_parallel)
    # Fp32 copy and two moments beside 16-bit adapters, and a counter for each of 28 tensors.
    assert requested_bytes(split, Kind.OPTIMIZER_STATE) == 12 * 2 * layer + 4 * 28


def test_a_stage_of_a_pipeline_trains_the_adapters_of_its_own_layer():
    stage = PipelineStage(number=1, stages=2, first_layer=1, last_layer=1)
    # Rank 4 times the inputs of seven matrices, down's the longer one, and times their outputs.
    layer = 4 * (6 * 64 + 176) + 4 * (64 + 32 + 32 + 64 + 176 + 176 + 64)
    ledger = traced(stage, **TEXTBOOK, pipeline_parallel=2, accumulation_steps=2)
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 12 * layer + 4 * 14


# Tables of positions and of kinds of tokens; BERT's second head.
NO_TARGETS = {
    "wpe", "embed_positions", "position_embeddings", "position_embedding", "token_type_embeddings", "pos_embed",
    "relative_attention_bias", "embedding", "tile_embedding", "seq_relationship",
}  # fmt: skip
# Known by the names of their checkpoints, which transformers gives others as it loads them.
NAMED_BY_CHECKPOINT = {"bert", "deepseek_v4", "gpt_neox", "kimi_k25", "minimax_m3_vl", "phimoe", "step3p7", "t5"}


def smallest_of_each_family():
    by_size = sorted(catalogue().models, key=lambda model: model.published_parameters or 0)
    return {model.config["model_type"]: model.config for model in reversed(by_size)}


def own_names(values):
    """Return the names of transformers' matrices that peft puts adapters beside."""
    kinds = (torch.nn.Linear, torch.nn.Embedding, Conv1D)
    modules = whole_module(values).named_modules()
    return {path.rsplit(".", 1)[-1] for path, module in modules if isinstance(module, kinds)}


def test_every_matrix_of_transformers_can_be_named_as_a_target():
    refused, seen = set(), 0
    for model_type, values in smallest_of_each_family().items():
        try:
            names = own_names(values) - NO_TARGETS
        except InvalidModelConfig:
            continue  # of code that a checkpoint brings with it
        model, seen = describe_config(values, name=model_type), seen + 1
        for name in names:
            try:
                check_targets(model, Lora(target_modules=(name,)))
            except InvalidQuestion:
                refused.add(model_type)
    assert refused == NAMED_BY_CHECKPOINT
    assert seen > 50


def test_behind_a_dropout_each_adapter_saves_its_mask_and_what_is_left():
    # Queries and values save 64 tokens of 64 features in 16 bits each, in place of one input for both, and a byte each
    # but in the first layer, whose input needs no gradient.
    plain, dropping = (
        _activations(method="lora", lora=dataclasses.replace(LORA, dropout=dropout)) for dropout in (None, 0.1)
    )
    assert dropping - plain == ((2 * 2 - 2) + (2 * (2 + 1) - 2)) * 64 * 64
