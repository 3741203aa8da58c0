"""What one rank exchanges with the others of its stage: sums over tensor ranks, and tokens for their experts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from plimsoll.planners.ground.hardware import Gpu
from plimsoll.planners.operators.collectives import ALL_GATHER, ALL_REDUCE, PCIE, REDUCE_SCATTER, collective
from plimsoll.planners.operators.exchanges import COMBINE, DISPATCH, NVLINK_ONE_SIDED, exchange
from plimsoll.planners.operators.tables import Evidence
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.times.curve import SIZES, FloatArray
from plimsoll.planners.serving.times.rank_operators import MOST_KEPT, Priced, Rank

# Attention's output and the feed-forward's are each summed over the ranks (Shoeybi et al. 2019, arXiv:1909.08053).
ALL_REDUCES_PER_LAYER = 2
# Bytes of a value that is sent to an expert, where it is quantized before, scales counted.
SENT_BYTES = {"fp8": 1.0, "fp8_block": 1 + 4 / 128, "nvfp4": 0.5 + 1 / 16, "w4a8_mxfp4_mxfp8": 1 + 1 / 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeKinds:
    """What an engine sends tokens to their experts by, by names of `operators/exchanges.py`; None where it gathers all.

    `in_domain` is among cards with NVLink to one another, `between_nodes` beyond.
    """

    in_domain: str | None = None
    between_nodes: str | None = None

    def of(self, gpu: Gpu, degrees: Degrees, gpus_per_node: int) -> str | None:
        """Return what a layout's ranks send by; experts that are cut lie on ranks that have to gather."""
        if degrees.expert_parallel < degrees.ranks_per_stage:
            return None
        if degrees.ranks_per_stage > gpus_per_node:
            return self.between_nodes
        return self.in_domain if gpu.link_kind != PCIE else None


GATHERED = ExchangeKinds()


@lru_cache(maxsize=MOST_KEPT)
def exchanges(rank: Rank, degrees: Degrees, gpus_per_node: int, kinds: ExchangeKinds = GATHERED) -> Priced:
    """Return a rank's exchanges with the others of its stage over a step's tokens; `kernels` counts them.

    Ranks of attention data parallelism gather all their tokens before the experts and scatter the sums after
    (vllm/config/parallel.py, all2all_backend allgather_reducescatter), but where their engine sends each token to the
    ranks of its experts alone, which takes whole experts.
    """
    model, gpu = rank.model.value, rank.gpu.value
    hidden_bytes = model.hidden_size * rank.weights.dense_bytes
    mixtures = sum(block.repeats for block in model.layers if any(weight.experts > 1 for weight in block.weights))
    is_copied = degrees.attention_data_parallel > 1
    seconds, count = np.zeros_like(SIZES), 0
    evidence: list[Evidence] = []
    sums = ALL_REDUCES_PER_LAYER * model.num_layers - (mixtures if is_copied else 0)
    wanted = [(ALL_REDUCE, degrees.tensor_parallel, sums, SIZES * hidden_bytes)]
    kind = kinds.of(gpu, degrees, gpus_per_node) if is_copied else None
    if kind is not None:
        priced = [_sent_seconds(rank, kind, step, degrees, gpus_per_node) for step in (DISPATCH, COMBINE)]
        seconds += mixtures * np.sum([each for each, _ in priced], axis=0)
        evidence.extend(found for _, found in priced)
        count += len(priced) * mixtures
    elif is_copied:
        gathered = SIZES * hidden_bytes * degrees.attention_data_parallel
        wanted += [(name, degrees.ranks_per_stage, mixtures, gathered) for name in (ALL_GATHER, REDUCE_SCATTER)]
    for operation, ranks, times, message in wanted:
        if ranks == 1:
            continue
        if ranks > gpus_per_node:
            sent = 2 * (ranks - 1) / ranks if operation == ALL_REDUCE else (ranks - 1) / ranks
            seconds += times * sent * message / gpu.nic_bytes_per_second
        else:
            kernel = collective(gpu, rank.operators_engine, operation, ranks)
            seconds += times * kernel.seconds(message)
            evidence.extend(kernel.evidence)
        count += times
    return Priced(seconds=seconds, kernels=count, evidence=tuple(evidence))


def _sent_seconds(
    rank: Rank, kind: str, step: str, degrees: Degrees, gpus_per_node: int
) -> tuple[FloatArray, Evidence]:
    """Return one direction of an exchange that sends tokens to the ranks of their experts, and what it rests on."""
    ranks = degrees.ranks_per_stage
    span = ranks if kind == NVLINK_ONE_SIDED else -(-ranks // gpus_per_node)
    found = exchange(rank.gpu.value, rank.operators_engine, kind, step, span)
    if found is None:
        raise KeyError(kind)
    model = rank.model.value
    value_bytes = SENT_BYTES.get(rank.formats.experts, rank.weights.dense_bytes) if step == DISPATCH else None
    seconds = found.seconds(SIZES, model.hidden_size, model.experts_per_token, value_bytes=value_bytes)
    return seconds, found.evidence
