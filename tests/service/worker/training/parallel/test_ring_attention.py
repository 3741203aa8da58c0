import pytest

from plimsoll.service.worker.recording.ledger import Kind
from tests.service.worker.cases import config, requested_bytes, traced, traced_on_transformers
from tests.service.worker.training.test_step import SHARD_ELEMENTS


@pytest.fixture(scope="module")
def ledger():
    return traced(framework="fsdp2", data_parallel=2, context_parallel=2, config=config(vocab_size=4004))


@pytest.mark.slow
class TestContextParallelism:
    def test_parameters_are_sharded_over_ranks_of_both_kinds(self):
        # As over four data-parallel ranks.
        ledger = traced(framework="fsdp2", data_parallel=2, context_parallel=2)
        assert requested_bytes(ledger, Kind.PARAMETER) == 4 * SHARD_ELEMENTS

    def test_a_rank_has_the_logits_of_its_own_tokens(self, ledger):
        # 2 sequences of 32 / 2 tokens, 4,004 words, three fp32 copies.
        assert requested_bytes(ledger, Kind.LOGITS, phase="backward") == 3 * 4 * 32 * 4004

    def test_keys_and_values_are_gathered_and_let_go_of_in_every_layer(self, ledger):
        gathers = [event for event in ledger.events if "all_gather_into_tensor" in event.piece.origin]
        made = [event for event in gathers if not event.is_release]
        # Two layers, forwards and backwards, in each of two steps.
        assert len(made) == 2 * 2 * 2
        assert len(gathers) == 2 * len(made)

    def test_megatron_divides_its_optimizer_over_ranks_of_both_kinds_and_copies_no_output(self):
        ledger = traced_on_transformers(framework="megatron", zero_stage=1, data_parallel=2, context_parallel=2)
        # 105,408 parameters, each tensor in four equal parts: fp32 copy and two moments, and 21 tensors' counters.
        assert requested_bytes(ledger, Kind.OPTIMIZER_STATE) == 12 * 105_408 // 4 + 4 * 21
