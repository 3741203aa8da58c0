"""How a command of Megatron-LM sends activations to the host: parts of layers by name, or whole layers.

Source: training/arguments.py (validate_args), core/transformer/transformer_config.py (__post_init__), at d98e8a6.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plimsoll.planners.jobs.offload_modules import CORE_ATTENTION, OF_EXPERTS, OFFLOAD_MODULES, OUTPUT_PROJECTION
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.workloads.commands.flags import option

# Flags that have less sent than the parts keep.
SENDING_LESS = frozenset({
    "--activation-offload-fraction", "--delta-offload-bytes-across-pp-ranks", "--min-offloaded-tensor-size",
})  # fmt: skip
Values = Mapping[str, Any]


def told_activations(values: Values) -> dict[str, Any]:
    """Return what a command sends to the host, as a job's field says it."""
    if int(values.get("offloaded_layers") or 0) > 0:
        return {"activation_offload": {"layers": int(values["offloaded_layers"])}}
    modules = _modules(values)
    return {"activation_offload": {"modules": modules}} if values.get("activation_offload") and modules else {}


def why_activations_are_not_planned(values: Values, others: Collection[str]) -> str | None:
    """Return what of a command's offloaded activations is not planned; None where all is."""
    if not values.get("activation_offload"):
        return None
    unknown = [name for name in _modules(values) if name not in OFFLOAD_MODULES]
    if unknown:
        return f"{option(FLAGS, 'offloaded_modules')} {unknown[0][:40]} is not planned"
    less = sorted(SENDING_LESS & {*others})
    return f"{less[0]} has less sent to the host, which is not planned" if less else None


def broken_rules_of_activations(values: Values) -> Iterator[str]:
    """Yield what its options on activations break, as Megatron-LM asserts it."""
    if int(values.get("offloaded_layers") or 0) > 0:
        yield from _of_whole_layers(values)
    if not values.get("activation_offload"):
        return
    flag, modules = option(FLAGS, "offloaded_modules"), _modules(values)
    if not modules:
        yield f"{option(FLAGS, 'activation_offload')} needs {flag}: any of {', '.join(OFFLOAD_MODULES)}"
    if OUTPUT_PROJECTION in modules and CORE_ATTENTION not in modules:
        yield f"{flag} {OUTPUT_PROJECTION} needs {CORE_ATTENTION} beside it"
    of_experts = [name for name in modules if name in OF_EXPERTS]
    if of_experts and MIXTURE in str(values.get("recomputed_modules", "")).split():
        yield f"{flag} {' '.join(of_experts)} goes without {option(FLAGS, 'recomputed_modules')} {MIXTURE}"
    if values.get("implementation", "transformer_engine") != "transformer_engine":
        yield f"{option(FLAGS, 'activation_offload')} needs {option(FLAGS, 'implementation')} transformer_engine"


def _of_whole_layers(values: Values) -> Iterator[str]:
    flag, layers = option(FLAGS, "offloaded_layers"), int(values["layers"])
    if int(values["offloaded_layers"]) >= layers:
        yield f"{flag} {values['offloaded_layers']} must be below the {layers} of --num-layers"
    if int(values.get("pipeline_parallel", 1)) > 1:
        yield f"{flag} goes without a pipeline"
    if values.get("recompute") or values.get("recompute_selective"):
        yield f"{flag} goes without recomputation"
    if values.get("activation_offload"):
        yield f"{flag} goes without {option(FLAGS, 'activation_offload')}"


def _modules(values: Values) -> list[str]:
    return list(dict.fromkeys(str(values.get("offloaded_modules", "")).split()))
