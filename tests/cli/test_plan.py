"""`plimsoll plan`, in this process and through a service: the same answers and the same exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from plimsoll.cli.main import app
from tests.cli.requests_on_disk import model_file, request_file

ONE_GPU = ("--gpu", "h100-sxm-80gb", "--gpus", "1")
SMALL = ("--seq", "512", "--batch", "8", *ONE_GPU)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_a_job_that_fits_exits_with_0_and_prints_a_table(tmp_path: Path):
    answer = run("train", model_file(tmp_path), *SMALL)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("Plan ")
    assert "Memory of one GPU" in answer.stdout
    assert "\x1b" not in answer.stdout


def test_a_job_that_does_not_fit_exits_with_1(tmp_path: Path):
    # Nothing trains beside 79 GiB that others hold of 79.19 GiB.
    answer = run("train", model_file(tmp_path), *SMALL, "--used-bytes", str(79 * 2**30))
    assert answer.exit_code == 1
    assert "Does not fit" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--precision", "fp7"], "/training/precision (--precision)"),
        (["--tp", "3"], "/layout/tensor_parallel (--tp)"),
        (
            ["--set", "training.sequence_lenght=3"],
            "/training/sequence_lenght: sequence_lenght is not a field here; did you mean sequence_length?",
        ),
        (["--set", "training"], "path=value"),
        (["--gpu", "h101"], "/hardware/gpu (--gpu)"),
        (["-f", "nowhere.json"], "nowhere.json"),
    ],
)
def test_a_wrong_question_exits_with_2_and_names_the_option(tmp_path: Path, arguments: list[str], told: str):
    answer = run("train", model_file(tmp_path), *SMALL, *arguments)
    assert answer.exit_code == 2
    assert told in answer.stderr
    assert answer.stdout == ""


@pytest.mark.parametrize("gpus", ["many", "8..", "8..x"])
def test_a_number_of_gpus_that_is_none_is_refused(tmp_path: Path, gpus: str):
    answer = run("train", model_file(tmp_path), "--gpu", "h100", "--gpus", gpus)
    assert answer.exit_code == 2
    assert "8..512" in answer.stderr


def test_options_reach_the_fields_they_stand_for(tmp_path: Path):
    # Eight sequences on two GPUs by twos: 8 / (2 x 2) = 2 accumulated.
    answer = run(
        "train", "-f", request_file(tmp_path), "--gpus", "1..2", "--dp", "2", "--micro-batch", "2", "--zero", "1",
        "--recompute", "full:2", "--framework", "megatron", "--no-sequence-parallel", "--tokens", "1e6", "--json",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    body = json.loads(answer.stdout)
    layout = body["plan"]["layout"]
    assert (layout["gpus"], layout["micro_batch_size"], layout["gradient_accumulation_steps"]) == (2, 2, 2)
    assert (layout["zero_stage"], layout["recompute"], layout["recompute_layers"]) == (1, "full", 2)
    # 1e6 tokens by 8 sequences of 512 = 244.1, begun steps are made.
    assert body["plan"]["run"]["steps"] == 245


def test_adapters_are_told_by_their_options(tmp_path: Path):
    more = ("--method", "lora", "--lora-rank", "4", "--lora-modules", "q_proj,v_proj")
    assert run("train", model_file(tmp_path), *SMALL, *more).exit_code == 0


def test_a_deployment_is_sized(tmp_path: Path):
    answer = run("infer", model_file(tmp_path), *ONE_GPU, "--max-model-len", "1024", "--concurrency", "2", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["plan"]["performance"]["concurrency"] == 2


def test_only_a_size_is_enough_of_a_model():
    answer = run("infer", "--parameters", "1e9", *ONE_GPU)
    assert answer.exit_code == 0, answer.output
    assert "typical model of 1 billion parameters" in answer.stdout


def test_launch_files_are_written_beside_the_answer(tmp_path: Path):
    folder = tmp_path / "launch"
    assert run("train", "-f", request_file(tmp_path), "--emit", str(folder)).exit_code == 0
    assert any(folder.iterdir())


def test_a_service_answers_as_this_process_does(tmp_path: Path, service_url: str):
    arguments = ("train", "-f", request_file(tmp_path), "--json")
    # The service runs in this process, and its log would go where the answer goes.
    with capture_logs():
        here, there = (json.loads(run(*arguments, *more).stdout) for more in ((), ("--url", service_url)))
    # A search's time is a clock.
    assert {**here, "search": None} == {**there, "search": None}


def test_a_service_refuses_in_the_same_words(tmp_path: Path, service_url: str):
    arguments = ("train", "-f", request_file(tmp_path), "--tp", "3")
    here, there = (run(*arguments, *more) for more in ((), ("--url", service_url)))
    assert here.exit_code == there.exit_code == 2
    assert here.stderr == there.stderr


def test_where_no_service_answers_the_way_out_is_named(tmp_path: Path):
    answer = run("train", "-f", request_file(tmp_path), "--url", "http://127.0.0.1:1")
    assert answer.exit_code == 2
    assert "plimsoll serve" in answer.stderr
