"""The job on a real checkpoint: read, quantized, written, killed and resumed."""

import asyncio
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from plimsoll.planners.ground.errors import InvalidQuestion, NotYetAvailable
from plimsoll.service.ground.errors import InvalidCheckpoint, PathNotAllowed
from plimsoll.service.worker.processes import child as child_module
from plimsoll.service.worker.processes.child import ChildLimits, run_child
from plimsoll.service.worker.quantization.checkpoints import writer
from plimsoll.service.worker.quantization.checkpoints.output_folder import PARTIAL_SUFFIX
from plimsoll.service.worker.quantization.schemes.quantized import NonFiniteWeights
from plimsoll.service.worker.quantization.task import run
from tests.service.worker.quantization.small_llama import CONFIG, stored, weights, write_checkpoint

TARGET = "plimsoll.service.worker.quantization.task:run"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
SETTINGS = {
    "nf4-double": {"scheme": "nf4", "double_quantization": True},
    "fp4": {"scheme": "fp4"},
    "int8-channel": {"scheme": "int8-channel"},
}
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
BY_TRANSFORMERS = {
    "nf4-double": {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, **FOUR_BITS},
    "fp4": {"bnb_4bit_quant_type": "fp4", **FOUR_BITS},
    "int8-channel": {"load_in_8bit": True},
}


@pytest.fixture(scope="module")
def saved_by_transformers(tmp_path_factory):
    """What transformers saves after it quantized the model itself, here: a mean's last bit depends on the processor."""
    folder = tmp_path_factory.mktemp("transformers")
    source = write_checkpoint(folder / "source")
    for name, options in BY_TRANSFORMERS.items():
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=BitsAndBytesConfig(**options), dtype=torch.bfloat16, device_map="cpu"
        )
        model.save_pretrained(folder / name)
    return folder


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """A root to read from and one to write to."""
    monkeypatch.setenv("PLIMSOLL_MODEL_ROOTS", str(tmp_path / "models"))
    monkeypatch.setenv("PLIMSOLL_OUTPUT_ROOTS", str(tmp_path / "outputs"))
    (tmp_path / "outputs").mkdir()
    write_checkpoint(tmp_path / "models" / "source")
    return tmp_path


def request(roots, **changes):
    return {
        "model": {"name": "small", "config": CONFIG},
        "scheme": "nf4",
        "weights": {"path": str(roots / "models" / "source")},
        "output": str(roots / "outputs" / "made"),
        **changes,
    }


def ignore(done, total, unit, message):
    pass


def small_shards(monkeypatch, shard_bytes=40_000):
    """Make shards so small that this model has several."""
    monkeypatch.setitem(writer.planned_shards.__kwdefaults__, "shard_bytes", shard_bytes)


# Of bitsandbytes' own loading, not of what is written.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
def test_what_is_written_is_what_transformers_saves(roots, monkeypatch, saved_by_transformers, name, sharded):
    if sharded:
        small_shards(monkeypatch)
    run(request(roots, **SETTINGS[name]), ignore)
    made, saved = roots / "outputs" / "made", saved_by_transformers / name
    assert quantization_config(made) == quantization_config(saved)
    ours, own = stored(made), stored(saved)
    assert ours.keys() == own.keys()
    for tensor_name, tensor in own.items():
        assert ours[tensor_name].dtype == tensor.dtype, tensor_name
        assert torch.equal(ours[tensor_name], tensor), tensor_name


def quantization_config(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def test_an_index_places_every_tensor_of_every_shard(roots, monkeypatch):
    small_shards(monkeypatch)
    run(request(roots), ignore)
    made = roots / "outputs" / "made"
    index = json.loads((made / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == stored(made).keys()
    assert len(set(index["weight_map"].values())) > 2


def test_sums_in_the_folder_and_in_the_result_are_those_of_the_files(roots):
    result = run(request(roots), ignore)
    made = roots / "outputs" / "made"
    lines = (made / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in lines} == {"config.json", "model.safetensors"}
    for line in lines:
        sum_, name = line.split("  ")
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == sum_ == result["output"]["sha256"][name]
    assert result["output"]["path"] == "made"
    assert result["output"]["file_bytes"] == (made / "model.safetensors").stat().st_size


def test_measured_bytes_are_those_of_the_checkpoint(roots):
    result = run(request(roots, output=None), ignore)
    assert result["original_bytes"] == sum(tensor.nbytes for tensor in weights().values())
    # Each layer: q, o 64 x 64, k, v 32 x 64, three of 160 x 64 are 43,008 weights: half a byte and 4 bytes a block.
    kept_bytes = 2 * (2 * 96 * 64 + 5 * 64)
    assert result["quantized_bytes"] == 2 * (43_008 // 2 + 4 * 43_008 // 64) + kept_bytes


def test_the_config_beside_the_weights_is_the_one_that_goes_on(roots):
    config = {**CONFIG, "eos_token_id": 7}
    (roots / "models" / "source" / "config.json").write_text(json.dumps(config))
    run(request(roots), ignore)
    made = json.loads((roots / "outputs" / "made" / "config.json").read_text())
    assert {name: made[name] for name in config} == config


def test_without_a_config_beside_the_weights_the_requests_goes_on(roots):
    (roots / "models" / "source" / "config.json").unlink()
    run(request(roots), ignore)
    assert json.loads((roots / "outputs" / "made" / "config.json").read_text())["hidden_size"] == 64


def test_tokenizers_go_with_the_weights_and_code_does_not(roots):
    source = roots / "models" / "source"
    (source / "tokenizer.json").write_text("{}")
    (source / "modeling.py").write_text("raise SystemExit")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    run(request(roots), ignore)
    names = {path.name for path in (roots / "outputs" / "made").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "SHA256SUMS", "quantization_report.json"}


def test_a_weight_that_is_not_finite_is_named_and_nothing_is_left(roots):
    bad = weights()
    bad[Q_PROJ][3, 5] = math.nan
    write_checkpoint(roots / "models" / "source", bad)
    with pytest.raises(NonFiniteWeights, match=Q_PROJ):
        run(request(roots), ignore)
    assert list((roots / "outputs").iterdir()) == []


def test_a_tensor_left_alone_that_is_not_finite_is_named(roots):
    bad = weights()
    bad["lm_head.weight"][0, 0] = -math.inf
    write_checkpoint(roots / "models" / "source", bad)
    result = run(request(roots), ignore)
    assert any("not finite: lm_head.weight" in note for note in result["assumptions"])


def test_rows_that_are_no_whole_groups_are_not_written(roots):
    # 64 input features are half a group of 128.
    with pytest.raises(NotYetAvailable, match="no whole groups of 128") as caught:
        run(request(roots, scheme="int4"), ignore)
    assert caught.value.pointer == "/output"


def test_matrices_stored_the_other_way_round_are_not_written(roots):
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 1, "vocab_size": 20, "n_positions": 8}
    with pytest.raises(NotYetAvailable, match=r"c_attn\.weight"):
        run(request(roots, model={"name": "gpt2", "config": gpt2}, weights="random"), ignore)


def test_random_weights_can_be_written_too(roots):
    run(request(roots, weights="random", seed=3), ignore)
    made = stored(roots / "outputs" / "made")
    assert torch.equal(made["model.norm.weight"], torch.ones(64).bfloat16())
    assert made[Q_PROJ].shape == (64 * 64 // 2, 1)


def test_paths_outside_the_roots_are_refused(roots):
    write_checkpoint(roots / "elsewhere")
    with pytest.raises(PathNotAllowed, match="model root"):
        run(request(roots, weights={"path": str(roots / "elsewhere")}), ignore)
    with pytest.raises(PathNotAllowed, match="output root"):
        run(request(roots, output=str(roots / "elsewhere" / "made")), ignore)


def test_an_output_that_exists_is_refused(roots):
    (roots / "outputs" / "made").mkdir()
    with pytest.raises(InvalidQuestion, match="exists"):
        run(request(roots), ignore)


def test_a_folder_without_weights_is_refused(roots):
    (roots / "models" / "empty").mkdir()
    with pytest.raises(InvalidCheckpoint, match="no safetensors"):
        run(request(roots, weights={"path": str(roots / "models" / "empty")}), ignore)


def test_a_job_begun_again_after_it_published_gives_its_result(roots):
    first = run(request(roots), ignore)
    again = run(request(roots), ignore)
    assert again == json.loads(json.dumps(first))


def test_progress_counts_every_byte(roots):
    calls = []
    run(request(roots), lambda *call: calls.append(call))
    total = sum(tensor.nbytes for tensor in weights().values())
    assert calls[-1][:3] == (total, total, "bytes")


def test_a_full_disk_fails_the_job_and_leaves_nothing(roots, monkeypatch):
    def full(file, offset, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        run(request(roots), ignore)
    assert list((roots / "outputs").iterdir()) == []


class Killed(BaseException):
    """Stands for the end of a process of which nothing is cleared away."""


def killer(done, total, unit, message):
    """Report progress until half-way, and end there."""
    if done > total // 2:
        raise Killed


def test_a_killed_job_goes_on_at_the_next_shard_and_leaves_the_same_bytes(roots, monkeypatch):
    small_shards(monkeypatch)
    whole = run(request(roots, output=str(roots / "outputs" / "whole")), ignore)

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            run(request(roots), killer)
    resumed = run(request(roots), ignore)
    assert any("attempt that was killed" in note for note in resumed["assumptions"])
    assert resumed["output"]["sha256"] == whole["output"]["sha256"]
    assert resumed["relative_error"] == whole["relative_error"]
    assert len(resumed["tensors"]) == 2 * 7


@pytest.mark.slow
def test_a_child_that_is_told_to_end_leaves_nothing(roots, monkeypatch):
    monkeypatch.setattr(child_module, "TERMINATE_GRACE_SECONDS", 60.0)  # However slow the machine.
    stop = asyncio.Event()
    seen = []

    def on_progress(progress):
        if progress.done:
            seen.append([path.name for path in (roots / "outputs").iterdir()])
            stop.set()

    limits = ChildLimits(memory_bytes=4 * 2**30, seconds=300.0, limit_address_space=False)
    big = {**CONFIG, "num_hidden_layers": 64, "hidden_size": 512, "intermediate_size": 2048}
    job = request(roots, model={"name": "big", "config": big}, weights="random")

    async def cancelled():
        return await run_child(TARGET, job, limits=limits, on_progress=on_progress, stop=stop)

    outcome = asyncio.run(cancelled())
    assert outcome.kind == "cancelled"
    assert seen[0] == [f".made{PARTIAL_SUFFIX}"]
    assert list((roots / "outputs").iterdir()) == []


# The job with small shards, in a process of its own that stops half-way and waits to be killed.
KILLABLE = """
import json, sys, time
from plimsoll.service.worker.quantization import task
from plimsoll.service.worker.quantization.checkpoints import writer
writer.planned_shards.__kwdefaults__["shard_bytes"] = 40_000

def wait_half_way(done, total, unit, message):
    if 2 * done > total:
        time.sleep(600)

task.run(json.load(sys.stdin), wait_half_way)
"""


@pytest.mark.slow
def test_a_process_ended_by_sigkill_is_gone_on_with_to_the_same_bytes(roots, monkeypatch):
    small_shards(monkeypatch)
    job = request(roots)
    partial = roots / "outputs" / f".made{PARTIAL_SUFFIX}"
    with subprocess.Popen([sys.executable, "-c", KILLABLE], stdin=subprocess.PIPE, text=True) as child:
        child.stdin.write(json.dumps(job))
        child.stdin.close()
        while child.poll() is None and not list(partial.glob("*.record.json")):
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert not (roots / "outputs" / "made").exists()
    resumed = run(job, ignore)
    assert any("attempt that was killed" in note for note in resumed["assumptions"])
    whole = run({**job, "output": str(roots / "outputs" / "whole")}, ignore)
    assert resumed["output"]["sha256"] == whole["output"]["sha256"]


def test_a_source_that_changed_is_begun_anew(roots, monkeypatch):
    small_shards(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            run(request(roots), killer)
    changed = weights()
    changed[Q_PROJ] = changed[Q_PROJ] * 2
    write_checkpoint(roots / "models" / "source", changed)
    resumed = run(request(roots), ignore)
    assert not any("attempt that was killed" in note for note in resumed["assumptions"])


def test_neither_root_nor_source_folder_stands_in_what_is_published(roots):
    run(request(roots), ignore)
    assert str(roots) not in (roots / "outputs" / "made" / "quantization_report.json").read_text()
