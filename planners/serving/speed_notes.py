"""What a serving answer's latencies rest on, in sentences: whose kernels were measured where, and what stands in."""

from __future__ import annotations

from collections.abc import Iterator

from plimsoll.planners.ground.figures import listed
from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.tables import Evidence
from plimsoll.planners.serving.releases.profile import EngineProfile
from plimsoll.planners.serving.releases.tables import read_table
from plimsoll.planners.serving.times.efficiency import CARD_SPREAD, LAYOUT_SPREAD
from plimsoll.planners.serving.times.replica_work import ReplicaWork

SPARSE = "sparse_token_block"
# How operators are called in a sentence.
OPERATOR_WORDS = {
    "products": "matrix products",
    "experts": "experts",
    "collectives": "all-reduces",
    "token_attention": "attention",
    "latent_token_attention": "latent attention",
    SPARSE: "sparse latent attention",
    "exchanges": "exchanges between experts",
    "gated_delta": "linear attention",
    "channel_delta": "linear attention",
}
OWN_LIBRARY = "nccl"
BANDS = "Nine in ten of those lie between the low and high ends, each with its model left out of the fit."


def speed_notes(profile: EngineProfile, gpu: Gpu, work: ReplicaWork) -> Iterator[str]:
    """Yield what a deployment's latencies were worked out from."""
    yield (
        f"Latencies add up measured times of single operators ({_cards(work)}) and what {profile.title} takes beside "
        f"them, fitted to public runs of eight models on H100, H200, B200 and B300. {BANDS}"
    )
    if work.unseen:
        yield (
            f"No public run with {listed(work.unseen)} was fitted: the error bands are {LAYOUT_SPREAD:g} times as wide."
        )
    if not work.is_own_card:
        yield from _other_cards(gpu, work)
    if any(each.operator == SPARSE for each in work.evidence):
        yield (
            "Sparse attention of prompts is taken to reach 0.6 of the card's published rates, its indexer 0.4: "
            "measured blocks of three engines differ by three."
        )
    others = sorted({OPERATOR_WORDS.get(each.operator, each.operator) for each in work.evidence if _stands_in(each)})
    if others:
        yield f"No kernel of {profile.title}'s own was measured for {listed(others)}: another engine's stands in."


def _stands_in(evidence: Evidence) -> bool:
    return not evidence.is_own_engine


def _other_cards(gpu: Gpu, work: ReplicaWork) -> Iterator[str]:
    cards = sorted({each.card for each in work.evidence if not each.is_own_card})
    if cards:
        yield (
            f"Of {gpu.id} no such times are known: those of {listed(cards)} are scaled by the cards' published rates, "
            f"and the error bands are {CARD_SPREAD:g} times as wide."
        )
    if not work.is_measured:
        yield (
            "Some layers' attention or recurrence was measured on no card: it is taken to reach 0.6 of the card's "
            "published rates."
        )


def _cards(work: ReplicaWork) -> str:
    """Return which releases were measured on which cards, NCCL apart."""
    by_card: dict[str, dict[str, None]] = {}
    for each in work.evidence:
        if each.engine != OWN_LIBRARY:
            release = f"{read_table(each.engine)['title']} {each.release}"
            by_card.setdefault(each.card, {})[release] = None
    return "; ".join(f"{listed(list(releases))} on {card}" for card, releases in by_card.items())
