"""Pai-Megatron-Patch's arguments, held against a golden file."""

from __future__ import annotations

from plimsoll.service.artifacts.training import training_artifacts
from tests.service.stacks.launches import QWEN_3_30B_A3B, golden, launch, why_missing, written


def test_the_arguments_are_those_that_were_read_beside_its_parser():
    given = launch(
        "megatron", config=QWEN_3_30B_A3B, model_name="Qwen/Qwen3-30B-A3B", data_parallel=4, tensor_parallel=2,
        expert_parallel=8, sequence_parallel=True, zero_stage=1, steps=100,
    )  # fmt: skip
    assert written("pai-megatron", given) == golden("pai-megatron.txt")


def test_the_batch_multiplies_out():
    given = launch("megatron", config=QWEN_3_30B_A3B, data_parallel=4, tensor_parallel=2, micro_batch_size=2)
    said = dict(line.split(" ", 1) for line in written("pai-megatron", given).splitlines() if " " in line)
    # 4 replicas x 2 sequences x 8 micro-batches = 64; Megatron finds the 8 by itself.
    micro_batches = int(said["--global-batch-size"]) / (4 * int(said["--micro-batch-size"]))
    assert (micro_batches, given.plan.layout.gradient_accumulation_steps) == (8, 8)


def test_its_tokenizer_takes_the_place_of_megatrons():
    lines = written("pai-megatron", launch("megatron", config=QWEN_3_30B_A3B)).splitlines()
    assert "--patch-tokenizer-type Qwen3Tokenizer" in lines
    assert not [line for line in lines if line.startswith(("--tokenizer-", "--vocab-size"))]


def test_other_families_have_none():
    assert "pai-megatron" not in training_artifacts(launch("megatron")).files
    assert "pai-megatron" not in training_artifacts(launch("megatron")).missing


def test_what_megatron_cannot_be_told_it_cannot_either():
    given = launch("megatron", config=QWEN_3_30B_A3B, asked={"optimizer": "lion"})
    assert "no optimizer lion" in why_missing("pai-megatron", given)


def test_muon_is_not_known_to_be_its():
    given = launch("megatron", config=QWEN_3_30B_A3B, asked={"optimizer": "muon"})
    assert "not known to have Muon" in why_missing("pai-megatron", given)
