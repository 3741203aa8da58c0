"""A scheme that an engine is told beside the one that the checkpoint's own config names.

Sources: vllm, config/model.py (_verify_quantization; 0.8.5 to 0.33.0) and each scheme's override_quantization_method;
sglang, srt/configs/model_config.py (_verify_quantization; 0.5.23). Both refuse another scheme than the config's, unless
the checkpoint's puts itself in its place (modelopt, mxfp4, auto-round), which is why these are not compared here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plimsoll.planners.families.reading.stored_formats import stored_formats
from plimsoll.service.models.resolving import ResolvedModel
from plimsoll.service.workloads.commands.flags import Arguments

# What the engines call the schemes whose names leave no doubt, by the `quant_method` of their checkpoints.
METHODS: Mapping[str, str] = {
    "fp8": "fp8", "bitsandbytes": "bitsandbytes", "awq": "awq", "awq_marlin": "awq", "auto_awq": "awq", "gptq": "gptq",
    "gptq_marlin": "gptq", "auto_gptq": "gptq", "compressed-tensors": "compressed-tensors",
}  # fmt: skip
# Another revision, or another source, may hold another checkpoint.
OTHER_CHECKPOINT = frozenset({"--revision", "--load-format", "--model-loader-extra-config", "--quantization-config"})
COMPRESSED = "compressed-tensors"
# Names of checkpoints whose scheme takes the place of any that is asked for.
OVERRIDING_NAME = re.compile(r"^nvidia/|auto-?round|modelopt")
HUB_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$")


def asked_quantization(model: str, read: Arguments) -> str | None:
    """Return the scheme that a command names for a checkpoint of the hub; None where it may be another checkpoint."""
    others = {name.replace("_", "-") for name in read.others}
    asked = read.values.get("quantization")
    return str(asked) if asked is not None and HUB_NAME.match(model) and not OTHER_CHECKPOINT & others else None


def stored_methods(asked: str, model: ResolvedModel) -> frozenset[str]:
    """Return the `quant_method`s that a checkpoint of that name may have, none where it may have any or is plain."""
    if model.stored is None:
        return frozenset()
    if model.stored == stored_formats(model.config):
        return _method_of(model.config)
    name = asked.lower()
    if OVERRIDING_NAME.search(name):
        return frozenset()
    if model.stored.weights == "fp8":
        return frozenset({"fp8", COMPRESSED})
    method = next((method for method in ("awq", "gptq") if method in name), None)
    return frozenset() if method is None else frozenset({method, COMPRESSED})


def _method_of(config: Mapping[str, Any]) -> frozenset[str]:
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        stored = part.get("quantization_config")
        if isinstance(stored, Mapping):
            method = stored.get("quant_method")
            is_compared = method in METHODS.values() and "quant_algo" not in stored
            return frozenset({str(method)}) if is_compared else frozenset()
    return frozenset()


def conflict(asked: str | None, stored: frozenset[str]) -> str | None:
    """Return why an engine that compares them does not load a checkpoint in the scheme that it is told, or None."""
    method = METHODS.get(str(asked))
    if not stored or method is None or method in stored:
        return None
    schemes = " or ".join(sorted(stored))
    return f"--quantization {asked} is not how the checkpoint is stored ({schemes}): leave the option out"
