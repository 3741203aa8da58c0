"""Latent caches: one vector a token on every rank, and the copies that decoding multiplies by."""

import pytest
import torch

from plimsoll.service.worker.proofs.serving import measured_terms
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.serving.passes import PROFILE
from plimsoll.service.worker.serving.running import trace_passes
from tests.service.worker.cases import config
from tests.service.worker.serving.cases import deployment
from tests.service.worker.serving.test_running import ran, requested

DEEPSEEK = config(
    model_type="deepseek_v3", kv_lora_rank=32, q_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
    num_key_value_heads=4, head_dim=8, moe_intermediate_size=32, n_routed_experts=4, num_local_experts=4,
    n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
)  # fmt: skip
LATENT = {"kv": {"groups": [{"kind": "latent"}]}, "model": DEEPSEEK}
# [heads, 16, 32] twice for each of two layers, 2 bytes.
COPIES = 2 * 2 * 16 * 32 * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_keeps_the_whole_latent_and_copies_narrow_projections_for_its_own_heads(ranks):
    wanted = deployment(**LATENT, layout={"tensor_parallel": ranks}, settings={"weights": "fp8"})
    ledger = trace_passes(wanted, lambda *_progress: None)
    # 2 layers, 40 blocks of 16 tokens, 32 + 8 features of 2 bytes.
    assert requested(ledger, Kind.KV_CACHE) == 2 * 40 * 16 * 40 * 2
    copies = [piece for piece in ledger.peak().live if piece.origin.endswith(("W_UK_T", "W_UV"))]
    assert sum(piece.requested_bytes for piece in copies) == COPIES * 4 // ranks


def test_of_a_plain_up_projection_there_are_views():
    ledger = trace_passes(deployment(**LATENT), lambda *_progress: None)
    assert not any(piece.origin.endswith(("W_UK_T", "W_UV")) for piece in ledger.peak().live)


def test_a_version_keeps_a_workspace_for_latents_among_its_weights():
    # 128 MiB at 0.19 (the version of these deployments), none at 0.33.
    old, new = (deployment(**LATENT, settings={"engine_version": version}) for version in ("0.19", "0.33"))
    weights = [measured_terms(trace_passes(wanted, lambda *_progress: None))["weights"] for wanted in (old, new)]
    assert weights[0] - weights[1] == 128 << 20


def test_the_profiling_pass_expands_the_largest_context():
    wanted = deployment(**LATENT, settings={"max_model_len": 4096})
    ledger = trace_passes(wanted, lambda *_progress: None)
    (profile,) = ((first, end) for mark, first, end in ledger.phase_ranges() if mark.phase == PROFILE)
    # 8 x 4,096 tokens of 4 heads, 16 + 16 features, 2 bytes.
    assert 8 * 4096 * 4 * 32 * 2 in [piece.requested_bytes for piece in ledger.peak(*profile).live]


def test_the_buffer_of_a_context_stands_beside_the_cache():
    ledger = trace_passes(deployment(**LATENT), lambda *_progress: None)
    # Four blocks of 16 tokens for each of 8 sequences are as many as eight requests of 64 tokens: 512 of 40 features.
    assert 512 * 40 * 2 in [piece.requested_bytes for piece in ledger.peak().live]


def test_a_real_rank_attends_to_its_latents_in_chunks_and_one_by_one():
    wanted = deployment(**LATENT, settings={"max_num_batched_tokens": 20}, layout={"tensor_parallel": 2})
    real, _ = ran(wanted)
    traced = measured_terms(trace_passes(wanted, lambda *_progress: None))
    assert {name: measured_terms(real)[name] for name in ("weights", "kv_cache")} == {
        name: traced[name] for name in ("weights", "kv_cache")
    }


def test_decoding_by_the_up_projection_is_attention_over_expanded_keys():
    from plimsoll.service.worker.serving.cache import BlockCache
    from plimsoll.service.worker.serving.model import load_random, served_model

    wanted = deployment(**LATENT)
    cache = BlockCache(wanted)
    with torch.device("meta"):
        model = served_model(wanted, None, cache, by_shape=False)
    load_random(model, "cpu")
    attention = model.model.layers[0].self_attn.float()
    torch.manual_seed(0)
    query, latents = torch.randn(1, 1, 4, 24), torch.randn(1, 7, 40)
    keys, values = attention._expanded(latents[..., :32], latents)
    # The kernel scales scores by the root of the features it sees, 40 of a latent and 24 of a key.
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), scale=40**-0.5
    )
    assert torch.allclose(attention._decoded(query, latents), expected.transpose(1, 2), atol=1e-5)
