"""Questions: what a client asks, resolved and frozen.

A question holds the model's description and the GPU's facts themselves, so that
a planner needs nothing else. A field that is None is left to the planner; what numbers
may be, their fields say (`planners/ground/ranges.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.hardware import Hardware
from plimsoll.planners.ground.ranges import (
    BATCHED_TOKENS,
    BLOCK_TOKENS,
    CONCURRENCY,
    DEGREE,
    DRAFT_TOKENS,
    FRACTION,
    REQUESTS_PER_SECOND,
    SECONDS,
    SEQUENCE_TOKENS,
    SHARE,
    asked,
)
from plimsoll.planners.learned import Learned

# Llama Team 2024, section 3.3.4 and table 5, arXiv:2407.21783: 419 unexpected interruptions in 54 days on 16,384 GPUs,
# whatever their cause: 419 / 54 * 30 / 16,384 = 0.0142.
GPU_FAILURES_PER_MONTH = 0.014
# What jobs were planned with before published counts were at hand, by no source on record: six times Llama 3's.
PESSIMISTIC_GPU_FAILURES_PER_MONTH = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Which traffic a client wants a stack to hide behind computation, or not; None leaves it to stack and search.

    `gradients` is their reduction, `parameters` the gathering of those that each rank updated a part of,
    `tensor_parallel` what an option hides beside what layers hide without it, `expert_parallel` the exchange of tokens
    with their experts.
    """

    gradients: bool | None = None
    parameters: bool | None = None
    tensor_parallel: bool | None = None
    expert_parallel: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """The degrees a client fixed; the search chooses the others.

    `data_parallel` counts replicas of the batch; `shard_group` is how many of
    them share one copy of what ZeRO shards. `zero_stage` 1 shards optimizer
    states, 2 gradients too, 3 parameters too; with it `secondary_shard_group` ranks share a
    second copy of the weights, one meaning none. `pipeline_schedule` is `1f1b` (with
    virtual stages its interleaved form), `gpipe` (all forward passes first) or
    `pipedream` (no flush, a version of the weights for each micro-batch in flight).
    `context_all_to_all` of the ranks that divide a sequence exchange heads for tokens before
    attention; what they have then goes round a ring of the others, one meaning a ring alone.
    `pipeline_layout` is how a pipeline's blocks are divided among its stages
    (`planners/jobs/pipeline_layouts.py`).
    """

    data_parallel: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    virtual_pipeline: int | None = None
    context_parallel: int | None = None
    context_all_to_all: int | None = None
    expert_parallel: int | None = None
    sequence_parallel: bool | None = None
    zero_stage: int | None = None
    shard_group: int | None = None
    secondary_shard_group: int | None = None
    offload: str | None = None
    offload_target: str | None = None
    pipeline_schedule: str | None = None
    pipeline_layout: str | None = None
    overlap: Overlap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on the named matrices.

    Modules to save are copied beside themselves and the copies trained whole, as peft does. `base_dtype` is that of the
    frozen weights, None as the stack loads them. `dropout` is the probability with which elements of an adapter's input
    are dropped, None as the stack does by default.
    """

    ALL_LINEAR: ClassVar[str] = "all-linear"

    rank: int = 16
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    modules_to_save: tuple[str, ...] = ()
    base_dtype: str | None = None
    double_quantization: bool = True
    dropout: float | None = None

    @property
    def targets_all_linear(self) -> bool:
        """Return whether every linear layer but the head has adapters."""
        return self.target_modules == (self.ALL_LINEAR,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What is thrown away in the forward pass and computed again in the backward.

    `mode` is `none`, `selective` (the attention's scores) or `full` (all but each
    layer's input); `full_layers` limits `full` to that many layers of each stage,
    `every` to every so-manieth layer of each stage, counted from its first;
    `modules` names the parts of each layer that `selective` computes again
    (`planners/jobs/recompute_modules.py`), empty meaning what the framework does.
    """

    mode: str
    full_layers: int | None = None
    every: int | None = None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Evaluations between steps: `batch_size` sequences on each replica, `samples` in all.

    `keeps_logits` says that metrics are computed of the predictions, so that a trainer
    keeps them: for `accumulation_steps` batches, None for all.
    """

    batch_size: int = 8
    samples: int = 1
    keeps_logits: bool = False
    accumulation_steps: int | None = None

    def kept_batches(self, data_parallel: int) -> int:
        """Return of how many batches the logits are kept at once over so many replicas, none where they are not."""
        if not self.keeps_logits:
            return 0
        batches = -(-self.samples // (self.batch_size * data_parallel))
        return min(batches, self.accumulation_steps or batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A model beside the policy, frozen unless `trainable`; `model` None is the policy's own model as it was.

    `role` is `reference` (its logits are compared), `reward` or `value` (one number a sequence or token).
    """

    role: str
    model: ModelSpec | None = None
    precision: str = "bf16"
    trainable: bool = False
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """How often hardware fails and what a restart costs.

    `restart_seconds` pass from a failure until processes run again; reading the
    checkpoint comes on top, and `warm_up_seconds` until steps are as fast as before.
    `target_availability` is the part of the time for which enough nodes are to be
    up, where a failed one is back after `repair_seconds`.
    """

    gpu_failures_per_month: float = GPU_FAILURES_PER_MONTH
    restart_seconds: float | None = None
    warm_up_seconds: float | None = None
    checkpoint_bytes_per_second: float | None = None
    target_availability: float | None = None
    repair_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLayout:
    """A layout, partial or whole, that a client wants set beside the plan.

    The degrees stand alone: those the question fixes do not hold for it. What of
    the others is None is the question's own.
    """

    layout: LayoutRequest = field(default_factory=LayoutRequest)
    micro_batch_size: int | None = None
    recompute: Recompute | None = None
    activation_offload: bool | None = None
    offload_modules: tuple[str, ...] = ()
    offload_layers: int | None = None
    fused_cross_entropy: bool | None = None
    framework: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestion:
    """A training job to plan. `global_batch_size` counts sequences.

    `kernels` says how the model's operations are run: `eager` (one by one),
    `fused` (hand-written kernels such as Liger's or Transformer Engine's) or
    `compiled` (torch.compile); None is the framework's default.
    `gradient_compression` is `none`, `bf16`, `fp16`, `powersgd` or `1-bit` (`planners/memory/compression.py`).
    `expert_imbalance` is the tokens of the busiest expert-parallel rank over the mean rank's (at least 1).
    `multi_token_prediction` counts the layers that predict tokens behind the next one.
    `offload_modules` are the parts of layers that `activation_offload` sends (`planners/jobs/offload_modules.py`),
    empty meaning those worth it, or all that layers keep.
    """

    model: ModelSpec
    hardware: Hardware
    method: str = "full"
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    sequence_length: int
    global_batch_size: int
    tokens: float | None = None
    gradient_dtype: str | None = None
    optimizer_state_dtype: str | None = None
    micro_batch_size: int | None = None
    recompute: Recompute | None = None
    activation_offload: bool | None = None
    offload_modules: tuple[str, ...] = ()
    offload_layers: int | None = None
    fused_cross_entropy: bool | None = None
    attention: str = "flash"
    expert_imbalance: float = 1.0
    multi_token_prediction: int = 0
    gradient_compression: str = "none"
    kernels: str | None = None
    evaluation: Evaluation | None = None
    companions: tuple[Companion, ...] = ()
    lora: Lora = field(default_factory=Lora)
    layout: LayoutRequest = field(default_factory=LayoutRequest)
    objective: str = "throughput"
    deadline_seconds: float | None = None
    framework: str = "any"
    resilience: Resilience = field(default_factory=Resilience)
    compare: tuple[NamedLayout, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLayoutRequest:
    """The serving degrees a client fixed; `data_parallel` counts replicas."""

    tensor_parallel: int | None = asked(DEGREE)
    pipeline_parallel: int | None = asked(DEGREE)
    data_parallel: int | None = asked(DEGREE)
    attention_data_parallel: int | None = asked(DEGREE)
    expert_parallel: int | None = asked(DEGREE)
    decode_context_parallel: int | None = asked(DEGREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """The latency a deployment must keep: time to first token and per output token."""

    ttft_seconds: float | None = asked(SECONDS)
    tpot_seconds: float | None = asked(SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """How long prompts or answers are, in tokens: a mean, percentiles, or a histogram of
    `counts[i]` requests of at most `lengths[i]`."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    lengths: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: `tokens` drafted at once, each accepted at `acceptance_rate` while those before it were."""

    tokens: int = asked(DRAFT_TOKENS, MISSING)
    acceptance_rate: float = asked(FRACTION, MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Positions stretched beyond what a model's config states: `rope_type` by `factor`, in the words of a config.

    YaRN stretches `original_max_position_embeddings`, the config's own where None.
    `rope_theta` is the base of the wavelengths, None where the config is asked.
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int | None = None
    rope_theta: float | None = None

    @property
    def in_config(self) -> dict[str, Any]:
        """Return it as a config states it."""
        stated = {
            "rope_type": self.rope_type,
            "factor": self.factor,
            "original_max_position_embeddings": self.original_max_position_embeddings,
        }
        return {name: value for name, value in stated.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prefill and decode on GPUs of their own; a number left None is searched."""

    prefill_gpus: int | None = asked(DEGREE)
    decode_gpus: int | None = asked(DEGREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedChoices:
    """Formats and batch limits a client allows, by the question's fields; where a tuple is empty its own stands."""

    weights: tuple[str, ...] = ()
    kv_cache: tuple[str, ...] = ()
    max_num_batched_tokens: tuple[int, ...] = ()
    max_num_seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingQuestion:
    """A deployment to size. `concurrency` is for the whole deployment, closed loop;
    `requests_per_second` come to it at random. With `burst_seconds` the `concurrency` requests
    come all at once, again every so many seconds. Without `simulate` single requests are followed
    in bursts alone.

    Engine settings left None take that engine version's own defaults on that GPU.
    `prefix_cache_hit_rate` is the part of a prompt's tokens that is found cached.
    `scale_block` is the side of the blocks that a checkpoint in fp8 has one scale for each of.
    `learned` is what measured starts of this model on this GPU and engine taught, by weight format.
    """

    model: ModelSpec
    hardware: Hardware
    weights: str = "bf16"
    kv_cache: str = "bf16"
    scale_block: int | None = None
    max_model_len: int | None = asked(SEQUENCE_TOKENS)
    input_tokens: int | None = asked(SEQUENCE_TOKENS)
    output_tokens: int | None = asked(SEQUENCE_TOKENS)
    input_length: LengthDistribution | None = None
    output_length: LengthDistribution | None = None
    concurrency: int | None = asked(CONCURRENCY)
    requests_per_second: float | None = asked(REQUESTS_PER_SECOND)
    burst_seconds: float | None = asked(SECONDS)
    simulate: bool = True
    prefix_cache_hit_rate: float = asked(FRACTION, 0.0)
    speculative: Speculation | None = None
    disaggregated: Disaggregation | None = None
    engine: str
    engine_version: str | None = None
    rope_scaling: RopeScaling | None = None
    gpu_memory_utilization: float | None = asked(SHARE)
    block_size: int | None = asked(BLOCK_TOKENS)
    cache_implementation: str | None = None
    expert_backend: str | None = None
    chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = asked(BATCHED_TOKENS)
    max_num_seqs: int | None = asked(CONCURRENCY)
    slo: ServiceLevel | None = None
    objective: str = "throughput"
    layout: ServingLayoutRequest = field(default_factory=ServingLayoutRequest)
    allowed: AllowedChoices | None = None
    learned: Mapping[str, Learned] = field(default_factory=dict)
