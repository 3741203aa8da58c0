"""What one replica computes for the tokens of a step, in seconds of its card; `pace.py` makes latencies of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.errors import NotYetAvailable
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.operators.tables import Evidence
from plimsoll.planners.serving.degrees import Degrees
from plimsoll.planners.serving.formats.operand_formats import operand_formats
from plimsoll.planners.serving.settings.settings import Settings
from plimsoll.planners.serving.times.attention_seconds import (
    CachedRank,
    attention_evidence,
    prompt_seconds,
    token_seconds,
)
from plimsoll.planners.serving.times.curve import Curve
from plimsoll.planners.serving.times.efficiency import (
    CARD_SPREAD,
    LAYOUT_SPREAD,
    Band,
    Efficiency,
    engine_efficiency,
)
from plimsoll.planners.serving.times.rank_exchanges import ALL_REDUCES_PER_LAYER, ExchangeKinds, exchanges
from plimsoll.planners.serving.times.rank_operators import Rank, dense_operators, expert_operators, head_seconds
from plimsoll.planners.serving.weights.stages import Stage
from plimsoll.planners.timing.efficiency import network_hop_seconds

# A stage hands over its hidden states and the residual beside them
# (vllm/model_executor/models/llama.py, make_empty_intermediate_tensors).
HANDED_OVER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """What one rank of a replica takes for a step's tokens, all its stages' layers one after another.

    `dense` and `exchanged` are seconds over the tokens of one rank's step, `experts` over those of all ranks of its
    stage, `head` over sequences. `kernels` run in a step, and at `exchanges` of them, counted once for every doubling
    of the ranks, ranks wait for one another. A step takes `batch_tokens` at most. `slowest_stage_part` is what the
    pipeline stage with the most weights reads of those of all; `network_seconds` are the starts of messages from node
    to node that a token waits for. With `overlaps_host` the host prepares the next step while this one runs, and with
    `mixes_prompts` steps that decode compute prompts too. The factors are what a measured run of the same model, GPU
    and engine took of the estimate. `is_measured` says whether every operator was measured at all, and `unseen` what of
    the layout no public run had.
    """

    efficiency: Efficiency
    dense: Curve
    experts: Curve | None
    exchanged: Curve | None
    head: Curve
    attention: CachedRank
    kernels: int
    exchanges: float
    batch_tokens: int
    pipeline_parallel: int
    attention_data_parallel: int
    hop_bytes_per_token: float
    stage_link_bytes_per_second: float
    slowest_stage_part: float
    network_seconds: float
    layers: int
    overlaps_host: bool
    mixes_prompts: bool
    evidence: tuple[Evidence, ...]
    is_measured: bool
    unseen: tuple[str, ...] = ()
    token_factor: float = 1.0
    first_token_factor: float = 1.0

    @property
    def is_own_card(self) -> bool:
        """Return whether all operators were measured on this card."""
        return self.is_measured and all(each.is_own_card for each in self.evidence)

    @property
    def token_band(self) -> Band:
        """Return the band of times between tokens, wider where operators are another card's or layouts nobody's."""
        return self.efficiency.token_band.widened(self._spread)

    @property
    def first_token_band(self) -> Band:
        """Return the same of times to the first token."""
        return self.efficiency.first_token_band.widened(self._spread)

    @property
    def _spread(self) -> float:
        return max(1.0 if self.is_own_card else CARD_SPREAD, LAYOUT_SPREAD if self.unseen else 1.0)

    def linear_seconds(self, tokens: float) -> float:
        """Return the seconds of what a step does for each of one rank's tokens: all but attention and the head."""
        step = self.efficiency.step
        operators = self.dense.at(tokens)
        if self.experts is not None:
            operators += self.experts.at(tokens * self.attention_data_parallel)
        exchanged = 0.0 if self.exchanged is None else self.exchanged.at(tokens)
        return step.operators * operators + step.exchanges * exchanged

    @property
    def gap_seconds(self) -> float:
        """Return the seconds of a step in which the card waits: from kernel to kernel, and at exchanges."""
        step = self.efficiency.step
        return self.kernels * step.kernel_seconds + self.exchanges * step.exchange_seconds

    def token_attention(self, context_tokens: float) -> Curve:
        """Return the seconds of attention over the sequences that one rank decodes at a context."""
        return Curve(token_seconds(self.attention, context_tokens))

    def prompt_attention_seconds(self, tokens: int) -> float:
        """Return the seconds of attention of one prompt among others."""
        return prompt_seconds(self.attention, tokens, self.batch_tokens)

    def prompt_pass_seconds(self, tokens: int) -> float:
        """Return what a prompt adds to the steps of a rank that decodes anyway: its share of full batches."""
        batches = tokens / self.batch_tokens
        linear = self.linear_seconds(self.batch_tokens) - self.linear_seconds(1)
        return batches * linear + self.prompt_attention_seconds(tokens)

    def prompt_alone_seconds(self, tokens: int) -> float:
        """Return what a prompt takes that nothing else is computed with."""
        batches = max(1.0, tokens / self.batch_tokens)
        linear = self.linear_seconds(min(tokens, self.batch_tokens)) + self.gap_seconds
        return batches * linear + self.prompt_attention_seconds(tokens)

    def hop_seconds(self, tokens: float) -> float:
        """Return the time tokens take from stage to stage."""
        hops = self.pipeline_parallel - 1
        return hops * tokens * self.hop_bytes_per_token / self.stage_link_bytes_per_second


def replica_work(
    model: ModelSpec,
    settings: Settings,
    hardware: Hardware,
    stages: Sequence[Stage],
    degrees: Degrees,
    *,
    has_scale_blocks: bool = False,
) -> ReplicaWork:
    """Return a replica's work: that of all stages, because a token passes them all.

    Raises `NotYetAvailable` where the engine's speed is not described.
    """
    gpu, within_node, profile = hardware.gpu, hardware.gpus_per_node, settings.profile
    if profile.timed_as is None:
        raise NotYetAvailable(f"The speed of {profile.engine} cannot be predicted yet.", pointer="/serving/engine")
    rank = Rank(
        model=ByIdentity(model),
        gpu=ByIdentity(gpu),
        operators_engine=profile.engine,
        release=profile.version,
        weights=settings.weights,
        formats=operand_formats(settings.weights, gpu, has_scale_blocks=has_scale_blocks),
        tensor_parallel=degrees.tensor_parallel,
        copies_attention=degrees.attention_data_parallel > 1,
        expert_backend=settings.expert_backend,
    )
    attention = CachedRank(rank=rank, cache=settings.kv, decode_context_parallel=degrees.decode_context_parallel)
    kinds = ExchangeKinds(in_domain=profile.domain_exchange, between_nodes=profile.network_exchange)
    dense, exchanged = dense_operators(rank), exchanges(rank, degrees, within_node, kinds)
    experts = expert_operators(rank, degrees.expert_parallel, degrees.expert_tensor_parallel)
    attended, is_measured = attention_evidence(attention)
    evidence = (*dense.evidence, *(() if experts is None else experts.evidence), *exchanged.evidence, *attended)
    stage_bytes = [stage.read_bytes + stage.expert_bytes for stage in stages]
    ranks = degrees.ranks_per_stage
    return ReplicaWork(
        efficiency=engine_efficiency(profile.timed_as, hardware.site),
        dense=Curve(dense.seconds),
        experts=None if experts is None else Curve(experts.seconds),
        exchanged=Curve(exchanged.seconds) if exchanged.kernels else None,
        head=Curve(head_seconds(rank)),
        attention=attention,
        kernels=dense.kernels + (0 if experts is None else experts.kernels),
        exchanges=exchanged.kernels * math.log2(ranks),
        batch_tokens=settings.max_num_batched_tokens,
        pipeline_parallel=degrees.pipeline_parallel,
        attention_data_parallel=degrees.attention_data_parallel,
        hop_bytes_per_token=HANDED_OVER * model.hidden_size * settings.weights.dense_bytes,
        stage_link_bytes_per_second=gpu.link_bytes_per_second
        if degrees.gpus <= within_node
        else gpu.nic_bytes_per_second,
        slowest_stage_part=max(stage_bytes) / sum(stage_bytes),
        network_seconds=_network_hops(model, degrees, within_node) * network_hop_seconds(),
        layers=model.num_layers,
        overlaps_host=profile.overlaps_host,
        mixes_prompts=profile.scheduling.mixes_prompts,
        evidence=tuple(dict.fromkeys(evidence)),
        is_measured=is_measured,
        unseen=_unseen(degrees, within_node),
        token_factor=1.0 if settings.learned is None else settings.learned.tpot_factor,
        first_token_factor=1.0 if settings.learned is None else settings.learned.ttft_factor,
    )


def _unseen(degrees: Degrees, gpus_per_node: int) -> tuple[str, ...]:
    """Return what of a layout no run of the fit had, in words (docs/accuracy.md, by layout)."""
    found = {
        "pipeline stages": degrees.pipeline_parallel > 1,
        "decode context parallelism": degrees.decode_context_parallel > 1,
        "a stage's ranks on several nodes": degrees.ranks_per_stage > gpus_per_node,
    }
    return tuple(words for words, is_so in found.items() if is_so)


def _network_hops(model: ModelSpec, degrees: Degrees, gpus_per_node: int) -> int:
    """Return how many messages from node to node a token waits for, one after another.

    A ring over n nodes passes each of their borders but one twice in an all-reduce, once to sum and once to gather;
    a stage on another node is one message away.
    """
    nodes, all_nodes = (-(-gpus // gpus_per_node) for gpus in (degrees.ranks_per_stage, degrees.gpus))
    return ALL_REDUCES_PER_LAYER * model.num_layers * 2 * (nodes - 1) + min(all_nodes, degrees.pipeline_parallel) - 1
