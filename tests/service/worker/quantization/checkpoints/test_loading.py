"""Written checkpoints loaded by transformers: the weights that were measured, and for bitsandbytes its own logits."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.utils.quantization_config import CompressedTensorsConfig

from plimsoll.planners.quantization.planning import scheme_settings
from plimsoll.service.worker.quantization.checkpoints.compressed import COMPRESSED_SCHEMES
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.schemes.quantizers import quantizer
from plimsoll.service.worker.quantization.task import run
from tests.service.worker.quantization.small_llama import CONFIG, IN_WHOLE_BLOCKS, weights, write_checkpoint

# Of the readers, not of what they read: bitsandbytes' and compressed-tensors' own deprecations.
pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.arange(24).view(2, 12)
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
BY_BITSANDBYTES = {
    "nf4": BitsAndBytesConfig(bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, **FOUR_BITS),
    "fp4": BitsAndBytesConfig(bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=True, **FOUR_BITS),
    "int8-channel": BitsAndBytesConfig(load_in_8bit=True),
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A source, and a root to write to."""
    monkeypatch.setenv("PLIMSOLL_MODEL_ROOTS", str(tmp_path))
    monkeypatch.setenv("PLIMSOLL_OUTPUT_ROOTS", str(tmp_path))
    return write_checkpoint(tmp_path / "source"), tmp_path / "made"


def quantize(source, made, scheme, **changes):
    question = {
        "model": {"name": "small", "config": json.loads((source / "config.json").read_text())},
        "scheme": scheme,
        "weights": {"path": str(source)},
        "output": str(made),
        **changes,
    }
    return run(question, lambda *progress: None)


def loaded(folder, **options):
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, device_map="cpu", dtype=torch.bfloat16, output_loading_info=True, **options
    )
    assert not any(report.values())
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def loaded_both_ways(source, made, scheme):
    """The model as transformers quantizes it while it loads, and as it was written."""
    quantize(source, made, scheme, double_quantization=True)
    return loaded(source, quantization_config=BY_BITSANDBYTES[scheme]), loaded(made)


@pytest.mark.parametrize("scheme", BY_BITSANDBYTES)
@pytest.mark.parametrize("config", [CONFIG, IN_WHOLE_BLOCKS], ids=["in parts of blocks", "in whole blocks"])
def test_transformers_loads_the_weights_of_its_own_quantization(folders, scheme, config):
    source, made = folders
    own, ours = loaded_both_ways(write_checkpoint(source, config=config), made, scheme)
    for (name, expected), (_, found) in zip(own.named_parameters(), ours.named_parameters(), strict=True):
        assert torch.equal(expected, found), name


@pytest.mark.parametrize("scheme", BY_BITSANDBYTES)
def test_transformers_computes_with_it_as_with_its_own_quantization(folders, scheme):
    source, made = folders
    own, ours = loaded_both_ways(write_checkpoint(source, config=IN_WHOLE_BLOCKS), made, scheme)
    assert torch.equal(logits(own), logits(ours))


def test_transformers_computes_without_packing_for_the_processor(folders, monkeypatch):
    # Processors with AVX-512 BF16 multiply by packed weights, all others by these.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    source, made = folders
    own, ours = loaded_both_ways(source, made, "nf4")
    assert torch.equal(logits(own), logits(ours))


def restored(weight, settings):
    made = quantizer(settings)
    with ChunkWorkers(threads=1) as workers:
        quantized = made.quantize(weight, workers)
        restore = made.restore(quantized, workers)
        return torch.cat([restore(*span) for span in made.spans(quantized.shape, 2**20)]).view(weight.shape)


@pytest.mark.parametrize("scheme", COMPRESSED_SCHEMES)
def test_transformers_loads_the_weights_that_compressed_tensors_holds(folders, scheme):
    source, made = folders
    settings = scheme_settings(scheme, block_size=32)
    quantize(source, made, scheme, block_size=32)
    model = loaded(made, quantization_config=CompressedTensorsConfig(dequantize=True))
    found = dict(model.named_parameters())
    for name, weight in weights().items():
        expected = weight
        if name.endswith("proj.weight"):
            # compressed-tensors multiplies in the dtype of the scales, which are fp16 for int4.
            whole = restored(weight, settings)
            expected = (whole.half() if scheme == "int4" else whole).bfloat16()
        assert torch.equal(found[name], expected), name
    assert torch.isfinite(logits(model)).all()


# Key and value projections of 12 rows, whose zero points fill no whole words of eight.
ODD_ROWS = {**CONFIG, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 12}


@pytest.mark.parametrize("config", [CONFIG, ODD_ROWS], ids=["whole words", "parts of words"])
def test_int4_loads_without_being_told_how(folders, config):
    source, made = folders
    write_checkpoint(source, config=config)
    settings = scheme_settings("int4", block_size=32)
    quantize(source, made, "int4", block_size=32)
    found = dict(loaded(made).named_parameters())
    for name, weight in weights(config=config).items():
        expected = restored(weight, settings).half().bfloat16() if name.endswith("proj.weight") else weight
        assert torch.equal(found[name], expected), name


@pytest.mark.parametrize("scheme", ["fp8", "fp8-channel", "int8", "int8-group", "int4", "mxfp4"])
def test_transformers_takes_the_quantized_tensors_as_they_are(folders, scheme):
    source, made = folders
    quantize(source, made, scheme, block_size=32)
    assert torch.isfinite(logits(loaded(made))).all()


def test_a_tied_head_stays_as_it_is(folders):
    source, made = folders
    tied = {name: weight for name, weight in weights().items() if name != "lm_head.weight"}
    write_checkpoint(source, tied)
    (source / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    quantize(source, made, "fp8-channel")
    assert torch.isfinite(logits(loaded(made))).all()


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128, "dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["fp8", "fp8-channel", "int8-group", "mxfp4"])
def test_experts_that_are_matrices_each_are_loaded_too(folders, scheme):
    source, made = folders
    (source / "config.json").write_text(json.dumps(MIXTRAL))
    quantize(source, made, scheme, block_size=32, weights="random")
    config = json.loads((made / "config.json").read_text())
    assert config["quantization_config"]["ignore"] == ["model.layers.0.block_sparse_moe.gate", "lm_head"]
    model = loaded(made, quantization_config=CompressedTensorsConfig(dequantize=True))
    assert torch.isfinite(logits(model)).all()
