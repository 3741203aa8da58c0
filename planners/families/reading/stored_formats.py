"""In which formats a checkpoint holds its matrices and fixes its cache, as its `config.json` says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plimsoll.planners.ground.errors import InvalidModelConfig

KEY = "quantization_config"

# What the `quant_method`s that need no more words hold: transformers 5.23, utils/quantization_config.py.
BY_METHOD = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
# modelopt's `quant_algo`: vLLM, model_executor/layers/quantization/modelopt.py.
BY_ALGORITHM = {"FP8": "fp8", "NVFP4": "nvfp4"}
# compressed-tensors' `type` and `num_bits` of a group's weights: compressed_tensors/quantization/quant_args.py.
BY_NUMBERS: Mapping[tuple[object, object], str] = {
    ("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4",
}  # fmt: skip
INT4_EXPERTS = "int4-experts"
KEPT_BESIDE_EXPERTS = ("self_attn", "shared_experts")
MXFP4_PACKED = "mxfp4-pack-quantized"
# All keep groups of integers; AutoRound packs them as GPTQ or AWQ does (vLLM, model_executor/layers/quantization).
GROUPED = ("awq", "gptq", "auto-round")
GROUPED_BITS = 4
CACHE_BITS = 8
# What a config says of it beside `quantization_config`.
READ_KEYS = frozenset({"expert_dtype"})
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormats:
    """What a quantized checkpoint holds: its matrices' format, and the cache's where the file fixes it.

    `scale_block` is the side of the square blocks of a matrix that have one scale each.
    """

    weights: str
    kv_cache: str | None = None
    scale_block: int | None = None


def is_quantized(config: Mapping[str, Any]) -> bool:
    """Return whether a config says that its checkpoint is quantized, in whatever way."""
    return any(part.get(KEY) for part in _parts(config))


def stored_formats(config: Mapping[str, Any], *, pointer: str = "/model/config") -> StoredFormats | None:
    """Return what the checkpoint of a `config.json` holds, None where it is not quantized or in a way unknown here.

    The text model's own section may say it, as Kimi-K2.5's does. Checkpoints of
    several formats have none: which matrix has which is not read. Raises
    `InvalidModelConfig` where `quantization_config` is no object.
    """
    for part in _parts(config):
        stored = part.get(KEY)
        if not stored:
            continue
        if not isinstance(stored, Mapping):
            raise InvalidModelConfig(f"'{KEY}' must be an object.", pointer=f"{pointer}/{KEY}")
        weights = _weights(stored)
        if weights == "fp8" and part.get("expert_dtype") == "fp4":
            # DeepSeek-V4 holds its experts, nearly all of it, in blocks of 32 with a scale of 8 bits.
            weights = "mxfp4-fp8"
        if weights is None:
            return None
        return StoredFormats(weights=weights, kv_cache=_cache(stored), scale_block=_scale_block(stored))
    return None


def without_repeats(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `quantization_config` with one of each of its modules that differ in numbers alone.

    Checkpoints name thousands of modules, layer by layer and expert by expert.
    """
    return {key: _distinct(value) for key, value in stored.items()}


def _distinct(value: Any) -> Any:
    if isinstance(value, Mapping):
        first: dict[tuple[str, str], str] = {}
        for name, inner in value.items():
            first.setdefault((_NUMBER.sub("*", str(name)), repr(inner)), name)
        return {name: _distinct(value[name]) for name in first.values()}
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        named: dict[str, str] = {}
        for name in value:
            named.setdefault(_NUMBER.sub("*", name), name)
        return list(named.values())
    return value


def _parts(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    text = config.get("text_config")
    return (config, text) if isinstance(text, Mapping) else (config,)


def _weights(stored: Mapping[str, Any]) -> str | None:
    # As vllm/config/model.py reads it, _verify_quantization.
    method = str(stored.get("quant_method")).lower().replace("_tensors", "-tensors")
    algorithm = stored.get("quant_algo")
    if isinstance(algorithm, str):
        return BY_ALGORITHM.get(algorithm)
    if method == "compressed-tensors":
        return _of_groups(stored)
    if method == "bitsandbytes":
        return _of_bitsandbytes(stored)
    if method in GROUPED:
        return "int4" if stored.get("bits") == GROUPED_BITS else None
    return BY_METHOD.get(method)


def _of_bitsandbytes(stored: Mapping[str, Any]) -> str | None:
    """Return NF4 for both 4-bit formats, which are equally large."""
    if stored.get("load_in_4bit"):
        return "nf4"
    return "int8" if stored.get("load_in_8bit") else None


def _of_groups(stored: Mapping[str, Any]) -> str | None:
    """Return the one format of all groups of layers, None where there are several."""
    groups = stored.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    if stored.get("format") == MXFP4_PACKED:
        return "mxfp4"
    formats = {BY_NUMBERS.get((one.get("type"), one.get("num_bits"))) for one in weights if isinstance(one, Mapping)}
    one_format = formats.pop() if len(formats) == 1 else None
    return INT4_EXPERTS if one_format == "int4" and _ignores_all_but_experts(stored) else one_format


def _ignores_all_but_experts(stored: Mapping[str, Any]) -> bool:
    """Return whether attention and shared experts are among the modules that stay at 16 bits, as in Kimi-K2.5."""
    ignored = stored.get("ignore")
    names = [name for name in ignored if isinstance(name, str)] if isinstance(ignored, list | tuple) else []
    return all(any(part in name for name in names) for part in KEPT_BESIDE_EXPERTS)


def _cache(stored: Mapping[str, Any]) -> str | None:
    """Return fp8 where the checkpoint holds scales for a cache of 8-bit floats."""
    scheme = stored.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        is_fp8 = scheme.get("num_bits") == CACHE_BITS and scheme.get("type") == "float"
    else:
        is_fp8 = "FP8" in (scheme, stored.get("kv_cache_quant_algo"))
    return "fp8" if is_fp8 else None


def _scale_block(stored: Mapping[str, Any]) -> int | None:
    """Return the side of the blocks of scales, None where scales are of whole rows or matrices."""
    block = stored.get("weight_block_size")
    if not isinstance(block, list | tuple) or len(set(block)) != 1 or not isinstance(block[0], int):
        return None
    return block[0]
