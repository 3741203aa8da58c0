"""What SGLang checks of its own arguments before it starts, and the nodes that its ranks lie on.

Sources: sglang, srt/server_args.py (check_server_args), in 0.5.23 srt/arg_groups/parallel_hook.py and
validation_hook.py; srt/entrypoints/engine.py (_calculate_rank_ranges).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from plimsoll.service.engines.command import Values
from plimsoll.service.engines.nodes import model_ranks
from plimsoll.service.workloads.commands.divisors import divisors_text
from plimsoll.service.workloads.commands.flags import AUTO, Arguments

PAGE_CHANGING = re.compile(r"^--(?:(?:prefill-|decode-)?attention-backend|speculative|disaggregation)")


def at_odds(read: Arguments) -> Iterator[str]:
    """Yield arguments that contradict each other."""
    values = read.values
    tensor, ranks = int(values.get("tensor_parallel", 1)), int(values.get("attention_data_parallel", 1))
    data = int(values.get("data_parallel", 1))
    if ranks > 1 and data > 1:
        yield f"--dp-size {data} replicas cannot be combined with --attn-dp-size {ranks}: leave one of them out"
    if values.get("is_attention_data_parallel"):
        ranks = data if ranks == 1 else ranks
    if ranks and tensor % ranks:
        yield (
            f"{ranks} data-parallel ranks of attention do not divide {tensor} tensor-parallel ranks; "
            f"possible: {divisors_text(tensor)}"
        )
        return
    chunk, page = values.get("max_num_batched_tokens", AUTO), values.get("block_size")
    # An attention backend, or a draft model, may take pages of its own.
    is_own_page = any(PAGE_CHANGING.match(name.replace("_", "-")) for name in read.others)
    if chunk == AUTO or page in (None, 0) or not ranks or is_own_page:
        return
    if int(chunk) // ranks % int(page):
        each = f"--chunked-prefill-size {chunk}" + (f" over {ranks} ranks" if ranks > 1 else "")
        yield f"{each} is no multiple of --page-size {page}"


def ranks_of_node(values: Values, _others: set[str]) -> int | None:
    """Return the ranks of each node, None where they are not said.

    Without attention's data parallelism replicas lie on one node.
    """
    ranks, nodes = model_ranks(values), int(values.get("nodes", 1))
    return ranks // nodes if nodes > 1 and ranks % nodes == 0 else None


def node_rules(values: Values) -> Iterator[str]:
    """Yield why SGLang does not start on the nodes that its arguments name."""
    nodes, stages = int(values.get("nodes", 1)), int(values.get("pipeline_parallel", 1))
    ranks = model_ranks(values)
    if nodes > 1 and ranks % nodes:
        yield f"tp x pp = {ranks} ranks do not divide by --nnodes {nodes}"
    elif stages % nodes and nodes % stages:
        yield f"{stages} pipeline stages and --nnodes {nodes} do not divide each other"
    data = int(values.get("data_parallel", 1))
    if nodes > 1 and data > 1 and not values.get("is_attention_data_parallel"):
        yield f"--dp-size {data} starts replicas, which share one node: add --enable-dp-attention, or drop --nnodes"
