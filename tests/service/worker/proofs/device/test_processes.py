"""Several real ranks: started, listened to, and ended together, whatever one of them does."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from plimsoll.service.ground.errors import RankFailed
from plimsoll.service.worker.devices.device import find_device
from plimsoll.service.worker.proofs.device.processes import run_ranks
from tests.service.worker.cases import request

TWO = {"data_parallel": 2, "shard_group": 2, "gpus": 2, "gradient_accumulation_steps": 1, "micro_batch_size": 8}
# Loading torch and transformers takes half of it.
LITTLE_BYTES = 3 << 29
# Far more than two ranks are apart on a busy machine, and far less than a test may take.
PATIENCE_SECONDS = 60.0
# Where a rank is to be given up, both have met by then.
SHORT_PATIENCE_SECONDS = 20.0
ACCOUNT = '{"out_of_memory": null}'


def cpu():
    return find_device("cpu", planned_gpu="h100-sxm-80gb", any_gpu_kind=False)


def run(*, memory_bytes=None, report=lambda *_progress: None, training=None, patience_seconds=PATIENCE_SECONDS):
    asked = request("device", layout=TWO, **({"training": training} if training else {}))
    return run_ranks(asked, cpu(), ranks=2, memory_bytes=memory_bytes, report=report, patience_seconds=patience_seconds)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Run a shell's words instead of a rank; `$folder` is the ranks' own, and `$RANK` is set."""

    def put(words):
        script = tmp_path / "rank"
        script.write_text(f"#!/bin/sh\nfor folder; do :; done\n{words}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return put


def living_ranks():
    """Return this process's children that are ranks, by their numbers; it may have others."""
    living = {}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if (rank := child.environ().get("RANK")) is not None:
                living[int(rank)] = child
    return living


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_says_where_and_ends_the_others():
    # A layer's eager scores: 8 sequences x 4 heads x 4,096 x 4,096 x 2 bytes = 1 GiB, several times over.
    said = []
    accounts = run(
        memory_bytes=LITTLE_BYTES,
        report=lambda *progress: said.append(progress),
        training={"sequence_length": 4096, "attention": "eager"},
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
    with pytest.raises(RankFailed, match="status 1"):
        run()


def test_the_last_words_of_every_rank_are_kept_and_nobody_lives_on(stand_in, capsys):
    # The one that fails waits until the other has spoken.
    stand_in(
        'echo "rank $RANK was here" >&2\n'
        '[ "$RANK" = 0 ] && { touch "$0.spoke"; exec sleep 600; }\n'
        'until [ -e "$0.spoke" ]; do sleep 0.01; done\nexit 3'
    )
    with pytest.raises(RankFailed, match="Rank 1 of 2 ended with status 3"):
        run()
    assert capsys.readouterr().err == "Rank 0:\n  rank 0 was here\nRank 1:\n  rank 1 was here\n"
    assert not living_ranks()


def test_ranks_that_hang_after_their_account_are_done(stand_in):
    stand_in(f"echo '{ACCOUNT}' >$folder/part$RANK; mv $folder/part$RANK $folder/rank$RANK.json; exec sleep 600")
    assert len(run()) == 2
    assert not living_ranks()


def test_one_that_crashes_after_its_account_is_done(stand_in):
    stand_in(f"echo '{ACCOUNT}' >$folder/part$RANK; mv $folder/part$RANK $folder/rank$RANK.json; exit 3")
    assert len(run()) == 2


def test_a_task_that_is_told_to_end_ends_its_ranks_and_leaves_their_last_words(stand_in, capsys, tmp_path):
    stand_in(f'echo "rank $RANK was here" >&2; : >{tmp_path}/begun$RANK; exec sleep 600')

    def end_it():
        while len(list(tmp_path.glob("begun*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end_it)
    ending.start()
    with pytest.raises(SystemExit):
        run()
    ending.join()
    assert "rank 0 was here" in (told := capsys.readouterr().err)
    assert "rank 1 was here" in told
    assert not living_ranks()


def test_a_task_that_is_told_to_end_while_its_ranks_start_leaves_none_behind(stand_in, capsys, monkeypatch):
    stand_in('echo "rank $RANK was here" >&2; : >"$0.begun$RANK"; exec sleep 600')
    begun = [Path(f"{sys.executable}.begun{rank}") for rank in range(2)]
    start = subprocess.Popen

    def interrupted(*arguments, **options):
        process = start(*arguments, **options)
        # The last one lives before it is known to who started it.
        while (rank := int(options["env"]["RANK"])) == 1 and not begun[rank].exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(SystemExit):
        run()
    assert "Rank 1:\n  rank 1 was here" in capsys.readouterr().err
    assert not living_ranks()


@pytest.mark.slow
def test_a_rank_that_gets_no_further_is_given_up_and_the_others_say_where_they_stood(capsys):
    def stop_the_other(_done, _total, _unit, message):
        if message == "step 1 of 3":
            living_ranks()[1].suspend()

    with pytest.raises(RankFailed, match="Rank 0 of 2"):
        run(report=stop_the_other, patience_seconds=SHORT_PATIENCE_SECONDS)
    assert "imed out" in capsys.readouterr().err
    assert not living_ranks()
