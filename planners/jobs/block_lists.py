"""Lists of every virtual stage's blocks: in the letters of Megatron-Core, or in the modules of torchtitan."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from plimsoll.planners.ground.errors import InvalidQuestion

POINTER = "/layout/pipeline_layout"
MOST_BLOCKS = 16_384  # of a list that is written out
MOST_DIGITS = 5  # of how many times blocks are repeated
EMBEDDING, NORM, HEAD = "tok_embeddings", "norm", "output"


def layers_of_letters(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the layers of every virtual stage of a list in letters, and behind them those for multi-token prediction.

    The latter are empty where it has none.

    Source: NVIDIA/Megatron-LM, core/transformer/pipeline_parallel_layer_layout.py: commas mean nothing, `(..)*n` and
    then `x*n` repeat; blocks are `E`, `t`, `m` and `L`, and those of multi-token prediction stand together behind all
    layers (`validate_layer_layout`).
    """
    stages = _spread(text).split("|")
    seen = "".join(stages)
    if set(seen) & set("()*"):
        raise _invalid(
            "repeat with x*3 or (xy|)*3; parentheses within parentheses, or without *N behind them, have to be "
            "written out."
        )
    unknown = next((letter for letter in seen if letter not in "EtmL"), None)
    if unknown is not None:
        raise _invalid(
            f"{unknown!r} is no block: E is the embedding, t a layer, m a layer for multi-token prediction, L head and "
            "loss."
        )
    if "m" in seen:
        _check_multi_token(stages, seen)
    for letter, block in (("E", "embedding"), ("L", "head and loss")):
        if seen.count(letter) != 1:
            times = "missing" if letter not in seen else f"there {seen.count(letter)} times"
            raise _invalid(f"the {block} ({letter}) is {times}, and must be in just one stage.")
    if not seen.startswith("E") or not seen.endswith("L"):
        raise _invalid("the embedding (E) must be the first block, and head and loss (L) the last.")
    empty = next((number for number, stage in enumerate(stages) if not stage), None)
    if empty is not None:
        raise _invalid(f"stage {empty} of {len(stages)}, counted from 0, has no block: give it one, or omit a |.")
    multi_token = tuple(stage.count("m") for stage in stages) if "m" in seen else ()
    return tuple(stage.count("t") for stage in stages), multi_token


def _check_multi_token(stages: list[str], seen: str) -> None:
    """Raise where layers for multi-token prediction stand before others, or in several stages."""
    if "t" in seen[seen.index("m") :]:
        raise _invalid("layers for multi-token prediction (m) stand behind all others (t).")
    if sum("m" in stage for stage in stages) > 1:
        raise _invalid("all layers for multi-token prediction (m) must be in one stage.")


def _spread(text: str) -> str:
    """Return a list with its repetitions written out."""
    plain = re.sub(r"[,\s]", "", text)
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"([^*()])\*(\d+)"):
        times = [(len(match[1]), match[2]) for match in re.finditer(pattern, plain)]
        large = next((digits for _, digits in times if len(digits) > MOST_DIGITS), None)
        if large is not None:
            raise _invalid(f"*{large[:40]} is too large: a list has at most {MOST_BLOCKS:,} blocks.")
        if sum(blocks * int(digits) for blocks, digits in times) > MOST_BLOCKS:
            raise _invalid(f"it has more than {MOST_BLOCKS:,} blocks; repeat less.")
        plain = re.sub(pattern, lambda match: match[1] * int(match[2]), plain)
    return plain


def layers_of_modules(text: str) -> tuple[int, ...]:
    """Return the layers of every virtual stage of a list of modules, as JSON has it.

    Source: torchtitan 0.2.2, config/job_config.py, `module_fqns_per_model_part`.
    """
    stages = _modules(text)
    of_layer = dict(_placed(stages))
    for module in (EMBEDDING, NORM, HEAD):
        if module not in of_layer:
            raise _invalid(f"{module} is in no stage.")
    if of_layer[EMBEDDING] != 0 or {of_layer[NORM], of_layer[HEAD]} != {len(stages) - 1}:
        raise _invalid(f"{EMBEDDING} must be in the first stage, and {NORM} and {HEAD} in the last.")
    layers = {int(module.partition(".")[2]): stage for module, stage in of_layer.items() if module.startswith("layers")}
    gone = next((layer for layer in range(len(layers)) if layer not in layers), None)
    if gone is not None:
        raise _invalid(f"layers.{gone} is in no stage, and layers.{max(layers)} is in stage {layers[max(layers)]}.")
    early = next((layer for layer in range(1, len(layers)) if layers[layer] < layers[layer - 1]), None)
    if early is not None:
        raise _invalid(
            f"layers.{early} is in stage {layers[early]}, before layers.{early - 1} in stage {layers[early - 1]}."
        )
    return tuple(sum(own == stage for own in layers.values()) for stage in range(len(stages)))


def _modules(text: str) -> list[list[str]]:
    try:
        stages = json.loads(text)
    except (ValueError, RecursionError):
        stages = None
    is_list = isinstance(stages, list) and all(isinstance(stage, list) for stage in stages)
    if not stages or not is_list or not all(isinstance(module, str) for stage in stages for module in stage):
        raise _invalid(
            f'modules are written as JSON, a list for each stage: [["{EMBEDDING}", "layers.0"], ["layers.1", "{NORM}", '
            f'"{HEAD}"]].'
        )
    if [] in stages:
        raise _invalid(f"stage {stages.index([])} of {len(stages)}, counted from 0, has no module.")
    return list(stages)


def _placed(stages: list[list[str]]) -> Iterator[tuple[str, int]]:
    """Yield each module with its stage; raise where one is unknown or stands twice."""
    seen: dict[str, int] = {}
    for stage, modules in enumerate(stages):
        for module in modules:
            if module not in (EMBEDDING, NORM, HEAD) and not re.fullmatch(r"layers\.(0|[1-9]\d{0,4})", module):
                raise _invalid(
                    f"{module[:40]!r} in stage {stage} is no module that is planned: {EMBEDDING}, layers.0 and on, "
                    f"{NORM}, {HEAD}."
                )
            if module in seen:
                raise _invalid(f"{module} is in stage {seen[module]} and again in stage {stage}.")
            seen[module] = stage
            yield module, stage


def _invalid(problem: str) -> InvalidQuestion:
    return InvalidQuestion(f"This list of a pipeline's blocks cannot be: {problem}", pointer=POINTER)


def written(layers: tuple[int, ...], multi_token_layers: int = 0, multi_token_stage: int | None = None) -> str:
    """Return the layers of every virtual stage as a list in letters, what is alike in a row written once.

    All layers for multi-token prediction are in one stage, and are counted among its layers.
    """
    last = len(layers) - 1
    further = [multi_token_layers if number == multi_token_stage else 0 for number in range(last + 1)]
    stages = [
        f"{'E' if number == 0 else ''}{_times('t', count - own)}{_times('m', own)}{'L' if number == last else ''}"
        for number, (count, own) in enumerate(zip(layers, further, strict=True))
    ]
    if len(stages) == 1:
        return stages[0]
    runs = [(stage, len(tuple(like))) for stage, like in itertools.groupby(stages[:-1])]
    return "".join(f"{stage}|" if count == 1 else f"({stage}|)*{count}" for stage, count in runs) + stages[-1]


def _times(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"
