"""A preference pair's loss by TRL's own code, on fake tensors."""

import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import config, requested_bytes, traced

pytest.importorskip("trl")

# Embedding and head 101 x 64 each, two layers of 46,208 (12,288, 33,792, and norms of 128), a norm of 64.
ELEMENTS = 105_408
# The first of four ranks has 26 rows of both tables, and a quarter of the rest.
SHARD = 2 * 26 * 64 + (2 * 46_208 + 64) // 4
# TRL's tile is as wide as 32,768 entries of a vocabulary; 2 sequences of 31 tokens are scored, in 16 bits.
TILE = 2 * 62 * 32_768


def beside(**changes):
    return traced(**({"reference": "bf16"} | changes))


def of_reference(ledger):
    return sum(piece.requested_bytes for piece in ledger.peak().live if piece.origin.startswith("reference."))


@pytest.mark.parametrize(("precision", "width"), [("bf16", 2), ("fp32", 4)])
def test_the_reference_is_sharded_like_the_policy(precision, width):
    assert of_reference(beside(reference=precision)) == width * SHARD


def test_without_shards_every_rank_has_the_whole_reference():
    assert of_reference(beside(zero_stage=0)) == 2 * ELEMENTS


def test_fsdp2_gathers_the_whole_reference_at_once():
    # TRL shards it as one unit, whose parts of all ranks lie in one buffer; the policy's own units are smaller.
    assert 2 * 4 * SHARD in {event.piece.requested_bytes for event in beside().events}


def test_at_zero_stage_2_the_reference_stays_gathered():
    sharded, gathered = (requested_bytes(beside(zero_stage=stage), Kind.GATHERED_PARAMETER) for stage in (3, 2))
    assert gathered - sharded == 2 * 4 * SHARD


def test_logits_are_made_a_tile_at_a_time():
    assert requested_bytes(beside(), Kind.LOGITS, phase="forward") == TILE


def test_a_tied_head_and_adapters_are_traced_too():
    tied = config(tie_word_embeddings=True)
    assert of_reference(beside(config=tied, zero_stage=0)) == 2 * (ELEMENTS - 101 * 64)
    assert of_reference(beside(method="lora", zero_stage=0)) == 2 * ELEMENTS
