"""How a command of Megatron-LM has the optimizer's states: in which dtypes, and whether on the host.

Source: training/arguments.py (validate_args), core/optimizer/optimizer_config.py (__post_init__),
core/optimizer/cpu_offloading/hybrid_optimizer.py, which keeps fp32 whatever the dtypes say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.workloads.commands.flags import option

FP32, BF16 = "fp32", "bf16"
ADAM = "adam"
DELAYED = "delayed"  # the default of --fp8-recipe
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """What is asked for of states: parts of a request, and options that leave a rank less than it counts."""

    training: dict[str, str] = field(default_factory=dict)
    layout: dict[str, str] = field(default_factory=dict)
    memory_saving: tuple[str, ...] = ()


def told_states(values: Values) -> States:
    """Return what a command says of them.

    Of a part of the states on the host, or of whole ones, only that there they are.
    """
    fraction = float(values.get("offloaded", 1.0)) if values.get("offload") else 0.0
    gradients, is_divided = str(values.get("gradient_dtype", FP32)), bool(values.get("distributed_optimizer"))
    is_narrow = bool(values.get("bf16_gradients")) and bool(values.get("bf16"))
    if is_narrow and is_divided:
        gradients = BF16
    training = {"gradient_dtype": gradients} if gradients != FP32 else {}
    if fraction >= 1.0 and is_divided:
        return States(training=training, layout={"offload": "optimizer"})
    first, second = (str(values.get(name, FP32)) for name in ("moment_dtype", "second_moment_dtype"))
    saving = [name for name in ("precision_aware",) if values.get(name)]
    if fraction > 0.0:
        saving.append("offload")
    if is_narrow and not is_divided:
        saving.append("bf16_gradients")
    if first != second:
        saving += [name for name in ("moment_dtype", "second_moment_dtype") if name in values]
    elif first != FP32:
        training["optimizer_state_dtype"] = first
    return States(training=training, memory_saving=tuple(option(FLAGS, name) for name in saving))


def copies_of_states(values: Values) -> int:
    """Return how many copies of the distributed optimizer share the replicas among them."""
    return int(values.get("optimizer_copies", 1)) if values.get("distributed_optimizer") else 1


def why_copies_are_not_planned(values: Values, data_parallel: int, context_parallel: int) -> str | None:
    """Return why no plan has its copies of the distributed optimizer; None where one has."""
    copies = copies_of_states(values)
    if copies == 1:
        return None
    named = f"{option(FLAGS, 'optimizer_copies')} {copies} is not planned"
    if data_parallel % copies:
        return f"{named}: copies of whole replicas are, and {data_parallel} replicas do not divide by it"
    if data_parallel * context_parallel == copies:
        return f"{named}: it leaves each rank all states of its own"
    return None


def broken_rules_of_states(values: Values) -> Iterator[str]:
    """Yield what its options on states break, as Megatron-LM asserts it."""
    if int(values.get("optimizer_copies", 1)) > 1 and not values.get("distributed_optimizer"):
        yield f"{option(FLAGS, 'optimizer_copies')} needs {option(FLAGS, 'distributed_optimizer')}"
    if values.get("fp8") and values.get("fp4"):
        yield f"{option(FLAGS, 'fp8')} and {option(FLAGS, 'fp4')} exclude each other"
    yield from _of_weights(values)
    aware = option(FLAGS, "precision_aware")
    if values.get("precision_aware"):
        if str(values.get("optimizer", ADAM)) != ADAM:
            yield f"{aware} goes with {option(FLAGS, 'optimizer')} {ADAM} alone"
        return
    if values.get("offload"):
        yield f"{option(FLAGS, 'offload')} needs {aware}"
    if str(values.get("gradient_dtype", FP32)) != FP32:
        yield f"{option(FLAGS, 'gradient_dtype')} {values['gradient_dtype']} needs {aware}"


def _of_weights(values: Values) -> Iterator[str]:
    """Yield what options on weights in fp8 alone break (validate_args; DistributedDataParallelConfig)."""
    alone, recipe = option(FLAGS, "low_precision_weights"), str(values.get("fp8_recipe", DELAYED))
    if values.get("shares_gradients") and not (values.get("low_precision_weights") and recipe == "mxfp8"):
        yield f"{option(FLAGS, 'shares_gradients')} needs {alone} and {option(FLAGS, 'fp8_recipe')} mxfp8"
    if not values.get("low_precision_weights"):
        return
    for needed in ("distributed_optimizer", "fp8"):
        if not values.get(needed):
            yield f"{alone} needs {option(FLAGS, needed)}"
    if values.get("offload") and recipe != DELAYED:
        yield f"{option(FLAGS, 'offload')} with {alone} needs {option(FLAGS, 'fp8_recipe')} {DELAYED}"
