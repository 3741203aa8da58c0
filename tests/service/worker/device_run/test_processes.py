"""Several real ranks: started, listened to, and ended together."""

import sys

import pytest

from service.worker.device_run.devices import find_device
from service.worker.device_run.processes import RankEnded, run_ranks
from tests.service.worker.dry_run.cases import request

TWO = {"data_parallel": 2, "shard_group": 2, "gpus": 2, "gradient_accumulation_steps": 1, "micro_batch_size": 8}
# Loading torch and transformers takes half of it.
LITTLE_BYTES = 3 << 29


def cpu():
    return find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_says_where_and_ends_the_others():
    # A layer's eager scores: 8 sequences x 4 heads x 4,096 x 4,096 x 2 bytes = 1 GiB, several times over.
    asked = request("device", training={"sequence_length": 4096, "attention": "eager"}, layout=TWO)
    said = []
    accounts = run_ranks(
        asked, cpu(), ranks=2, memory_bytes=LITTLE_BYTES, report=lambda *progress: said.append(progress)
    )
    assert 1 <= len(accounts) <= 2
    for account in accounts:
        told = account["out_of_memory"]
        assert (told["step"], told["phase"]) == (0, "forward")
        assert told["wanted_bytes"] >= 1 << 28
        assert 0 < told["allocated_bytes"] <= told["peak_bytes_so_far"] < LITTLE_BYTES
    assert [message for *_, message in said] == ["building and sharding", "step 1 of 3"]


def test_a_rank_that_ends_without_a_word_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RankEnded, match="status 1"):
        run_ranks(request("device", layout=TWO), cpu(), ranks=2, memory_bytes=None, report=lambda *_progress: None)
