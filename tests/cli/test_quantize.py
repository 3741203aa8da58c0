"""`plimsoll quantize`, by a child of this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plimsoll.cli.main import app
from tests.cli.requests_on_disk import model_file
from tests.service.worker.quantization.small_llama import write_checkpoint


def test_random_weights_are_quantized_and_the_error_is_measured(tmp_path: Path):
    answer = CliRunner().invoke(app, ["quantize", model_file(tmp_path), "--scheme", "int8", "--json"])
    assert answer.exit_code == 0, answer.output
    body = json.loads(answer.stdout)
    assert body["job"]["result"]["quantized_bytes"] == body["estimate"]["quantized_bytes"]


def test_a_checkpoint_anywhere_is_written_anywhere(tmp_path: Path):
    source, made = write_checkpoint(tmp_path / "source"), tmp_path / "made"
    weights = ["--weights", str(source), "--output", str(made)]
    answer = CliRunner().invoke(app, ["quantize", str(source), "--scheme", "fp8-channel", *weights])
    assert answer.exit_code == 0, answer.output
    assert (made / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--scheme", "int3"], "/scheme (--scheme)"),
        (["--scheme", "nf4", "--weights", "nowhere"], "/weights/path (--weights)"),
        (["--scheme", "nf4", "--output", "."], "/output (--output)"),
    ],
)
def test_what_cannot_be_quantized_is_refused_at_its_option(tmp_path: Path, arguments: list[str], told: str):
    answer = CliRunner().invoke(app, ["quantize", model_file(tmp_path), *arguments])
    assert answer.exit_code == 2
    assert told in answer.stderr
