"""An environment that imports another's packages."""

from pathlib import Path

from benchmarks.vllm_own_code.beside import let_in


def test_the_path_file_names_the_other_environments_packages(tmp_path):
    written = let_in(Path("/other"), tmp_path)
    assert written.suffix == ".pth"
    assert written.read_text(encoding="utf-8").startswith("/other/lib/python3.")
