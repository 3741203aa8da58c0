"""vLLM's own code itself, where `make proofs-of STACK=vllm` has set it up."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
CASE = "Granite 4 small, 9 layers"


@pytest.mark.skipif(not PYTHON.exists(), reason="vLLM's code is not installed: make proofs-of STACK=vllm")
def test_vllms_own_code_says_what_is_recorded_of_it(tmp_path):
    written = tmp_path / "facts.json"
    command = [PYTHON, "-m", "benchmarks.vllm_own_code", CASE, "--write", written]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    said = json.loads(written.read_text(encoding="utf-8"))
    recorded = json.loads((ROOT / "benchmarks/data/vllm_own_code.json").read_text(encoding="utf-8"))
    assert said["source"] == recorded["source"]
    assert said["cases"] == [facts for facts in recorded["cases"] if facts["case"] == CASE]
