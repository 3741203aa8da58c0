"""Layouts in a line, as tables list them: no two that differ read alike.

The letters are of the degrees: d data, a attention data, t tensor, p pipeline (v: chunks of a stage), c context,
e expert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Layout: TypeAlias = Mapping[str, Any]

_OFFLOADED = {"none": "", "optimizer": "opt", "optimizer+parameters": "opt,par"}


def _number(letters: str) -> Callable[[Any], str]:
    return lambda value: f"{letters}{value}"


def _word(meaning: str) -> Callable[[Any], str]:
    return lambda value: meaning if value else f"no {meaning}"


# Told in this order of layouts that would else read alike.
_FURTHER_OF_TRAINING: Mapping[str, Callable[[Any], str]] = {
    "fused_cross_entropy": _word("fused loss"),
    "shard_group": _number("shard "),
    "context_all_to_all": _number("heads over "),
    "secondary_shard_group": _number("second copy "),
    "sequence_parallel": _word("sequence parallel"),
    "overlap": lambda value: _word("experts overlapped")(bool(value and value["expert_parallel"])),
    "offload_modules": lambda modules: f"act of {', '.join(modules)}" if modules else "act whole",
    "offload_layers": lambda layers: "act of no number" if layers is None else f"act of {layers} layers",
    "offload_target": _number("to "),
    "pipeline_schedule": str,
    "pipeline_layout": lambda way: "one stage" if way is None else f"stages {way}",
    "framework_version": lambda version: "no version" if version is None else f"version {version}",
}
_FURTHER_OF_SERVING: Mapping[str, Callable[[Any], str]] = {
    "decode_context_parallel": _number("decode c"),
    "prefill_replicas": lambda value: "no prefill apart" if value is None else f"prefill {value}",
    "max_num_batched_tokens": _number("batched "),
    "max_num_seqs": _number("seqs "),
}


def training_labels(layouts: Sequence[Layout], plan: Layout | None = None) -> list[str]:
    """Return what each layout is called among the others and beside the plan's."""
    return _distinct(layouts, plan, _training_label, _FURTHER_OF_TRAINING)


def serving_labels(alternatives: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what each deployment is called among the others."""
    flat = [{**other, **other["layout"]} for other in alternatives]
    return _distinct(flat, None, _serving_label, _FURTHER_OF_SERVING)


def _distinct(
    layouts: Sequence[Layout],
    plan: Layout | None,
    label: Callable[[Layout], str],
    further: Mapping[str, Callable[[Any], str]],
) -> list[str]:
    """Return the labels, with each further field that tells some of those apart that have the same one."""
    compared = [*layouts, *([] if plan is None else [plan])]
    labels = [label(layout) for layout in compared]
    for name, told in further.items():
        alike: dict[str, set[str]] = {}
        for layout, known in zip(compared, labels, strict=True):
            alike.setdefault(known, set()).add(told(layout.get(name)))
        labels = [
            f"{known} {told(layout.get(name))}" if len(alike[known]) > 1 else known
            for layout, known in zip(compared, labels, strict=True)
        ]
    return labels[: len(layouts)]


def _training_label(layout: Layout) -> str:
    return (
        f"{gpus_text(layout)}: {layout['framework']} d{layout['data_parallel']} t{layout['tensor_parallel']} "
        f"p{layout['pipeline_parallel']}{_virtual(layout)} c{layout['context_parallel']}{_experts(layout)} "
        f"zero{layout['zero_stage']} "
        f"b{layout['micro_batch_size']} {recompute_text(layout)}{_offloaded(layout)}"
    )


def _serving_label(other: Layout) -> str:
    degrees = (
        f"{gpus_text(other)}: d{other['data_parallel']}{_attention_ranks(other)} "
        f"t{other['tensor_parallel']} p{other['pipeline_parallel']}{_experts(other)}"
    )
    formats = None if other["weights"] is None else f"{other['weights']}/{other['kv_cache']}"
    # Earlier versions named neither the card nor the formats of an alternative.
    return " ".join(part for part in (other["gpu"], degrees, formats) if part)


def gpus_text(layout: Layout) -> str:
    """Return how many GPUs a layout has."""
    return f"{layout['gpus']} GPU" + ("" if layout["gpus"] == 1 else "s")


def recompute_text(layout: Layout) -> str:
    """Return how a layout recomputes, and of how many layers where not of all."""
    layers, modules = layout["recompute_layers"], layout.get("recompute_modules")
    if modules:
        return f"{layout['recompute']} ({', '.join(modules)})"
    if layout.get("recompute_every"):
        return f"{layout['recompute']} 1/{layout['recompute_every']}"
    return str(layout["recompute"]) if layers is None else f"{layout['recompute']} {layers}"


def _experts(layout: Layout) -> str:
    return f" e{layout['expert_parallel']}" if layout.get("expert_parallel", 1) > 1 else ""


def _attention_ranks(other: Layout) -> str:
    return f" a{other['attention_data_parallel']}" if other.get("attention_data_parallel", 1) > 1 else ""


def _virtual(layout: Layout) -> str:
    return f"v{layout['virtual_pipeline']}" if layout["virtual_pipeline"] > 1 else ""


def _offloaded(layout: Layout) -> str:
    """Return what lies elsewhere: `+opt`, `+opt,par` or `+act`, as the layout offloads it."""
    parts = [
        part for part in (_OFFLOADED[layout["offload"]], "act" if layout.get("activation_offload") else "") if part
    ]
    return f" +{','.join(parts)}" if parts else ""
