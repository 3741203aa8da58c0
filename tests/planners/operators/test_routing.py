import numpy as np
import pytest

from plimsoll.planners.operators.routing import EVEN, Popularity, Routing, busiest_part, choices, touched

ZIPF = Routing(popularity=Popularity.ZIPF, exponent=0.8)
DRAWN = Routing(popularity=Popularity.DRAWN, exponent=1.01)


def test_tokens_drawn_evenly_touch_some_experts_twice():
    assert touched(1, 128, 8) == pytest.approx(8)
    assert touched(16, 128, 8) == pytest.approx(128 * (1 - (15 / 16) ** 16))
    assert touched(10_000, 128, 8, ranks=8) == pytest.approx(16)


@pytest.mark.parametrize("routing", [EVEN, ZIPF, DRAWN])
def test_choices_add_up_and_no_token_chooses_an_expert_twice(routing):
    each = choices(np.array([1, 7, 64, 4096]), 128, 8, routing)

    assert each.sum(axis=-1).tolist() == pytest.approx([8, 56, 512, 32_768])
    assert (each <= np.array([[1], [7], [64], [4096]]) * (1 + 1e-12)).all()


def test_a_popular_expert_takes_no_more_than_all_tokens():
    # 2 of 3 experts a token: shares of 1, 1/4 and 1/9 would send 1.47 choices a token to the first.
    each = choices(9, 3, 2, Routing(popularity=Popularity.ZIPF, exponent=2))

    assert each.tolist() == pytest.approx([9, 9 * 9 / 13, 9 * 4 / 13])


def test_uneven_choices_touch_fewer_experts():
    tokens = np.array([4, 16, 64])

    assert (touched(tokens, 128, 8, routing=ZIPF) < touched(tokens, 128, 8)).all()


def sampled(tokens, exponent, ranks, draws=200):
    """Return the touched experts and the part of the busiest rank, each token's 8 of 128 drawn one after the other."""
    random = np.random.default_rng(3)
    log_shares = -exponent * np.log(np.arange(1, 129))
    found = []
    for _ in range(draws):
        # The k largest of logarithms with Gumbel noise are k draws without putting back (Gumbel-top-k).
        wanted = np.argsort(log_shares + random.gumbel(size=(tokens, 128)), axis=1)[:, -8:]
        counts = np.bincount(wanted.ravel(), minlength=128)[random.permutation(128)].reshape(ranks, -1)
        busiest = counts[counts.sum(axis=1).argmax()]
        found.append(((busiest > 0).sum(), busiest.sum() / tokens / 8))
    return np.mean(found, axis=0)


@pytest.mark.parametrize(("tokens", "ranks"), [(4, 1), (32, 1), (32, 8), (256, 8)])
def test_zipf_is_near_draws_of_each_tokens_experts(tokens, ranks):
    experts, part = sampled(tokens, 0.8, ranks)

    assert touched(tokens, 128, 8, ranks, ZIPF) == pytest.approx(experts, rel=0.09)
    assert busiest_part(tokens, 128, 8, ranks, ZIPF) == pytest.approx(part, rel=0.06)


# Means of 60 draws by the collector's own rules: power_law_1.01, top 8 of 256.
@pytest.mark.parametrize(
    ("tokens", "ranks", "experts"), [(16, 1, 97.1), (64, 1, 193.4), (256, 1, 220.5), (64, 8, 26.7)]
)
def test_drawn_is_near_the_collectors_draws(tokens, ranks, experts):
    assert touched(tokens, 256, 8, ranks, DRAWN) == pytest.approx(experts, rel=0.06)


def test_the_busiest_of_two_even_ranks_has_a_little_more_than_half():
    # 64 tokens x 8 of 128 over 2 ranks: each count varies by 512 / 128 x (1 - 8 / 128) = 3.75, a rank of 64 by 15.5;
    # Blom's quantile of two is 0.5895 standard deviations.
    assert busiest_part(64, 128, 8, 2) == pytest.approx(0.5 + 0.5895 * 15.492 / 512, rel=1e-3)
    assert busiest_part(64, 128, 8, 1) == 1


# Means of 300 draws of 8 of 256 for each token, over 8 ranks: experts touched on the busiest, and its part times 8.
@pytest.mark.parametrize(("tokens", "experts", "part"), [(4, 6.42, 1.73), (16, 16.11, 1.356), (64, 29.3, 1.188)])
def test_the_busiest_even_rank_is_near_draws(tokens, experts, part):
    assert touched(tokens, 256, 8, ranks=8) == pytest.approx(experts, rel=0.04)
    assert 8 * busiest_part(tokens, 256, 8, 8) == pytest.approx(part, rel=0.02)
