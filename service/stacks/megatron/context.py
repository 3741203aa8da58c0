"""How Megatron-LM's ranks that divide a sequence attend to all of it: by a ring, by exchanging heads, or by both.

Source: training/arguments.py (validate_args), core/parallel_state.py (create_hierarchical_groups), at d98e8a6;
Transformer Engine, attention/dot_product_attention/context_parallel.py (attn_forward_func_with_cp), which takes the
first of two levels for the exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from plimsoll.planners.plans import Layout
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.workloads.commands.flags import option

RING, EXCHANGE, BOTH = "p2p", "a2a", "a2a+p2p"
LEVELS = 2
Values = Mapping[str, Any]


def context_options(layout: Layout) -> dict[str, Any]:
    """Return the kind of communication by field, and the ranks of both levels where it is of two; nothing of a ring."""
    exchanging, ranks = layout.context_all_to_all, layout.context_parallel
    if exchanging == 1:
        return {}
    if exchanging == ranks:
        return {"context_exchange": EXCHANGE}
    return {"context_exchange": BOTH, "context_sizes": (str(exchanging), str(ranks // exchanging))}


def told_context(values: Values, ranks: int) -> dict[str, int]:
    """Return how many ranks exchange heads, for the layout; nothing where none divide a sequence."""
    if ranks == 1:
        return {}
    kind = _kinds(values)[0]
    exchanging = {RING: 1, EXCHANGE: ranks}.get(kind)
    return {"context_all_to_all": int(_size_words(values)[0]) if exchanging is None else exchanging}


def why_context_is_not_planned(values: Values, ranks: int) -> str | None:
    """Return what of a command's context parallelism is not planned; None where all is."""
    kinds = _kinds(values)
    if ranks == 1:
        return None
    flag = option(FLAGS, "context_exchange")
    if len({*kinds}) > 1:
        return f"{flag} of several kinds, layer by layer, is not planned"
    return None if kinds[0] in (RING, EXCHANGE, BOTH) else f"{flag} {kinds[0][:40]} is not planned"


def broken_rules_of_context(values: Values) -> Iterator[str]:
    """Yield what its options on context parallelism break, as Megatron-LM and Transformer Engine assert it."""
    flag, words = option(FLAGS, "context_sizes"), _size_words(values)
    if not all(word.isdecimal() for word in words):
        yield f"{flag} takes whole numbers, each a word of its own, not {' '.join(words)[:40]}"
        return
    ranks, kinds, sizes = int(values.get("context_parallel", 1)), _kinds(values), [int(word) for word in words]
    if sizes and math.prod(sizes) != ranks:
        told = " x ".join(map(str, sizes))
        yield f"{flag} {told} = {math.prod(sizes)} is not context parallel {ranks}"
    if BOTH in kinds and not sizes:
        yield f"{option(FLAGS, 'context_exchange')} {BOTH} needs {flag}"
    elif BOTH in kinds and ranks > 1 and len(sizes) != LEVELS:
        yield f"{flag} has {len(sizes)} levels, and {BOTH} goes over {LEVELS}"
    exchanging = ranks if EXCHANGE in kinds else sizes[0] if BOTH in kinds and sizes else 1
    heads = int(values["heads"]) // max(int(values.get("tensor_parallel", 1)), 1)
    if ranks > 1 and exchanging > 0 and heads % exchanging:
        yield f"{exchanging} ranks that exchange heads do not divide the {heads} of a tensor-parallel rank"


def _kinds(values: Values) -> list[str]:
    return str(values.get("context_exchange") or RING).split()


def _size_words(values: Values) -> list[str]:
    return str(values.get("context_sizes") or "").split()
