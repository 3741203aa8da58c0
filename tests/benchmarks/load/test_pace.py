from pathlib import Path

import pytest

from benchmarks.load.pace import Paces, PaceWatch, Sample


def test_a_stretch_in_which_the_same_work_takes_twice_as_long_has_half_the_pace():
    paces = Paces((Sample(1.0, 0.002), Sample(2.0, 0.004), Sample(3.0, 0.004)))
    assert paces.share(1.5, 3.0) == pytest.approx(0.5)


def test_a_stretch_without_a_sample_has_no_pace():
    with pytest.raises(ValueError, match="not sampled"):
        Paces((Sample(1.0, 0.002),)).share(2.0, 3.0)


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path):
    written = tmp_path / "samples"
    written.write_text("1.5 0.002\n2.5 0.0")
    assert PaceWatch(written).read() == Paces((Sample(1.5, 0.002),))
