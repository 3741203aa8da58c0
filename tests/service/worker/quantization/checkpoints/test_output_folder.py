"""The hidden folder of an output: whole or not there, one writer, resumed only for the same question."""

import os

import pytest

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.service.worker.quantization.checkpoints.output_folder import (
    PARTIAL_SUFFIX,
    REPORT_FILE,
    discard_partial,
    output_folder,
    published_result,
    sha256,
)

IDENTITY = {"scheme": "nf4"}
ABC_SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1


def with_shard(folder, name="one", content=b"abc"):
    folder.file(name).write_bytes(content)
    folder.keep(name, {"sha256": sha256(folder.file(name))})


def leave_partial(output, monkeypatch, *names):
    """Leave what a killed process would."""
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        with output_folder(output, IDENTITY) as folder:
            for name in names:
                with_shard(folder, name)


def test_sums_are_those_of_the_standard(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == ABC_SHA256


def test_the_output_appears_whole_and_alone(tmp_path):
    output = tmp_path / "output"
    with output_folder(output, IDENTITY) as folder:
        with_shard(folder)
        assert not output.exists()
        folder.publish()
    assert [path.name for path in output.iterdir()] == ["one"]
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(143)])
def test_an_end_before_that_leaves_nothing(tmp_path, error):

    def end_early():
        with output_folder(tmp_path / "output", IDENTITY) as folder:
            with_shard(folder)
            raise error

    with pytest.raises(type(error)):
        end_early()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(tmp_path, monkeypatch):
    leave_partial(tmp_path / "output", monkeypatch, "one", "two")
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        assert list(folder.records(["one", "two", "three"])) == ["one", "two"]


def test_shards_after_one_that_is_missing_do_not_count(tmp_path, monkeypatch):
    leave_partial(tmp_path / "output", monkeypatch, "one", "three")
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        assert list(folder.records(["one", "two", "three"])) == ["one"]


def test_a_shard_that_changed_does_not_count(tmp_path, monkeypatch):
    leave_partial(tmp_path / "output", monkeypatch, "one")
    (tmp_path / f".output{PARTIAL_SUFFIX}" / "one").write_bytes(b"abd")
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        assert folder.records(["one"]) == {}


def test_what_another_question_left_is_thrown_away(tmp_path, monkeypatch):
    leave_partial(tmp_path / "output", monkeypatch, "one")
    with output_folder(tmp_path / "output", {"scheme": "fp4"}) as folder:
        assert folder.records(["one"]) == {}


def test_an_output_that_exists_is_refused_and_untouched(tmp_path):
    (tmp_path / "output").mkdir()
    with pytest.raises(InvalidQuestion, match="exists") as caught, output_folder(tmp_path / "output", IDENTITY):
        pass
    assert caught.value.pointer == "/output"
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_a_link_in_the_outputs_place_is_refused(tmp_path):
    (tmp_path / "output").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidQuestion, match="exists"), output_folder(tmp_path / "output", IDENTITY):
        pass


def test_an_output_that_came_to_exist_meanwhile_is_not_replaced(tmp_path):
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        (tmp_path / "output").mkdir()
        with pytest.raises(InvalidQuestion, match="exists"):
            folder.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


def test_an_output_without_a_place_is_refused(tmp_path):
    with pytest.raises(InvalidQuestion, match="does not exist"), output_folder(tmp_path / "a" / "b", IDENTITY):
        pass


def test_two_cannot_write_the_same_output(tmp_path):
    with output_folder(tmp_path / "output", IDENTITY) as first:
        with pytest.raises(InvalidQuestion, match="Another job"), output_folder(tmp_path / "output", IDENTITY):
            pass
        with_shard(first)
        assert list(first.records(["one"])) == ["one"]


def test_the_result_of_what_was_published_is_found_again(tmp_path):
    output = tmp_path / "output"
    with output_folder(output, IDENTITY) as folder:
        folder.write_json(REPORT_FILE, {"identity": IDENTITY, "result": {"seconds": 1.5}})
        folder.publish()
    assert published_result(output, IDENTITY) == {"seconds": 1.5}
    assert published_result(output, {"scheme": "fp4"}) is None
    assert published_result(tmp_path / "other", IDENTITY) is None


def test_sums_leave_out_what_is_not_published(tmp_path):
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        with_shard(folder)
        folder.write_bytes("config.json", b"abc")
        assert folder.sums({}) == {"config.json": ABC_SHA256, "one": ABC_SHA256}
        assert os.listdir(tmp_path) == [f".output{PARTIAL_SUFFIX}"]  # noqa: PTH208


def test_what_a_killed_process_left_is_discarded(tmp_path, monkeypatch):
    leave_partial(tmp_path / "output", monkeypatch, "one")
    assert len(list(tmp_path.iterdir())) == 1
    for _ in range(2):  # The second time there is nothing to do.
        discard_partial(tmp_path / "output")
        assert list(tmp_path.iterdir()) == []


def test_what_another_process_writes_is_not_discarded(tmp_path):
    with output_folder(tmp_path / "output", IDENTITY) as folder:
        with_shard(folder)
        discard_partial(tmp_path / "output")
        folder.publish()
    assert (tmp_path / "output" / "one").read_bytes() == b"abc"


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f".output{PARTIAL_SUFFIX}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        discard_partial(tmp_path / "output")
    assert (tmp_path / "elsewhere").exists()
