"""Which reader describes which `model_type`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from plimsoll.planners.architecture.model import ModelSpec
from plimsoll.planners.families import (
    bailing,
    bamba,
    bert,
    chatglm,
    dbrx,
    deepseek,
    deepseek_v4,
    falcon,
    fused,
    gemma3n,
    gemma4,
    gpt2,
    gpt_families,
    gpt_oss,
    jamba,
    kimi_linear,
    llama4,
    mamba,
    mimo,
    minimax,
    minimax_m3,
    mllama,
    mpt,
    nemotron_h,
    nemotron_nas,
    opt,
    qwen_hybrid,
    speech_and_text,
    step3,
    t5,
)
from plimsoll.planners.families.config import ConfigReader
from plimsoll.planners.families.dense import dense_decoder
from plimsoll.planners.families.dense_families import DENSE_FAMILIES
from plimsoll.planners.families.gpt import gpt_decoder
from plimsoll.planners.families.mixture_families import MIXTURE_FAMILIES
from plimsoll.planners.families.mixtures import mixture_decoder
from plimsoll.planners.families.multimodal import WRAPPERS, multimodal
from plimsoll.planners.families.own_code import READ_KEYS as OWN_CODE_KEYS
from plimsoll.planners.families.own_code import with_own_code
from plimsoll.planners.families.rope_scaling import stretched_positions
from plimsoll.planners.families.rotary import FRACTION_NAMES, interpolated_tables, rotary_fraction
from plimsoll.planners.families.stored_formats import KEY as QUANTIZATION
from plimsoll.planners.families.stored_formats import READ_KEYS as FORMAT_KEYS
from plimsoll.planners.families.stored_formats import is_quantized, stored_formats, without_repeats
from plimsoll.planners.ground.errors import InvalidModelConfig, UnknownModelType

# How transformers ends the names of classes whose head tells labels, spans or rewards.
OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel")
UNREAD_FORMAT_NOTE = (
    "'quantization_config' says that the checkpoint is quantized in a way that is not read; a serving plan that names "
    "no format for its weights counts them in bf16."
)

# Weights, operations and tensors: a hundred times an ordinary model's, and seven times the catalogue's largest tower's.
MOST_DESCRIBED_PARTS = 8_192
MOST_NAMED_KEYS = 12
MOST_NAME_CHARACTERS = 60
# What is read of a config wherever it stands, whichever family's it is.
READ_BESIDE_THE_FAMILY = frozenset({*OWN_CODE_KEYS, *FRACTION_NAMES, *FORMAT_KEYS})

Reader = Callable[[ConfigReader, str, str], ModelSpec]

TEXT_READERS: Mapping[str, Reader] = {
    "deepseek_v2": partial(deepseek.deepseek, variant=deepseek.V2),
    "deepseek_v3": partial(deepseek.deepseek, variant=deepseek.V3),
    "deepseek_v32": partial(deepseek.deepseek, variant=deepseek.V32),
    "deepseek_v4": deepseek_v4.deepseek_v4,
    "glm4_moe_lite": partial(deepseek.deepseek, variant=deepseek.GLM_4_LITE),
    "glm_moe_dsa": partial(deepseek.deepseek, variant=deepseek.GLM_5),
    "bert": bert.bert,
    "bloom": partial(gpt_decoder, family=gpt_families.BLOOM),
    "baichuan": fused.baichuan,
    "bailing_moe_v2": bailing.bailing_moe_v2,
    "chatglm": chatglm.chatglm,
    "falcon": falcon.falcon,
    "internlm2": fused.internlm2,
    "qwen": fused.qwen,
    "t5": t5.t5,
    "bart": speech_and_text.bart,
    "whisper": speech_and_text.whisper,
    "dbrx": dbrx.dbrx,
    "gemma3n_text": gemma3n.gemma3n_text,
    "gemma4_text": gemma4.gemma4_text,
    "gpt2": gpt2.gpt2,
    "gpt_oss": gpt_oss.gpt_oss,
    "llama4_text": llama4.llama4_text,
    "gpt_bigcode": gpt_families.gpt_bigcode,
    "gpt_neo": gpt_families.gpt_neo,
    "gpt_neox": gpt_families.gpt_neox,
    "gptj": partial(gpt_decoder, family=gpt_families.GPT_J),
    "mpt": mpt.mpt,
    "opt": opt.opt,
    "kimi_k2": partial(deepseek.deepseek, variant=deepseek.V3),
    "mamba": mamba.mamba,
    "mimo_v2_flash": mimo.mimo_v2_flash,
    "mamba2": mamba.mamba2,
    "bamba": bamba.bamba,
    "falcon_mamba": mamba.mamba,
    "granitemoehybrid": bamba.granite_hybrid,
    "jamba": jamba.jamba,
    "kimi_linear": kimi_linear.kimi_linear,
    "minimax": minimax.minimax,
    "minimax_m3": minimax_m3.minimax_m3_text,
    "minimax_m3_vl_text": minimax_m3.minimax_m3_text,
    "mllama_text_model": mllama.mllama_text,
    "mistral4": partial(deepseek.deepseek, variant=deepseek.MISTRAL_4),
    "nemotron-nas": nemotron_nas.nemotron_nas,
    "nemotron_h": nemotron_h.nemotron_h,
    "qwen3_5_moe_text": partial(qwen_hybrid.qwen_hybrid, family=qwen_hybrid.QWEN3_5_MOE),
    "qwen3_5_text": partial(qwen_hybrid.qwen_hybrid, family=qwen_hybrid.QWEN3_5),
    "step3p5": step3.step3_text,
    "qwen3_next": partial(qwen_hybrid.qwen_hybrid, family=qwen_hybrid.QWEN3_NEXT),
    **{model_type: partial(dense_decoder, family=family) for model_type, family in DENSE_FAMILIES.items()},
    **{model_type: partial(mixture_decoder, family=family) for model_type, family in MIXTURE_FAMILIES.items()},
}
READERS: Mapping[str, Reader] = {
    **TEXT_READERS,
    **{
        model_type: partial(multimodal, wrapper=wrapper, readers=TEXT_READERS)
        for model_type, wrapper in WRAPPERS.items()
    },
}


def known_model_types() -> tuple[str, ...]:
    """Return every `model_type` that can be described, sorted."""
    return tuple(sorted(READERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """A `config.json` that was read: what it describes, and what of it counted."""

    spec: ModelSpec
    used: Mapping[str, Any]
    """The config without what no reader asked for; it is read as the whole is."""
    unread: str | None
    """What is said of the rest; None where there is none."""


def describe_config(config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> ModelSpec:
    """Return the description of the model that a `config.json` configures; raises what `read_model` does."""
    return read_model(config, name=name, pointer=pointer).spec


def read_model(config: Mapping[str, Any], *, name: str, pointer: str = "/model/config") -> ReadConfig:
    """Return the description of the model that a `config.json` configures, and what of it was read.

    Some of the keys that no reader asked for are named in the description's assumptions.
    Raises `UnknownModelType` for a family without a reader and
    `InvalidModelConfig` for a config that is missing a size or contradicts itself.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        wrong = "is missing" if model_type is None else "must be text"
        raise InvalidModelConfig(
            f"'model_type' {wrong}; known are {', '.join(known_model_types())}.", pointer=f"{pointer}/model_type"
        )
    reader = READERS.get(model_type)
    if reader is None:
        raise UnknownModelType(model_type, READERS, pointer=f"{pointer}/model_type")
    read = ConfigReader(config, pointer=pointer)
    spec = with_own_code(reader(read, name, model_type), config, model_type)
    _refuse_endless(spec, pointer)
    unread = _unread_note(read.unread_keys())
    notes = () if unread is None else (unread,)
    if is_quantized(config) and stored_formats(config, pointer=pointer) is None:
        notes = (*notes, UNREAD_FORMAT_NOTE)
    other = _other_head(config)
    if other is not None:
        notes = (*notes, f"'architectures' names {other}; the model is described with its head over the vocabulary.")
    positions = stretched_positions(config, spec.max_position_embeddings)
    described = dataclasses.replace(
        spec,
        max_position_embeddings=positions,
        rotary_fraction=rotary_fraction(config, model_type),
        interpolated_tables=interpolated_tables(model_type, positions),
        assumptions=(*spec.assumptions, *notes),
    )
    return ReadConfig(spec=described, used=_used(read, config), unread=unread)


def _other_head(config: Mapping[str, Any]) -> str | None:
    """Return the one class that a config names, where that ends in something else than words."""
    named = config.get("architectures")
    only = named[0] if isinstance(named, list | tuple) and len(named) == 1 else None
    return only if isinstance(only, str) and only.endswith(OTHER_HEADS) else None


def _refuse_endless(spec: ModelSpec, pointer: str) -> None:
    parts = described_parts(spec)
    if parts > MOST_DESCRIBED_PARTS:
        raise InvalidModelConfig(
            f"The model has {parts:,} weights and operations that differ from layer to layer; at most "
            f"{MOST_DESCRIBED_PARTS:,} can be described.",
            pointer=pointer,
        )


def described_parts(spec: ModelSpec) -> int:
    """Return how many weights, operations and tensors a description consists of, like layers counted once."""
    return sum(len(block.weights) + len(block.operations) + len(block.tensors) for block in spec.blocks)


def _used(read: ConfigReader, config: Mapping[str, Any]) -> dict[str, Any]:
    used = read.used(config, beside=READ_BESIDE_THE_FAMILY)
    if isinstance(used.get("text_config"), Mapping):
        used["text_config"] = _with_one_of_each_module(used["text_config"])
    return _with_one_of_each_module(used)


def _with_one_of_each_module(part: Mapping[str, Any]) -> dict[str, Any]:
    stored = part.get(QUANTIZATION)
    return {**part, QUANTIZATION: without_repeats(stored)} if isinstance(stored, Mapping) else dict(part)


def _unread_note(keys: tuple[str, ...]) -> str | None:
    if not keys:
        return None
    named = [key if len(key) <= MOST_NAME_CHARACTERS else f"{key[:MOST_NAME_CHARACTERS]}…" for key in keys]
    more = len(keys) - MOST_NAMED_KEYS
    rest = f", and {more:,} more" if more > 0 else ""
    return f"These config keys were not used: {', '.join(named[:MOST_NAMED_KEYS])}{rest}."
