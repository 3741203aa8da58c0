"""Horovod elastic: a golden command, and a discovery script that is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.service.stacks.launches import golden, launch, why_missing, written


def test_the_command_is_the_one_that_was_read_beside_horovods_launcher():
    given = launch("ddp", data_parallel=16, elastic_gpus=(8, 16, 24, 64))
    assert written("horovod", given) == golden("horovod.txt")


def test_the_script_names_the_hosts_that_answer(tmp_path: Path):
    # Two of three hosts answer; horovod reads "host:slots" lines and wants status 0.
    (tmp_path / "ssh").write_text('#!/bin/sh\ncase "$*" in *broken*) exit 255;; esac\n', encoding="utf-8")
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("first\nsecond\nbroken\n", encoding="utf-8")
    (tmp_path / "script").write_text(written("horovod-hosts", launch("ddp", data_parallel=16)), encoding="utf-8")
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = subprocess.run(
        ["/bin/sh", "script"], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["first:8", "second:8"]


def test_only_whole_models_on_every_rank_have_it():
    from plimsoll.service.artifacts.training import training_artifacts

    assert "horovod" not in training_artifacts(launch("fsdp2", data_parallel=8, zero_stage=3)).files
    assert "not a whole number of nodes" in why_missing("horovod", launch("ddp", data_parallel=12))
