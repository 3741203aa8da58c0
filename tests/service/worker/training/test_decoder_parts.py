"""Small models of families whose parts have other names, traced as Llama is; sizes of `cases`."""

import pytest
import torch

from plimsoll.planners.questions import Lora
from plimsoll.service.worker.jobs.config_keys import depth_key, hidden_size, number_of_layers
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.recording.patches import traceable_torch
from plimsoll.service.worker.training.building import causal_model
from plimsoll.service.worker.training.decoder_parts import (
    decoder_layers,
    has_tied_head,
    head,
    last_norm,
    leave_layers,
    take_embedding,
    take_head,
    token_embedding,
)
from plimsoll.service.worker.training.kernels.attention import traced_attention
from plimsoll.service.worker.training.kernels.fused_loss import fuse_loss
from tests.service.worker.cases import config, requested_bytes, traced

GPT_2 = {
    "model_type": "gpt2", "vocab_size": 101, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32,
}  # fmt: skip
OPT = config(model_type="opt", ffn_dim=176, word_embed_proj_dim=64, tie_word_embeddings=True)
OTHERS = [GPT_2, config(model_type="gpt_neox"), OPT, config(model_type="phi"), GPT_2 | {"model_type": "gpt_bigcode"}]


@pytest.mark.parametrize("values", OTHERS, ids=lambda values: values["model_type"])
def test_every_part_is_found_under_the_family_s_own_name(values):
    with torch.device("meta"):
        model = causal_model(values, dtype=torch.bfloat16)
    assert len(decoder_layers(model)) == number_of_layers(values) == 2
    assert token_embedding(model).weight.shape == head(model).weight.shape == (101, hidden_size(values))
    assert last_norm(model).weight.shape == (64,)
    assert has_tied_head(model) is (values["model_type"] in ("gpt2", "gpt_bigcode", "opt"))


# Granite multiplies what it embeds by 12 and divides logits by 13, Gemma 2 caps logits at 30.
SCALED = [
    config(model_type="granite", embedding_multiplier=12.0, logits_scaling=13.0),
    config(model_type="gemma2", final_logit_softcapping=30.0),
]


@pytest.mark.parametrize("values", SCALED, ids=lambda values: values["model_type"])
def test_a_stage_in_the_middle_neither_scales_what_it_receives_nor_what_it_sends(values):
    model = causal_model(values, dtype=torch.float32).eval()
    received = torch.randn(1, 8, 64)
    inputs = {"inputs_embeds": received, "position_ids": torch.arange(8)[None]}
    seen = []
    decoder_layers(model)[1].register_forward_hook(lambda _layer, entered, output: seen.append((entered[0], output)))
    leave_layers(model, 1, 1)
    take_embedding(model)
    take_head(model)
    sent = model(**inputs).logits
    ((entered, output),) = seen
    assert entered is received
    assert sent is output


def test_the_last_stage_scales_its_logits():
    values = SCALED[0]
    model = causal_model(values, dtype=torch.float32).eval()
    leave_layers(model, 1, 1)
    take_embedding(model)
    hidden = torch.randn(1, 8, 64)
    decoder = model.model(inputs_embeds=hidden).last_hidden_state
    torch.testing.assert_close(model(inputs_embeds=hidden).logits, head(model)(decoder) / 13.0)


def test_a_config_tells_its_depth_by_its_own_name():
    assert depth_key(GPT_2) == "n_layer"
    assert depth_key(config()) == "num_hidden_layers"


@pytest.mark.slow
def test_adapters_stand_beside_matrices_with_the_input_s_features_first():
    # c_attn is 64 x 192: A 4 x 64 and B 192 x 4 in fp32, of two layers.
    lora = Lora(rank=4, target_modules=("c_attn",))
    ledger = traced(config=GPT_2, framework="ddp", zero_stage=0, method="lora", lora=lora)
    assert requested_bytes(ledger, Kind.GRADIENT) == 4 * 2 * 4 * (64 + 192)


def test_dropout_keeps_a_mask_of_a_byte_an_element_as_on_cuda():
    hidden = torch.ones(8, 64, dtype=torch.bfloat16, requires_grad=True)
    kept = []
    with traceable_torch(), torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, id):
        torch.nn.functional.dropout(hidden, 0.1, training=True)
    assert [(saved.dtype, saved.shape) for saved in kept] == [(torch.bool, hidden.shape)]


@pytest.mark.parametrize(("probability", "training"), [(0.0, True), (0.1, False)])
def test_dropout_that_drops_nothing_keeps_nothing(probability, training):
    hidden = torch.ones(8, 64)
    with traceable_torch():
        assert torch.equal(torch.nn.functional.dropout(hidden, probability, training=training), hidden)


def test_sinks_have_a_gradient_and_leave_the_output_as_it_is():
    query, key, value = torch.randn(3, 1, 4, 8, 16, dtype=torch.bfloat16)
    sinks = torch.zeros(4, dtype=torch.bfloat16, requires_grad=True)
    plain, _ = traced_attention(torch.nn.Module(), query, key, value, None)
    output, _ = traced_attention(torch.nn.Module(), query, key, value, None, s_aux=sinks)
    output.sum().backward()
    assert torch.equal(output, plain)
    assert sinks.grad.shape == sinks.shape


@pytest.mark.parametrize("values", OTHERS, ids=lambda values: values["model_type"])
def test_a_fused_loss_finds_decoder_and_head_of_every_family(values):
    model = causal_model(values, dtype=torch.float32)
    fuse_loss(model)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert token_embedding(model).weight.grad is not None
