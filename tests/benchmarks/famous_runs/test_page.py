from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.famous_runs import page
from benchmarks.famous_runs.record import Published, PublishedMemory, famous_runs
from tests.benchmarks.famous_runs.records import REFUSED, a_run, asked, planned

PAGE = Path(__file__).parents[3] / "docs" / "famous-runs.md"


def test_the_page_has_a_section_for_every_run():
    headings = {line.removeprefix("### ") for line in PAGE.read_text(encoding="utf-8").splitlines() if "### " in line}
    assert {run.name for run in famous_runs()} <= headings


def test_a_published_step_within_the_band_is_inside():
    # The band of 2.5 s is 2 to 4 s.
    assert page.is_inside(asked(planned(2.5))) is True
    assert page.is_inside(asked(planned(2.6))) is False
    assert page.is_inside(asked(REFUSED)) is None
    assert page.is_inside(asked(published_seconds=None)) is None


def test_a_published_utilization_is_of_the_planned_work():
    # 40 % in 2.5 s is as much work as 50 % in 2 s.
    assert page.published_utilization(asked(planned(2.5))) == pytest.approx(0.5)
    assert page.published_utilization(asked(REFUSED, own=planned(5.0))) == pytest.approx(1.0)
    assert page.published_utilization(asked(REFUSED, own=REFUSED)) is None


def test_a_refused_run_counts_as_a_miss():
    counts = page.page_parts([asked(REFUSED), asked(planned(2.5))])["counts"]
    assert "| all | 2 | 2 | 1 of 2 | 1 of 2 | 1.25 (1.25 to 1.25) | 1 of 1 |" in counts
    refused = page.page_parts([asked(REFUSED)])
    assert "one is no field another is too large |" in refused["refused"]
    # 40 % in the 1.25 s of the planner's own layout is as much work as 25 % in 2 s.
    assert "| 2 s | refused | – | 25.0 % | – | no | refused |" in refused["overview"]


def test_utilization_has_the_band_of_the_step():
    assert page.utilization_cell(planned()) == "40.0 % (25.0 % to 50.0 %)"


def test_a_run_that_is_planned_not_to_fit_says_so():
    found = page.page_parts([asked(planned(2.5, fits=False, verdict="no"))])["runs"]
    assert "does not fit: 40.0 of 80.0 GiB" in found
    assert "It ran, and is planned not to fit." in found


def test_published_memory_stands_beside_the_same_kind():
    memory = PublishedMemory(words="31 GiB", gigabytes=33.3, kind="allocated")
    run = a_run(published=Published(words="2 s", seconds=2.0, memory=memory))
    found = page.page_parts([asked(planned(2.5), run=run)])["runs"]
    # 30 of 40 GiB are allocated, and so of the band from 32 to 60.
    assert "30.0 GiB are planned (24.0 to 45.0) and 31.0 were published, inside the band" in found


def test_a_launch_file_that_is_not_written_says_why():
    found = page.page_parts([asked(planned(2.5, why_no_launch_file=("It has no such model.",)))])["runs"]
    assert "No launch file for megatron is written: It has no such model." in found


def test_anchors_are_those_of_the_documentation():
    assert page.anchor("Llama 3.1 405B, 16,384 GPUs (Megatron-LM)") == "llama-31-405b-16384-gpus-megatron-lm"


def test_parts_are_set_into_their_places(tmp_path: Path):
    file = tmp_path / "page.md"
    file.write_text("above\n<!-- generated: a -->\nold\n<!-- end -->\nbelow\n", encoding="utf-8")
    page.write_page(file, {"a": "new"})
    assert file.read_text(encoding="utf-8") == "above\n<!-- generated: a -->\nnew\n<!-- end -->\nbelow\n"
    with pytest.raises(ValueError, match="no place for 'b'"):
        page.write_page(file, {"b": "more"})
