"""A checkpoint beside the config's description: what agrees, what is explained, what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plimsoll.planners.families import describe_config
from plimsoll.service.checkpoints.comparison import CheckpointReport, checkpoint_report
from plimsoll.service.checkpoints.headers import read_checkpoint
from tests.api.questions import TINY_CONFIG
from tests.service.safetensors_files import indexed, stored, tiny_shapes, write_index

# Embedding and head 2 x 1000 x 256; a layer: q, o 256 x 256, k, v 128 x 256, three of 512 x 256,
# two norms of 256; four of those; the last norm.
PARAMETERS = 2 * 256_000 + 4 * (2 * 65_536 + 2 * 32_768 + 3 * 131_072 + 512) + 256
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}


def report(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> CheckpointReport:
    config = {**(config or TINY_CONFIG), **changes}
    found = read_checkpoint(folder.resolve(), [folder], pointer="/p")
    assert found is not None
    return checkpoint_report(found, describe_config(config, name="tiny"), config)


def single(folder: Path, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str] | None = None) -> None:
    stored(folder / "model.safetensors", shapes, dtypes)


def test_a_checkpoint_of_the_config_agrees(tmp_path: Path):
    indexed(tmp_path, tiny_shapes(), total_size=2 * PARAMETERS)
    found = report(tmp_path, torch_dtype="bfloat16")
    assert found.agrees
    assert found.stored_bytes == found.index_bytes == found.described_bytes == 2 * PARAMETERS
    # Embedding, head, norm, and nine of each layer.
    assert found.tensors == found.described_tensors == found.shapes_compared == 3 + 4 * 9


def test_weights_that_are_missing_are_named(tmp_path: Path):
    shapes = tiny_shapes()
    for name in [name for name in shapes if ".layers.3." in name]:
        del shapes[name]
    single(tmp_path, shapes)
    found = report(tmp_path)
    assert not found.agrees
    assert found.missing.count == 9
    assert "model.layers.3.self_attn.q_proj.weight" in found.missing.first
    [said] = found.disagreements
    assert said.startswith("9 weights are of the config's model not in the checkpoint")


def test_tensors_of_another_model_are_named(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(), "model.layers.4.mlp.up_proj.weight": (512, 256), "foo": (1,)})
    found = report(tmp_path)
    assert found.extra.first == ("model.layers.4.mlp.up_proj.weight", "foo")
    [said] = found.disagreements
    assert "2 tensors" in said


def test_another_shape_is_told_with_both(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(), "model.embed_tokens.weight": (1001, 256)})
    found = report(tmp_path)
    assert found.other_shapes.count == 1
    [said] = found.disagreements
    assert "[1001, 256] in the checkpoint and [1000, 256] by the config" in said


def test_an_index_alone_is_compared_by_names_and_bytes(tmp_path: Path):
    write_index(tmp_path, dict.fromkeys(tiny_shapes(), "model-1.safetensors"), total_size=2 * PARAMETERS)
    found = report(tmp_path, torch_dtype="float16")
    assert found.agrees
    assert found.absent_files.count == 1
    assert found.shapes_compared == 0
    assert found.stored_bytes is None


@pytest.mark.parametrize("off_by", [-2, 1_000_000])
def test_an_indexs_sum_that_is_not_the_models_is_told(tmp_path: Path, off_by: int):
    write_index(tmp_path, dict.fromkeys(tiny_shapes(), "model-1.safetensors"), total_size=2 * PARAMETERS + off_by)
    found = report(tmp_path, torch_dtype="bfloat16")
    [said] = found.disagreements
    assert f"{2 * PARAMETERS:,}" in said


def test_norms_in_fp32_explain_a_larger_sum(tmp_path: Path):
    # Nine norms of 256 with two bytes more each: two a layer and the last.
    surplus = 2 * 9 * 256
    write_index(tmp_path, dict.fromkeys(tiny_shapes(), "model-1.safetensors"), total_size=2 * PARAMETERS + surplus)
    assert report(tmp_path, torch_dtype="bfloat16").agrees


def test_an_indexs_sum_that_is_not_its_files_is_told(tmp_path: Path):
    indexed(tmp_path, tiny_shapes(), total_size=2 * PARAMETERS - 2)
    [said] = report(tmp_path).disagreements
    assert f"the files hold {2 * PARAMETERS:,}" in said


def test_an_index_that_contradicts_its_files_is_told(tmp_path: Path):
    shapes = tiny_shapes()
    file_of = indexed(tmp_path, {**shapes, "stray": (1,)})
    del file_of["stray"]
    file_of["lm_head.weight"] = next(file for file in file_of.values() if file != file_of["lm_head.weight"])
    write_index(tmp_path, file_of)
    found = report(tmp_path)
    assert found.not_in_files.first == ("lm_head.weight",)
    assert set(found.not_in_index.first) == {"stray", "lm_head.weight"}
    assert len(found.disagreements) == 2


def test_a_tied_head_stored_again_is_no_disagreement(tmp_path: Path):
    single(tmp_path, tiny_shapes())
    found = report(tmp_path, tie_word_embeddings=True)
    assert found.agrees
    assert found.tied_tensors == 1


def test_a_tied_head_of_another_size_is_one(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(tie_word_embeddings=True), "lm_head.weight": (999, 256)})
    assert report(tmp_path, tie_word_embeddings=True).extra.first == ("lm_head.weight",)


def test_a_bare_models_names_are_recognised_and_its_masks_set_aside(tmp_path: Path):
    described = {name: weight.shape for name, weight in describe_config(GPT2, name="x").named_weights()}
    shapes = {name.removeprefix("transformer."): shape for name, shape in described.items()}
    single(tmp_path, {**shapes, "h.0.attn.bias": (1, 1, 16, 16), "h.1.attn.masked_bias": (1,)})
    found = report(tmp_path, GPT2)
    assert found.agrees
    assert found.prefix_of_described == "transformer."
    assert found.computed_tensors == 2


def test_names_under_a_wrapper_are_recognised(tmp_path: Path):
    single(tmp_path, {f"language_model.{name}": shape for name, shape in tiny_shapes().items()})
    found = report(tmp_path)
    assert found.agrees
    assert found.prefix_of_stored == "language_model."


def test_old_rotary_tables_are_set_aside(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(), "model.layers.0.self_attn.rotary_emb.inv_freq": (32,)})
    assert report(tmp_path).computed_tensors == 1
    assert report(tmp_path).agrees


MATRIX = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("replaced", "dtypes"),
    [
        # GPTQ: eight 4-bit elements in an int32; AWQ names them alike.
        ({".qweight": (32, 256), ".qzeros": (2, 32), ".scales": (2, 256), ".g_idx": (256,)}, {".qweight": "I32"}),
        # compressed-tensors.
        ({".weight_packed": (256, 32), ".weight_scale": (256, 2), ".weight_shape": (2,)}, {".weight_packed": "I32"}),
        # bitsandbytes NF4: two elements in a byte, under the weight's own name.
        (
            {
                ".weight": (32_768, 1),
                ".weight.absmax": (1024,),
                ".weight.quant_map": (16,),
                ".weight.quant_state.bitsandbytes__nf4": (80,),
            },
            {".weight": "U8"},
        ),
        # ModelOpt NVFP4.
        (
            {".weight": (256, 128), ".weight_scale": (256, 16), ".weight_scale_2": (), ".input_scale": ()},
            {".weight": "U8"},
        ),
    ],
)
def test_packed_matrices_are_no_disagreement(
    tmp_path: Path, replaced: dict[str, tuple[int, ...]], dtypes: dict[str, str]
):
    shapes = tiny_shapes()
    del shapes[f"{MATRIX}.weight"]
    shapes |= {MATRIX + ending: shape for ending, shape in replaced.items()}
    single(tmp_path, shapes, {MATRIX + ending: dtype for ending, dtype in dtypes.items()})
    found = report(tmp_path)
    assert found.disagreements == ()
    assert found.packed_matrices == 1
    assert found.quantization_tensors == len(replaced) - 1


def test_fp8_keeps_its_shape_and_adds_scales(tmp_path: Path):
    shapes = {**tiny_shapes(), f"{MATRIX}.weight_scale_inv": (2, 2), f"{MATRIX[:-6]}k_proj.k_scale": ()}
    single(tmp_path, shapes, {f"{MATRIX}.weight": "F8_E4M3"})
    found = report(tmp_path)
    assert found.agrees
    assert (found.packed_matrices, found.quantization_tensors) == (0, 2)
    assert found.described_bytes is None


def test_scales_of_no_known_matrix_are_extra(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(), "model.layers.9.self_attn.q_proj.weight_scale": (1,)})
    assert report(tmp_path).extra.count == 1


def test_layers_for_multi_token_prediction_are_set_aside_where_the_config_announces_them(tmp_path: Path):
    single(tmp_path, {**tiny_shapes(), "mtp.layers.0.mlp.up_proj.weight": (512, 256)})
    found = report(tmp_path)
    assert found.agrees
    assert found.multi_token_tensors == 1


def test_long_lists_are_counted_and_cut(tmp_path: Path):
    single(tmp_path, {"nothing": (1,)})
    found = report(tmp_path)
    assert found.missing.count == 39
    assert len(found.missing.first) == 20
    assert any(said.endswith("and 36 more.") for said in found.disagreements)
