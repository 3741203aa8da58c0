"""A checkpoint's headers are read, and believed only where everything in them agrees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.ground.errors import PlimsollError
from plimsoll.service.checkpoints.headers import (
    MOST_HEADER_BYTES,
    MOST_TENSORS,
    Checkpoint,
    StoredTensor,
    checkpoint_state,
    read_checkpoint,
    read_header,
)
from plimsoll.service.ground.errors import InvalidCheckpoint, PathNotAllowed
from plimsoll.service.ground.untrusted_files import UnusableFile
from tests.service.safetensors_files import entry, indexed, stored, write_index, written

SHAPES = {"a": (2, 3), "b": (4,), "c": (1,)}


def checkpoint(folder: Path) -> Checkpoint:
    found = read_checkpoint(folder.resolve(), [folder], pointer="/model/path")
    assert found is not None
    return found


def refusal(folder: Path) -> InvalidCheckpoint:
    with pytest.raises(InvalidCheckpoint) as raised:
        read_checkpoint(folder.resolve(), [folder], pointer="/model/path")
    assert raised.value.pointer == "/model/path"
    return raised.value


def test_a_header_gives_names_shapes_formats_and_places(tmp_path: Path):
    header = {
        "__metadata__": {"format": "pt"},
        "late": entry((2,), 4, 8),
        "first": entry((2, 2), 0, 4, "U8"),
        "empty": entry((0, 3), 8, 8),
    }
    path = written(tmp_path / "x", header, data_bytes=8)
    data_begins = path.stat().st_size - 8
    tensors = read_header(path, name="x")
    assert [tensor.name for tensor in tensors] == ["first", "late", "empty"]
    assert tensors[1] == StoredTensor(
        name="late", dtype="BF16", shape=(2,), file="x", begin=data_begins + 4, end=data_begins + 8
    )
    assert tensors[1].stored_bytes == 4


def test_the_writers_padding_after_the_header_is_no_fault(tmp_path: Path):
    header = json.dumps({"a": entry((1,), 0, 2)}).encode() + b"   "
    assert len(read_header(written(tmp_path / "x", header, data_bytes=2), name="x")) == 1


def test_four_bit_elements_take_half_a_byte_each(tmp_path: Path):
    path = written(tmp_path / "x", {"a": entry((2, 8), 0, 8, "F4")}, data_bytes=8)
    assert read_header(path, name="x")[0].stored_bytes == 8


@pytest.mark.parametrize("content", [b"", b"1234567", b"\x01\0\0\0\0\0\0\0"])
def test_a_file_too_short_for_its_header_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UnusableFile, match="claims a header"):
        read_header(tmp_path / "x", name="x")


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 1000])
def test_a_length_that_lies_is_refused_unread(tmp_path: Path, length: int):
    with pytest.raises(UnusableFile, match=f"claims a header of {length}"):
        read_header(written(tmp_path / "x", {}, length=length), name="x")


def test_a_header_larger_than_any_real_one_is_refused_unread(tmp_path: Path):
    path = written(tmp_path / "x", {}, length=MOST_HEADER_BYTES + 1)
    with path.open("r+b") as file:
        file.truncate(MOST_HEADER_BYTES + 100)
    with pytest.raises(UnusableFile, match="at most"):
        read_header(path, name="x")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"a": entry((2,), 0, 4), "b": entry((2,), 2, 6)}, "overlaps"),
        ({"a": entry((2,), 0, 4), "b": entry((2,), 0, 4)}, "overlaps"),
        ({"a": entry((1,), 0, 2), "b": entry((1,), 4, 6)}, "gap"),
        ({"a": entry((2,), 2, 6)}, "gap"),
        ({"a": entry((4,), 0, 8)}, "should end"),
        ({"a": entry((1,), 0, 2)}, "should end"),
        ({}, "should end"),
        ({"a": entry((3,), 6, 0)}, "data_offsets"),
        ({"a": entry((3,), -6, 0)}, "data_offsets"),
        ({"a": entry((3,), 0.0, 6)}, "data_offsets"),
        ({"a": {**entry((3,), 0, 6), "data_offsets": [0, 3, 6]}}, "data_offsets"),
        ({"a": entry((3,), 0, 2**64)}, "data_offsets"),
        ({"a": entry((4,), 0, 6)}, "not its shape"),
        ({"a": entry((2**62,) * 16, 0, 6)}, "not its shape"),
        ({"a": entry((1,) * 17, 0, 2)}, "shape that is none"),
        ({"a": entry((-3,), 0, 6)}, "shape that is none"),
        ({"a": entry((True, 3), 0, 6)}, "shape that is none"),
        ({"a": {**entry((3,), 0, 6), "shape": "3"}}, "shape that is none"),
        ({"a": entry((3,), 0, 6, "BF17")}, "unknown dtype"),
        ({"a": {**entry((3,), 0, 6), "dtype": ["BF16"]}}, "unknown dtype"),
        ({"a": {**entry((3,), 0, 6), "more": 1}}, "no dtype"),
        ({"a": {"dtype": "BF16"}}, "no dtype"),
        ({"a": [1]}, "no dtype"),
        ({"": entry((3,), 0, 6)}, "names a tensor"),
        ({"a\x1b": entry((3,), 0, 6)}, "names a tensor"),
        ({"\ud800": entry((3,), 0, 6)}, "names a tensor"),
        ({"x" * 513: entry((3,), 0, 6)}, "names a tensor"),
        ({"__metadata__": {"a": 1}}, "__metadata__"),
        ({"__metadata__": [1]}, "__metadata__"),
        (b'{"a": {"dtype":"BF16","shape":[3],"data_offsets":[0,6]}, "a": {}}', "twice"),
        (b" {}", "does not begin"),
        (b"[]", "does not begin"),
        (b'{"a": ' * 60_000, "nested too deep"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(tmp_path: Path, header: Any, reason: str):
    with pytest.raises(UnusableFile, match=reason):
        read_header(written(tmp_path / "x", header, data_bytes=6), name="x")


def test_what_safetensors_writes_is_read_alike(tmp_path: Path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    written_by_it = {"a": torch.zeros(3, 5, dtype=torch.bfloat16), "b": torch.zeros(7), "c": torch.tensor(1)}
    safetensors.save_file(written_by_it, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = checkpoint(tmp_path).tensors
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"a": (3, 5), "b": (7,), "c": ()}
    assert [tensors[name].dtype for name in "abc"] == ["BF16", "F32", "I64"]


def test_a_folder_without_safetensors_has_no_checkpoint(tmp_path: Path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert read_checkpoint(tmp_path.resolve(), [tmp_path], pointer="/p") is None


def test_an_index_and_its_files_are_read_together(tmp_path: Path):
    file_of = indexed(tmp_path, SHAPES, total_size=22)
    found = checkpoint(tmp_path)
    assert dict(found.file_of) == file_of
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == SHAPES
    # 6 + 4 + 1 elements of two bytes.
    assert found.stored_bytes == found.index_bytes == 22
    assert (found.absent_files, found.not_in_files, found.not_in_index) == ((), (), ())


def test_a_single_file_goes_before_an_index(tmp_path: Path):
    indexed(tmp_path, SHAPES)
    stored(tmp_path / "model.safetensors", {"only": (1,)})
    assert set(checkpoint(tmp_path).file_of) == {"only"}


def test_files_that_were_not_fetched_are_named(tmp_path: Path):
    indexed(tmp_path, SHAPES)
    gone = tmp_path / "model-00002-of-00002.safetensors"
    gone.unlink()
    gone.symlink_to(tmp_path / "blob-that-was-not-fetched")
    found = checkpoint(tmp_path)
    assert found.absent_files == (gone.name,)
    assert not found.is_complete
    assert set(found.tensors) == {"a", "c"}
    assert set(found.file_of) == set(SHAPES)


def test_an_index_and_files_that_contradict_each_other_are_told(tmp_path: Path):
    file_of = indexed(tmp_path, SHAPES)
    write_index(tmp_path, {"a": file_of["a"], "b": file_of["a"], "z": file_of["b"]})
    found = checkpoint(tmp_path)
    assert found.not_in_files == ("b", "z")
    assert set(found.not_in_index) == {"b", "c"}
    assert set(found.tensors) == {"a"}


@pytest.mark.parametrize(
    ("weight_map", "reason"),
    [
        (None, "no 'weight_map'"),
        (["a"], "no 'weight_map'"),
        ({"a": 1}, "no 'weight_map'"),
        ({"a": "../secret.safetensors"}, "beside it"),
        ({"a": "/etc/secret.safetensors"}, "beside it"),
        ({"a": "sub/x.safetensors"}, "beside it"),
        ({"a": "sub\\x.safetensors"}, "beside it"),
        ({"a": ".."}, "beside it"),
        ({"a": "config.json"}, "beside it"),
        ({"a": "x\n.safetensors"}, "beside it"),
        ({"": "x.safetensors"}, "names a tensor"),
        ({str(number): f"{number}.safetensors" for number in range(4_097)}, "4097 files"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(tmp_path: Path, weight_map: Any, reason: str):
    write_index(tmp_path, weight_map)
    assert reason in refusal(tmp_path).detail


def test_more_tensors_than_any_model_has_are_refused(tmp_path: Path):
    write_index(tmp_path, {str(number): "x.safetensors" for number in range(MOST_TENSORS + 1)})
    assert f"{MOST_TENSORS + 1} tensors" in refusal(tmp_path).detail
    write_index(tmp_path, {str(number): "x.safetensors" for number in range(MOST_TENSORS)})
    assert len(checkpoint(tmp_path).file_of) == MOST_TENSORS


@pytest.mark.parametrize(("total", "read"), [(22, 22), (22.0, 22), (0, 0), (None, None)])
def test_an_indexs_sum_may_be_written_as_a_decimal(tmp_path: Path, total: Any, read: int | None):
    indexed(tmp_path, SHAPES, total_size=total)
    assert checkpoint(tmp_path).index_bytes == read


@pytest.mark.parametrize("total", [-1, 1.5, "22", True, 2**63, [1]])
def test_an_indexs_sum_that_is_none_is_refused(tmp_path: Path, total: Any):
    indexed(tmp_path, SHAPES, total_size=total)
    assert "total_size" in refusal(tmp_path).detail


def test_metadata_that_is_no_object_is_refused(tmp_path: Path):
    content = {"metadata": [1], "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    assert "metadata" in refusal(tmp_path).detail


def test_a_file_that_links_out_of_the_roots_is_refused(tmp_path: Path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    stored(outside / "model.safetensors", SHAPES)
    (root / "model.safetensors").symlink_to(outside / "model.safetensors")
    with pytest.raises(PathNotAllowed):
        read_checkpoint(root.resolve(), [root], pointer="/model/path")


def test_a_cache_that_links_within_the_roots_is_read(tmp_path: Path):
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    stored(tmp_path / "blob", SHAPES)
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blob")
    found = read_checkpoint(snapshot.resolve(), [tmp_path], pointer="/p")
    assert found is not None
    assert set(found.tensors) == set(SHAPES)


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "model.safetensors")
    assert "no regular file" in refusal(tmp_path).detail


def test_the_state_changes_with_the_files_and_with_nothing_else(tmp_path: Path):
    stored(tmp_path / "model.safetensors", SHAPES)
    before = checkpoint_state(tmp_path)
    (tmp_path / "README.md").write_text("x")
    assert checkpoint_state(tmp_path) == before
    stored(tmp_path / "model.safetensors", {"a": (1,)})
    assert checkpoint_state(tmp_path) != before
    assert checkpoint_state(tmp_path / "nowhere") == ()


def test_every_refusal_is_an_error_of_ours(tmp_path: Path):
    written(tmp_path / "model.safetensors", {"a": 1})
    assert isinstance(refusal(tmp_path), PlimsollError)
