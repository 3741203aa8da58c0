"""Weights drawn and weights read."""

import json

import pytest
import torch

from plimsoll.planners.families import describe_config
from plimsoll.service.checkpoints.headers import read_checkpoint
from plimsoll.service.ground.errors import InvalidCheckpoint, PathNotAllowed
from plimsoll.service.worker.quantization.checkpoints.sources import CheckpointSource, RandomSource, matrix
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from tests.service.worker.quantization.small_llama import CONFIG, numbers, weights, write_checkpoint

SPEC = describe_config(CONFIG, name="small")
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 20, "n_positions": 8}


@pytest.fixture(scope="module")
def workers():
    with ChunkWorkers(threads=2) as running:
        yield running


def opened(folder, scheme="nf4", spec=SPEC):
    checkpoint = read_checkpoint(folder, [folder.parent], pointer="/weights/path")
    return CheckpointSource(checkpoint, spec, scheme, roots=[folder.parent])


def loaded(source, workers):
    return {tensor.name: source.load(tensor, workers).clone() for tensor in source.tensors}


@pytest.mark.parametrize("files", [1, 3])
def test_every_tensor_of_a_checkpoint_is_read_as_it_is_stored(tmp_path, workers, files):
    found = loaded(opened(write_checkpoint(tmp_path / "source", files=files)), workers)
    expected = weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name].reshape(-1).view(torch.uint8)) for name in expected)


def test_matrices_of_layers_are_quantized_and_the_rest_is_left(tmp_path):
    source = opened(write_checkpoint(tmp_path / "source"))
    assert sum(tensor.reason is None for tensor in source.tensors) == 2 * 7
    assert {tensor.reason for tensor in source.tensors if tensor.reason} == {"embedding", "norm", "output head"}


def test_tensors_that_the_description_does_not_know_are_left_and_named(tmp_path):
    tensors = {**weights(), "model.extra": torch.ones(3)}
    source = opened(write_checkpoint(tmp_path / "source", tensors))
    assert any("model.extra" in note for note in source.notes)
    assert next(tensor.reason for tensor in source.tensors if tensor.name == "model.extra") == "not in the description"


def test_matrices_stored_the_other_way_round_are_turned():
    source = RandomSource(describe_config(GPT2, name="gpt2"), "int8", seed=0, standard_deviation=0.02)
    fused = next(tensor for tensor in source.tensors if "c_attn.weight" in tensor.name)
    values = numbers("x", fused.shape).bfloat16()
    # Conv1D is [inputs, outputs]: 16 x 48.
    assert torch.equal(matrix(fused, values.reshape(-1).view(torch.uint8)), values.T)


def test_drawn_norms_are_ones_and_the_rest_is_normal(workers):
    source = RandomSource(SPEC, "nf4", seed=0, standard_deviation=0.02)
    found = loaded(source, workers)
    assert set(found["model.norm.weight"].view(torch.bfloat16).tolist()) == {1.0}
    values = found["model.embed_tokens.weight"].view(torch.bfloat16).float()
    # 6,144 numbers: the deviation is known to 1 part in 110; five of those.
    assert values.std().item() == pytest.approx(0.02, rel=0.05)


def test_drawn_biases_are_zeros(workers):
    source = RandomSource(describe_config(GPT2, name="gpt2"), "nf4", seed=0, standard_deviation=0.02)
    bias = next(tensor for tensor in source.tensors if tensor.name.endswith("c_attn.bias"))
    assert not source.load(bias, workers).any()


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    tensors = weights()
    del tensors["model.norm.weight"]
    with pytest.raises(InvalidCheckpoint, match=r"lacks weights of the model: model\.norm\.weight"):
        opened(write_checkpoint(tmp_path / "source", tensors))


def test_a_checkpoint_with_another_shape_is_refused(tmp_path):
    tensors = {**weights(), "model.norm.weight": torch.ones(65)}
    with pytest.raises(InvalidCheckpoint, match=r"\[65\] in the checkpoint and \[64\]"):
        opened(write_checkpoint(tmp_path / "source", tensors))


def test_a_checkpoint_that_lacks_a_file_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "source", files=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match="model-00002-of-00003"):
        opened(folder)


def test_an_index_that_names_what_no_file_holds_is_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "source", files=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.more"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidCheckpoint, match=r"no file holds: model\.more"):
        opened(folder)


def test_a_checkpoint_that_is_quantized_already_is_refused(tmp_path):
    tensors = {**weights(), "model.layers.0.self_attn.q_proj.weight.absmax": torch.ones(3)}
    with pytest.raises(InvalidCheckpoint, match="quantized already"):
        opened(write_checkpoint(tmp_path / "source", tensors))


def test_a_matrix_in_a_dtype_that_is_not_read_is_refused(tmp_path):
    tensors = weights()
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name].double()
    with pytest.raises(InvalidCheckpoint, match="stored as F64"):
        opened(write_checkpoint(tmp_path / "source", tensors))


def test_a_file_cut_short_after_its_header_was_read_is_an_error(tmp_path, workers):
    folder = write_checkpoint(tmp_path / "source")
    source = opened(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(InvalidCheckpoint, match="became shorter"):
        loaded(source, workers)


def test_a_file_that_went_away_is_an_error(tmp_path, workers):
    folder = write_checkpoint(tmp_path / "source")
    source = opened(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidCheckpoint, match="cannot be read any more"):
        loaded(source, workers)


def test_a_file_swapped_for_a_link_out_of_the_roots_is_not_read(tmp_path, workers):
    folder = write_checkpoint(tmp_path / "root" / "source")
    source = opened(folder)
    (folder / "model.safetensors").rename(tmp_path / "outside")
    (folder / "model.safetensors").symlink_to(tmp_path / "outside")
    with pytest.raises(PathNotAllowed):
        loaded(source, workers)
