"""One rank's part of a model's matrices."""

import pytest
import torch

from plimsoll.service.worker.serving.divided_layers import GatheredHead, RowLinear, VocabularyRows, divide
from plimsoll.service.worker.training.building import causal_model
from plimsoll.service.worker.training.rank import process_group_of
from tests.service.worker.cases import config


def divided(ranks, **changes):
    import torch.distributed as dist

    with process_group_of(ranks), torch.device("meta"):
        model = causal_model(config(vocab_size=128, **changes), dtype=torch.bfloat16)
        divide(model, dist.group.WORLD)
    return model


@pytest.mark.parametrize(("ranks", "query_rows", "key_rows"), [(2, 32, 16), (4, 16, 16)])
def test_a_rank_has_its_heads_and_one_of_keys_at_least(ranks, query_rows, key_rows):
    attention = divided(ranks).model.layers[0].self_attn
    assert attention.q_proj.weight.shape == (query_rows, 64)
    assert attention.k_proj.weight.shape == attention.v_proj.weight.shape == (key_rows, 64)
    assert isinstance(attention.o_proj, RowLinear)
    assert attention.o_proj.part.weight.shape == (64, query_rows)


def test_a_tied_head_has_the_embedding_s_rows():
    model = divided(2, tie_word_embeddings=True)
    assert isinstance(model.model.embed_tokens, VocabularyRows)
    assert isinstance(model.lm_head, GatheredHead)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (64, 64)


def test_sinks_are_divided_with_the_heads():
    model = divided(
        2, model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, layer_types=["full_attention"] * 2
    )
    assert model.model.layers[0].self_attn.sinks.shape == (2,)
