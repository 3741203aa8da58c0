"""Parameters that learn, as peft itself counts them on transformers' models."""

from typing import Any

import peft
import pytest
import torch
import transformers

from plimsoll.planners.families import describe_config
from plimsoll.planners.jobs.job import training_job
from plimsoll.planners.questions import Lora
from plimsoll.planners.stacks.profile import load_profile
from tests.planners.factories import question

# peft asks transformers by a name that it calls deprecated, and warns of adapters on tied matrices.
pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.filterwarnings("ignore::UserWarning")]

SIZES = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "untied": {"model_type": "llama", **SIZES, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "tied": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "one matrix of three": {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_head": 4, "n_layer": 3},
    "fused by heads": {"model_type": "bloom", "vocab_size": 96, "hidden_size": 32, "n_head": 4, "n_layer": 3},
    "fused gate": {
        "model_type": "phi3", **SIZES, "num_key_value_heads": 2, "pad_token_id": 0, "tie_word_embeddings": False
    },
}  # fmt: skip
CASES = [
    ("untied", ["q_proj", "v_proj"], []),
    ("untied", ["self_attn.q_proj", "lm_head"], []),
    ("untied", ["mlp.down_proj", "embed_tokens"], []),
    ("untied", "all-linear", []),
    ("untied", ["k_proj"], ["lm_head", "embed_tokens"]),
    ("untied", ["k_proj"], ["norm"]),
    ("untied", ["q_proj", "k_proj"], ["k_proj"]),
    ("untied", ["down_proj"], ["self_attn"]),
    ("tied", "all-linear", []),
    ("tied", ["q_proj", "lm_head"], []),
    ("tied", ["q_proj"], ["lm_head"]),
    ("tied", ["q_proj", "v_proj"], ["q_proj", "embed_tokens"]),
    ("one matrix of three", ["c_attn"], []),
    ("one matrix of three", ["c_proj", "wte"], []),
    ("one matrix of three", "all-linear", []),
    ("fused by heads", ["query_key_value", "word_embeddings"], []),
    ("fused by heads", "all-linear", []),
    ("fused gate", ["gate_up_proj", "qkv_proj"], []),
]


def _planned(config: dict[str, Any], targets: str | list[str], saved: list[str]) -> int:
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    lora = Lora(rank=4, target_modules=names, modules_to_save=tuple(saved))
    model = describe_config(config, name="tiny")
    asked = question(model=model, method="lora", lora=lora, sequence_length=32)
    return training_job(asked, load_profile("accelerate")).trainable_parameters


@pytest.mark.parametrize(("name", "targets", "saved"), CASES)
def test_as_many_parameters_learn_as_in_peft(name, targets, saved):
    config = dict(CONFIGS[name])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**{**config, "architectures": None})
        )
        adapted = peft.get_peft_model(
            model,
            peft.LoraConfig(r=4, target_modules=targets, modules_to_save=saved or None, task_type="CAUSAL_LM"),
        )
    trainable, _ = adapted.get_nb_trainable_parameters()
    assert _planned(config, targets, saved) == trainable
