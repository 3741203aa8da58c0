"""Pai-Megatron-Patch's arguments: Megatron-LM's, with the tokenizer of the model's own family.

Names: alibaba/Pai-Megatron-Patch, `megatron_patch/arguments.py`; how they go
together, `examples/qwen2_5/run_mcore_qwen.sh`.
"""

from __future__ import annotations

from collections.abc import Mapping

from plimsoll.service.launch.options import Value, option_lines
from plimsoll.service.launch.training import Placeholder, Target, TrainingLaunch, given_reasons
from plimsoll.service.stacks.megatron import launch as megatron

# `megatron_patch/tokenizer/__init__.py`, --patch-tokenizer-type, by transformers' model_type.
TOKENIZERS: Mapping[str, str] = {"qwen2": "Qwen2Tokenizer", "qwen3": "Qwen3Tokenizer", "qwen3_moe": "Qwen3Tokenizer"}
# It makes the vocabulary of its tokenizer's and this many rows more.
EXTRA_ROWS = Placeholder("$EXTRA_VOCAB_SIZE")
OWN_TOKENIZER = ("tokenizer-type", "tokenizer-model", "vocab-size")


def _is_for(launch: TrainingLaunch) -> bool:
    return launch.model_config.get("model_type") in TOKENIZERS


def pai_megatron_arguments(launch: TrainingLaunch) -> str:
    """Return the arguments of its training scripts but those of the data."""
    options = {name: value for name, value in megatron.megatron_options(launch).items() if name not in OWN_TOKENIZER}
    patched: dict[str, Value] = {
        "patch-tokenizer-type": TOKENIZERS[launch.model_config["model_type"]],
        "extra-vocab-size": EXTRA_ROWS,
        "max-padding-length": launch.question.sequence_length,
        "load": launch.model_path,
        "train-mode": "pretrain",
        "dataset": "MMAP",
        "transformer-impl": "transformer_engine",
    }
    return "\n".join(option_lines({**options, **patched}))


def _why_not(launch: TrainingLaunch) -> tuple[str, ...]:
    is_muon = launch.question.optimizer == megatron.MUON
    return megatron.why_not(launch) + given_reasons(
        (
            launch.layout.activation_offload,
            "Pai-Megatron-Patch brings a Megatron-LM of its own, which is not known to offload activations.",
        ),
        (
            launch.layout.context_all_to_all > 1,
            "Pai-Megatron-Patch brings a Megatron-LM of its own, which is not known to exchange heads.",
        ),
        (is_muon, "Pai-Megatron-Patch brings a Megatron-LM of its own, which is not known to have Muon."),
    )


PAI_MEGATRON = Target(
    name="pai-megatron",
    is_for=_is_for,
    why_not=_why_not,
    write=pai_megatron_arguments,
    saved_as="pai-megatron.txt",
)
