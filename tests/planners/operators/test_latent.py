import numpy as np

from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.operators.latent import latent_prompt_attention, latent_token_attention

H200 = catalogue().gpu("h200-sxm-141gb")


def test_latents_are_read_once_for_all_heads():
    priced = latent_token_attention(H200, "sglang")
    read = 2 * 576 * 64 * 8192 / H200.memory_bytes_per_second

    assert read < priced.seconds(64, 8192, 16) < 4 * read


def test_more_sequences_longer_caches_and_more_heads_never_take_less():
    random = np.random.default_rng(1)
    b, s, h = (np.exp2(random.uniform(0, top, 300)) for top in (9, 14, 7))
    for priced in (latent_token_attention(H200, "trtllm"), latent_prompt_attention(H200, "sglang")):
        before = priced.seconds(b, s, h)
        assert (priced.seconds(1.5 * b, s, h) >= before * (1 - 1e-9)).all()
        assert (priced.seconds(b, 1.5 * s, h) >= before * (1 - 1e-9)).all()
        assert (priced.seconds(b, s, 1.5 * h) >= before * (1 - 1e-9)).all()
