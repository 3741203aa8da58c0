"""The class that is built of a config."""

import pytest

from plimsoll.planners.ground.errors import InvalidModelConfig
from plimsoll.service.worker.proofs.count.module import whole_module
from tests.planners.families.small_mixtures import LLAMA, MIXTURE_VARIANTS
from tests.service.worker.cases import config

WHISPER = {"d_model": 48, "vocab_size": 131, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LLAMA4 = next(fields for fields in MIXTURE_VARIANTS["llama4"] if "vision_config" in fields)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (config(), "LlamaForCausalLM"),
        (config(architectures=["LlamaForSequenceClassification"]), "LlamaForCausalLM"),
        ({"model_type": "llama4", **LLAMA4}, "Llama4ForConditionalGeneration"),
        ({"model_type": "llama4", **LLAMA4, "architectures": ["Llama4ForCausalLM"]}, "Llama4ForCausalLM"),
        ({"model_type": "bert", **LLAMA, "architectures": ["BertForPreTraining"]}, "BertForPreTraining"),
        ({"model_type": "bert", **LLAMA, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM"),
        ({"model_type": "t5", "d_model": 64, "vocab_size": 131}, "T5ForConditionalGeneration"),
        ({"model_type": "whisper", **WHISPER}, "WhisperForConditionalGeneration"),
    ],
)  # fmt: skip
def test_the_class_is_the_one_that_the_config_names_or_needs(values, name):
    module = whole_module(values)
    assert type(module).__name__ == name
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.parametrize("values", [config(hidden_act="no such function"), config(model_type="aquila")])
def test_a_config_that_transformers_cannot_build_is_refused(values):
    with pytest.raises(InvalidModelConfig, match="cannot build"):
        whole_module(values)
