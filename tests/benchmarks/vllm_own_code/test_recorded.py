"""Plans against what vLLM's own code said of the same ranks, without vLLM."""

import json
from pathlib import Path

import pytest

from benchmarks.vllm_own_code.cases import CASES, Case
from benchmarks.vllm_own_code.comparison import AVAILABLE_BYTES
from benchmarks.vllm_own_code.planned import planned

FACTS = json.loads((Path(__file__).parents[3] / "benchmarks/data/vllm_own_code.json").read_text(encoding="utf-8"))
SAID = {facts["case"]: facts for facts in FACTS["cases"]}
# Scales of a layer's attention, four numbers of 4 bytes and two more, a rank's map of its experts, and decays in fp32.
SMALL_BYTES_A_LAYER = 1024
# What is planned beyond vLLM's own. Mamba's decays, [8192, 16] a layer, are kept in fp32, and planned in 16 bits.
LEFT = {
    # A scale in fp32 for each output: queries, keys and values, output, gate and up, down. Planned is one a matrix.
    "Llama 3.1 8B in fp8 by output, 3 layers, tensor 2": -3 * (3072 + 4096 + 14336 + 4096) * 4,
    # Not told apart: 0.02 % of the rank.
    "DeepSeek V3 in fp8 by blocks, 5 layers, tensor 4": -1_523_128,
    "Jamba v0.1, 8 layers": -7 * 8192 * 16 * 2,
    "Falcon Mamba 7B, 9 layers": -9 * 8192 * 16 * 2,
    # Transformers' code, which vLLM runs of Olmo 3, keeps frequencies and no table: 65,536 positions x 128 x 2 bytes.
    "Olmo 3 7B, 7 layers": 65536 * 128 * 2,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_ranks_weights_are_those_of_vllms_own_model(case: Case):
    said = sum(SAID[case.name]["held"].values())
    off = planned(case, AVAILABLE_BYTES).weights_bytes - said - LEFT.get(case.name, 0)
    assert abs(off) <= SMALL_BYTES_A_LAYER * case.question.model.num_layers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_and_tokens_are_those_of_vllms_own_cache_planning(case: Case):
    plan, said = planned(case, AVAILABLE_BYTES), SAID[case.name]["cache"]
    assert (plan.cache.blocks, plan.cache.tokens) == (said["blocks"], said["tokens"])
    assert plan.cache.max_concurrency == said["max_concurrency"]
    assert plan.block_size == said["block_size"]


@pytest.mark.parametrize("case", [case for case in CASES if case.runs_layers], ids=lambda case: case.name)
def test_layers_hold_about_what_vllms_own_do_one_operation_after_another(case: Case):
    # Planned as vLLM's compiled layers were logged, which let go of some tensors earlier: 11 % below to 14 % above.
    said = SAID[case.name]["layers_bytes"]
    assert planned(case, AVAILABLE_BYTES).layers_bytes == pytest.approx(said, rel=0.15)


def test_every_case_was_put_to_vllm_and_none_that_is_gone():
    assert [case.name for case in CASES] == list(SAID)
