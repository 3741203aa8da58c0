"""torchtune's own steps in a trace: its model, sharding, loss, adapters and what waits on the host."""

import importlib.util
import sys

import pytest

from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.questions import Lora
from plimsoll.service.worker.proofs.trace.notes import step_notes, traced_with
from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.stacks.found import find_stack
from tests.service.worker.cases import config, job, requested_bytes, traced, traced_once

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchtune") is None, reason="torchtune is not installed")

# Embedding and head of 104 rows, two layers of 46,208 elements and a norm of 64 (cases.py).
VOCABULARY, HIDDEN, LAYER, RANKS = 104, 64, 46_208, 4
LLAMA = config(vocab_size=VOCABULARY, head_dim=None)
ELEMENTS = 2 * VOCABULARY * HIDDEN + 2 * LAYER + HIDDEN
# Two sequences of 64 tokens: eight chunks of 2 x 8.
BATCH, LENGTH, CHUNKS = 2, 64, 8
LOGITS = BATCH * LENGTH * VOCABULARY
# The counts of the optimizer's steps, 4 bytes each of 21 parameters.
COUNTS_BYTES = 84


def torchtune(run=traced_once, **changes):
    values = {"framework": "torchtune", "config": LLAMA, "precision": "bf16", "sequence_length": LENGTH}
    return run(**(values | {"micro_batch_size": BATCH} | changes))


def most_logits(ledger, phase):
    """Return the most bytes of logits at a time in the last such phase."""
    ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == phase]
    live = most = 0
    for event in ledger.events[slice(*ranges[-1])]:
        if event.piece.kind is Kind.LOGITS:
            live += -event.piece.requested_bytes if event.is_release else event.piece.requested_bytes
            most = max(most, live)
    return most


def test_a_rank_has_its_shards_in_the_recipe_s_one_format():
    ledger = torchtune()
    assert requested_bytes(ledger, Kind.PARAMETER) == 2 * ELEMENTS / RANKS
    assert requested_bytes(ledger, Kind.GRADIENT) == 2 * ELEMENTS / RANKS
    assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 4 * ELEMENTS / RANKS + COUNTS_BYTES


def test_the_loss_keeps_16_bit_logits_and_all_chunks_softmax_and_casts_one_chunk():
    # 2 bytes a logit, 4 of the log-softmax, and 4 of one chunk in eight.
    assert most_logits(torchtune(), "forward") == LOGITS * (2 + 4 + 4 / CHUNKS)


def test_angles_are_one_table_in_fp32_of_all_layers_and_one_a_layer_beside_adapters():
    # Cosines and sines of 128 positions and 8 frequencies in fp32, and the frequencies.
    table = 128 * 8 * 2 * 4 + 8 * 4
    assert requested_bytes(torchtune(), Kind.BUFFER) == table
    adapters = {"method": "lora", "lora": Lora(rank=4)}
    assert requested_bytes(torchtune(**adapters), Kind.BUFFER) == 2 * table


def test_only_adapters_have_gradients_in_lora():
    # Ranks of 4 beside q, o of 64 x 64, k, v of 64 x 32, and gate, up, down of 64 x 176: the sums of both lengths.
    adapters = 2 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 176))
    ledger = torchtune(method="lora", lora=Lora(rank=4))
    assert requested_bytes(ledger, Kind.GRADIENT) == 2 * adapters / RANKS


def test_qlora_shards_four_bits():
    # 4-bit values need whole blocks: 64 x 256 and more.
    wide = LLAMA | {"hidden_size": 256, "intermediate_size": 512, "num_key_value_heads": 4}
    lora = {"config": wide, "lora": Lora(rank=4)}
    whole, packed = (torchtune(method=method, **lora) for method in ("lora", "qlora"))
    matrices = 2 * (4 * 256 * 256 + 3 * 256 * 512) / RANKS
    saved = requested_bytes(whole, Kind.PARAMETER) - requested_bytes(packed, Kind.PARAMETER)
    # Half a byte each for two, and a scale in eight bits for 64 of them.
    assert saved == pytest.approx(matrices * (2 - 0.5 - 1 / 64), rel=0.01)


def test_recomputed_layers_keep_their_inputs_every_second_one_half_of_them():
    def kept(**changes):
        ledger = torchtune(**changes)
        ranges = [(start, end) for mark, start, end in ledger.phase_ranges() if mark.phase == "forward"]
        live = ledger._live_after(ranges[-1][1] - 1)
        return sum(piece.requested_bytes for piece in live if piece.kind is Kind.FORWARD_ACTIVATION)

    none, half, full = kept(), kept(recompute="full", recompute_every=2), kept(recompute="full")
    assert none - half == pytest.approx((none - full) / 2, rel=0.01)


def test_what_waits_on_the_host_is_what_recomputed_layers_keep():
    def on_host(layers):
        offloaded = {"recompute": "full", "activation_offload": True}
        ledger = torchtune(config=LLAMA | {"num_hidden_layers": layers}, **offloaded)
        return ledger.peak(on_host=True).allocated_bytes

    # A layer's input, 128 tokens of 64 features in 2 bytes.
    assert on_host(3) - on_host(2) == 2 * BATCH * LENGTH * HIDDEN


def test_every_state_waits_on_the_host_where_the_recipe_offloads():
    ledger = torchtune(offload="optimizer+parameters")
    # Parameters, gradients and two moments, 2 bytes each.
    held = 8 * ELEMENTS / RANKS
    assert ledger.peak(on_host=True).allocated_bytes == pytest.approx(held + COUNTS_BYTES, rel=0.05)
    on_device = {event.piece.kind for event in ledger.events if not event.piece.on_host}
    assert Kind.OPTIMIZER_STATE not in on_device


def test_a_single_rank_shards_nothing():
    kinds = {event.piece.kind for event in torchtune(data_parallel=1, zero_stage=0).events}
    assert not kinds & {Kind.GATHERED_PARAMETER, Kind.COMMUNICATION}


def test_a_proof_says_that_torchtune_s_own_code_ran():
    wanted, stack = job(framework="torchtune", precision="bf16"), find_stack("torchtune")
    assert traced_with(wanted, stack, on_device=False).startswith("torchtune 0.6.1 under torch ")
    assert any("torchtune's own code ran" in note for note in step_notes(wanted, stack, on_device=False))


def test_a_worker_without_torchtune_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchtune", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NotYetAvailable, match=r"does not have: install torchao .* torchtune 0\.6\.1"):
        torchtune(traced)
