"""A model's description as tables that a person reads in a terminal."""

from __future__ import annotations

from plimsoll.planners.ground.units import GIGA
from plimsoll.service.checkpoints.comparison import CheckpointReport
from plimsoll.service.models.description import BlockDescription, CacheDescription, CacheGroup, ModelDescription
from plimsoll.service.text.tables import gib, joined, notes, pairs, table, titled, wrapped


def model_text(model: ModelDescription) -> str:
    """Return a description as text: what it is, its parts, its blocks, its cache, and what was assumed."""
    return joined(
        [
            titled(wrapped(f"Model {model.id}  ({model.model_type})"), pairs(_facts(model))),
            titled("Parameters by part", _parts(model)),
            titled("Blocks", _blocks(model.blocks)),
            _cache(model.kv),
            "" if model.checkpoint is None else titled("Checkpoint", _checkpoint(model.checkpoint)),
            notes("Assumptions", model.assumptions),
        ]
    )


def _facts(model: ModelDescription) -> tuple[tuple[str, object], ...]:
    total, active, published = model.parameters.total, model.parameters.active, model.published_parameters
    forward = f"{model.flops.forward_flops_per_token / GIGA:,.3f} GFLOP forward"
    training = f"{model.flops.training_flops_per_token / GIGA:,.3f} in training"
    return (
        ("also called", ", ".join(model.aliases)),
        ("parameters", f"{total:,}"),
        ("active a token", f"{active:,}" if active != total else None),
        ("stored in", None if model.stored is None else model.stored.weights),
        ("published", None if published is None else f"{published:,}"),
        ("layers", model.layers),
        ("hidden size", model.hidden_size),
        ("vocabulary", f"{model.vocabulary_size:,}{' (head tied to it)' if model.tied_head else ''}"),
        ("heads", f"{model.attention_heads}, {model.key_value_heads} for keys and values"),
        ("positions", None if model.max_position_embeddings is None else f"{model.max_position_embeddings:,}"),
        ("operations a token", f"{forward}, {training}, at {model.flops.sequence_length:,} tokens"),
        ("source", model.source),
    )


def _parts(model: ModelDescription) -> str:
    total = model.parameters.total
    rows = [
        (part.replace("_", " "), f"{count:,}", f"{100 * count / total:.2f} %")
        for part, count in model.parameters.by_part.items()
    ]
    return table(("part", "parameters", "share"), rows)


def _blocks(blocks: tuple[BlockDescription, ...]) -> str:
    header = ("block", "layers", "times", "weights", "parameters each", "active each", "MFLOP a token")
    rows = [
        (
            block.kind.replace("_", " "),
            "" if block.layers is None else "–".join(str(layer) for layer in dict.fromkeys(block.layers)),
            block.repeats,
            len(block.weights),
            f"{block.parameters_each:,}",
            f"{block.active_parameters_each:,}",
            f"{block.forward_flops_per_token_each / 1e6:,.1f}",
        )
        for block in blocks
    ]
    return table(header, rows)


def _cache(cache: CacheDescription) -> str:
    if not cache.groups:
        return titled("Cache", "  None is kept.")
    title = f"Cache in {cache.format}: {cache.bytes_per_token:,} bytes a token that stay"
    if cache.bytes_per_token_within_windows != cache.bytes_per_token:
        title += f", {cache.bytes_per_token_within_windows:,} within the windows"
    if cache.state_bytes:
        title += f", and {gib(cache.state_bytes)} of state a sequence"
    header = ("layers", "number", "kept", "window", "bytes a token", "state bytes")
    return titled(title, table(header, map(_cache_row, cache.groups)))


def _cache_row(group: CacheGroup) -> tuple[object, ...]:
    index = f" + {group.index_width} index" if group.index_width else ""
    if group.latent_width:
        entries = f", an entry for {group.tokens_per_entry} tokens" if group.tokens_per_entry > 1 else ""
        kept = f"latent {group.latent_width}{index}{entries}"
    elif group.heads:
        kept = f"{group.heads} × ({group.head_dim} + {group.value_dim}){index}"
    else:
        kept = "state"
    return (
        group.kind.replace("_", " "),
        group.layers,
        kept,
        "" if group.window is None else f"{group.window:,}",
        f"{group.bytes_per_token_per_layer:,}",
        f"{group.state_bytes_per_layer:,}",
    )


def _checkpoint(report: CheckpointReport) -> str:
    size_bytes = report.stored_bytes if report.stored_bytes is not None else report.index_bytes
    facts = pairs(
        (
            ("agrees", "yes" if report.agrees else "no"),
            ("files", f"{report.files}, {report.absent_files.count} not there"),
            ("tensors", f"{report.tensors:,} stored, {report.described_tensors:,} described"),
            ("shapes compared", f"{report.shapes_compared:,}"),
            ("size", gib(size_bytes)),
            ("packed matrices", report.packed_matrices or None),
        )
    )
    return "\n".join((facts, *(wrapped(f"  - {sentence}", indent="    ") for sentence in report.disagreements)))
