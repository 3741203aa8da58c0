from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.famous_runs.record import FamousRun, famous_runs, read_record
from plimsoll.planners.catalogue import catalogue
from plimsoll.planners.families import describe_config
from tests.benchmarks.famous_runs.records import a_run

RUNS = famous_runs()
RECORD = """
name = "A run"
source = "A paper"
url = "https://example.org"
known_from = "read"
ran_with = "Megatron-LM"
published = { words = "2 s", seconds = 2.0 }

[request]
model = "meta-llama/Llama-3.1-8B"
hardware = { gpu = "h100-sxm-80gb", gpus = 8 }
training = { sequence_length = 4096, global_batch_size = 16, micro_batch_size = 2 }
layout = { data_parallel = 2, tensor_parallel = 4, pipeline_parallel = 1, context_parallel = 1 }
"""


def read(text: str, folder: Path) -> FamousRun:
    file = folder / "a-run.toml"
    file.write_text(text, encoding="utf-8")
    return read_record(file)


def layers(run: FamousRun) -> int:
    model = run.request["model"]
    config = catalogue().model(model).config if isinstance(model, str) else model["config"]
    return describe_config(config, name=run.name).num_layers


def test_there_are_dozens_of_runs_and_no_name_twice():
    assert len(RUNS) >= 20
    assert len({run.name for run in RUNS}) == len(RUNS)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.slug)
def test_a_pipeline_that_does_not_divide_the_layers_says_how_they_were_divided(run: FamousRun):
    layout = run.request["layout"]
    chunks = layout.get("pipeline_parallel", 1) * layout.get("virtual_pipeline", 1)
    assert layers(run) % chunks == 0 or run.pipeline_division


def test_the_largest_run_comes_first():
    assert [run.gpus for run in RUNS] == sorted((run.gpus for run in RUNS), reverse=True)


def test_a_record_is_read(tmp_path: Path):
    run = read(RECORD, tmp_path)
    assert (run.slug, run.gpus, run.tokens_per_step, run.published.seconds) == ("a-run", 8, 65536, 2.0)
    assert run.left_open == ("zero_stage", "sequence_parallel", "recompute")


def test_nothing_of_a_pipeline_is_left_open_where_there_is_none():
    assert a_run().left_open == ("sequence_parallel", "micro_batch_size")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("https", "http", "no https address"),
        ('"read"', '"heard"', "known_from 'heard'"),
        ("gpus = 8", "gpus = 16", "do not multiply to 16 GPUs"),
        ("global_batch_size = 16", "global_batch_size = 6", "4 sequences at once do not divide its batch of 6"),
        ("seconds = 2.0", "seconds = 2.0, tokens_per_second_per_gpu = 1.0", "more than one figure"),
        ("seconds = 2.0", "teraflops_per_gpu = 100.0", "counting None"),
        ("seconds = 2.0", "gpu_hours = 5.0", "belong together"),
        ("seconds = 2.0", 'utilization_fraction = 0.4, counting = "whole attention"', "belong together"),
        ("seconds = 2.0", 'memory = { words = "5 GB", gigabytes = 5.0, kind = "felt" }', "memory kind 'felt'"),
        ("seconds = 2.0", "seconds = 0.0", "seconds is 0.0"),
        ("seconds", "second", "unexpected keyword"),
        ("name", "title", "unexpected keyword"),
        ("published", "said", "published"),
    ],
)
def test_a_wrong_record_is_named_with_what_is_wrong(old: str, new: str, reason: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"a-run\.toml: ") as problem:
        read(RECORD.replace(old, new), tmp_path)
    assert reason in str(problem.value)
