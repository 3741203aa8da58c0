"""Which of a key's features turn with its position, and how often positions are interpolated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll.planners.architecture import KvKind, ModelSpec, OperationKind
from plimsoll.planners.ground.errors import InvalidModelConfig

FRACTION_NAMES = ("partial_rotary_factor", "rotary_pct")
# Gemma 3's full layers interpolate positions of the models with 128k tokens, beside the plain ones of its windows:
# its technical report, arXiv:2503.19786, section 2.
INTERPOLATED_FROM, INTERPOLATED_BY = 131_072, 8


def rotary_fraction(config: Mapping[str, Any], default: float) -> float:
    """Return the part of a key's features that turn: what the config says, else its class's default."""
    for part in _parts(config):
        for name in FRACTION_NAMES:
            found = part.get(name)
            if isinstance(found, int | float) and 0 < found <= 1:
                return float(found)
    return default


def refuse_unpaired_features(spec: ModelSpec, fraction: float, pointer: str) -> None:
    """Refuse heads of an odd number of features that all turn: they turn in pairs, and no module can run with one left.

    Where a part turns, an odd part is rounded up; of a latent's keys other features turn.

    Source: transformers 5.23, modeling_rope_utils.py (`arange(0, dim, 2)`, concatenated with itself).
    """
    for block in spec.layers:
        kinds = {operation.kind for operation in block.operations}
        is_latent = block.kv is not None and block.kv.kind is KvKind.LATENT
        width = max((operation.key_dim for operation in block.operations), default=0)
        if OperationKind.ROTARY in kinds and not is_latent and width % 2 and fraction == 1.0:
            raise InvalidModelConfig(
                f"Rotary positions turn a head's features in pairs, and {width:,} is an odd number. Set 'head_dim', or "
                "'hidden_size' and 'num_attention_heads', so that it is even.",
                pointer=f"{pointer}/head_dim",
            )


def interpolated_tables(positions: int | None) -> int:
    """Return how many tables of all positions an engine keeps beside the plain one, where full layers interpolate.

    Layers with windows turn by another base than the full ones, whose table is a
    second one; interpolated it has as many times the rows.

    Source: vllm/model_executor/layers/rotary_embedding/__init__.py, get_rope (a table for each base), and
    linear_scaling_rope.py.
    """
    return INTERPOLATED_BY if (positions or 0) >= INTERPOLATED_FROM else 1


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            yield part
            scaled = part.get("rope_parameters")
            if isinstance(scaled, Mapping):
                yield scaled
