"""Sizes that configs tell under several names."""

import pytest

from plimsoll.planners.catalogue.catalogue import catalogue
from plimsoll.service.worker.jobs.config_keys import number_of_layers, of_layers
from plimsoll.service.worker.proofs.trace.layer_sampling import layer_kinds

NANO, ULTRA = "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"
BAMBA = "ibm-fms/Bamba-9B"


def config(model):
    return dict(catalogue().model(model).config)


def test_a_list_of_kinds_tells_how_many_layers_there_are():
    kinds = config(ULTRA)["layers_block_type"]
    assert number_of_layers(config(ULTRA)) == len(kinds)
    assert of_layers(config(ULTRA), range(3, 8))["layers_block_type"] == kinds[3:8]


def test_some_layers_of_a_pattern_keep_their_letters():
    whole = config(NANO)
    some = of_layers(whole, range(10, 16))
    assert (some["hybrid_override_pattern"], some["num_hidden_layers"]) == (whole["hybrid_override_pattern"][10:16], 6)
    # A word of as many letters as there are layers is none.
    assert of_layers({"num_hidden_layers": 5, "model_type": "llama"}, range(2))["model_type"] == "llama"


def test_some_layers_attend_where_those_of_the_whole_do():
    whole = config(BAMBA)
    first = whole["attn_layer_indices"][0]
    assert of_layers(whole, range(first - 1, first + 3))["attn_layer_indices"] == [1]


@pytest.mark.parametrize("model", [NANO, ULTRA, BAMBA])
def test_layers_of_hybrids_are_not_taken_to_be_alike(model):
    assert len(set(layer_kinds(config(model)))) > 1
