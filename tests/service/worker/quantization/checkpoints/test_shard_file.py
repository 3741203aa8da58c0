"""Safetensors files written tensor by tensor, read back by safetensors itself."""

import pytest
import torch
from safetensors import safe_open

from plimsoll.service.checkpoints.headers import read_header
from plimsoll.service.worker.quantization.checkpoints.shard_file import MOST_LATE_BYTES, PlannedTensor, ShardFile

PLANNED = (
    PlannedTensor(name="codes", dtype="U8", shape=(3,)),
    PlannedTensor(name="state", dtype="U8", shape=None),
    PlannedTensor(name="scales", dtype="F32", shape=(2, 2)),
    PlannedTensor(name="format", dtype="U8", shape=()),
    PlannedTensor(name="norm", dtype="BF16", shape=(5,)),
)
TENSORS = {
    "codes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "state": torch.frombuffer(bytearray(b'{"a": 1}'), dtype=torch.uint8),
    "scales": torch.tensor([[0.5, 1.0], [2.0, 4.0]]),
    "format": torch.tensor(7, dtype=torch.uint8),
    "norm": torch.arange(5).bfloat16(),
}


def written(path, tensors=TENSORS):
    with ShardFile(path, PLANNED) as file:
        for name, tensor in tensors.items():
            file.write(name, tensor)
        file.finish()
    return path


@pytest.mark.parametrize("order", [list(TENSORS), list(reversed(TENSORS))], ids=["forth", "back"])
def test_safetensors_reads_what_was_written_in_any_order(tmp_path, order):
    path = written(tmp_path / "one.safetensors", {name: TENSORS[name] for name in order})
    with safe_open(path, "pt") as file:
        assert sorted(file.keys()) == sorted(TENSORS)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in TENSORS.items())
        assert file.metadata() == {"format": "pt"}


def test_our_own_strict_reader_finds_neither_gap_nor_overlap(tmp_path):
    tensors = read_header(written(tmp_path / "one.safetensors"), name="one")
    # Wider elements first: 16 bytes of fp32, 10 of bf16, then bytes; what had no known length comes last.
    assert [tensor.name for tensor in tensors] == ["scales", "norm", "codes", "format", "state"]


def test_the_order_of_writing_changes_no_byte(tmp_path):
    forth = written(tmp_path / "forth")
    back = written(tmp_path / "back", dict(reversed(TENSORS.items())))
    assert forth.read_bytes() == back.read_bytes()


def test_bytes_are_written_as_they_are(tmp_path):
    with ShardFile(tmp_path / "one", (PLANNED[4],)) as file:
        file.write_bytes("norm", TENSORS["norm"].view(torch.uint8))
        file.finish()
    with safe_open(tmp_path / "one", "pt") as file:
        assert torch.equal(file.get_tensor("norm"), TENSORS["norm"])


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("codes", torch.zeros(4, dtype=torch.uint8), "has 4 bytes"),
        ("codes", torch.zeros(3), "as torch.float32"),
        ("state", torch.zeros(MOST_LATE_BYTES + 1, dtype=torch.uint8), "at most 512"),
    ],
)
def test_a_tensor_that_is_not_as_planned_is_refused(tmp_path, name, tensor, reason):
    with ShardFile(tmp_path / "one", PLANNED) as file, pytest.raises(ValueError, match=reason):
        file.write(name, tensor)


def test_bytes_that_are_not_as_many_as_planned_are_refused(tmp_path):
    with ShardFile(tmp_path / "one", PLANNED) as file, pytest.raises(ValueError, match="9 bytes and not the 10"):
        file.write_bytes("norm", torch.zeros(9, dtype=torch.uint8))


def test_a_tensor_cannot_be_written_twice(tmp_path):
    with ShardFile(tmp_path / "one", PLANNED) as file:
        file.write("codes", TENSORS["codes"])
        with pytest.raises(ValueError, match="twice"):
            file.write("codes", TENSORS["codes"])


def test_a_file_that_lacks_a_tensor_is_not_finished(tmp_path):
    with ShardFile(tmp_path / "one", PLANNED) as file, pytest.raises(ValueError, match="Not written: codes, format"):
        file.finish()


def test_a_link_in_the_files_place_is_not_followed(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        ShardFile(tmp_path / "one", PLANNED)
