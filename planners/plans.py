"""Answers of the training planner, shaped as clients receive them.

The wire's field names are these; the API serializes these values as they are,
so that a field has one definition. Every total is the sum of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTraffic:
    """Which traffic of a layout its framework is told to hide behind computation, or always hides; else false.

    False too where there is no such traffic: sent back in a request each value means the same. `gradients` is their
    reduction, `parameters` the gathering of those that each rank updated a part of, `tensor_parallel` what an option
    hides (`--tp-comm-overlap`, `enable_async_tensor_parallel`) and not what layers hide without it, `expert_parallel`
    the exchange of tokens with their experts. Plans of earlier versions count in `tensor_parallel` what layers hide.
    """

    gradients: bool
    parameters: bool
    tensor_parallel: bool
    expert_parallel: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the work is divided: gpus = data x tensor x pipeline x context.

    `recompute_layers` are those of each stage that full recompute covers, None for all; with `recompute_every` it
    covers one layer in so many. `recompute_modules` are the parts of every layer that selective recompute names, none
    where it does what the framework does. `pipeline_layout` says how a pipeline's stages are divided
    (`planners/jobs/pipeline_layouts.py`), None where there is no pipeline.
    `secondary_shard_group` ranks share a second copy of the weights, one where there is none.
    `context_all_to_all` ranks that divide a sequence exchange heads for tokens before attention, one where a ring alone
    passes keys and values on.
    `overlap` says which traffic the framework is told to hide; None in answers of versions that did not say.
    `offload_modules` are the parts of layers that send what they keep to the host, none where all does or nothing;
    `offload_layers` is how many of the first layers send all they keep, None where it is no matter of layers.
    """

    framework: str
    gpus: int
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    virtual_pipeline: int
    context_parallel: int
    expert_parallel: int
    sequence_parallel: bool
    zero_stage: int
    shard_group: int
    offload: str
    offload_target: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    recompute: str
    recompute_layers: int | None
    activation_offload: bool
    fused_cross_entropy: bool
    pipeline_schedule: str = "1f1b"
    pipeline_layout: str | None = None
    overlap: HiddenTraffic | None = None
    recompute_modules: tuple[str, ...] = ()
    secondary_shard_group: int = 1
    recompute_every: int | None = None
    offload_modules: tuple[str, ...] = ()
    context_all_to_all: int = 1
    offload_layers: int | None = None

    @property
    def activation_offload_asked(self) -> bool | dict[str, int] | dict[str, list[str]]:
        """Return what of activations is offloaded as a request says it: all, nothing, or modules."""
        if self.offload_layers is not None:
            return {"layers": self.offload_layers}
        return {"modules": list(self.offload_modules)} if self.offload_modules else self.activation_offload

    @property
    def recompute_asked(self) -> str | dict[str, int] | dict[str, list[str]]:
        """Return the recomputation as a request says it: a mode, layers of each stage, or modules."""
        if self.recompute_modules:
            return {"modules": list(self.recompute_modules)}
        if self.recompute_every is not None:
            return {"every": self.recompute_every}
        if self.recompute_layers == 0:
            return "none"
        return self.recompute if self.recompute_layers is None else {"full_layers": self.recompute_layers}


def layout_from(fields: Mapping[str, Any]) -> Layout:
    """Return a layout from the fields of an answer, whichever version gave it."""
    hidden = fields.get("overlap")
    modules, sent = (tuple(fields.get(name, ())) for name in ("recompute_modules", "offload_modules"))
    hides = None if hidden is None else HiddenTraffic(**hidden)
    return Layout(**{**fields, "overlap": hides, "recompute_modules": modules, "offload_modules": sent})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItems:
    """One GPU's bytes at its worst moment, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    communication: int
    fragmentation: int
    runtime: int

    @property
    def total_bytes(self) -> int:
        """Return the sum of the items."""
        return sum(getattr(self, entry.name) for entry in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveItems:
    """The allocator's live tensors at one moment, by what they are for."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    communication: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """A moment of the step on one stage; `layer` is the one that is at work in the pass, None where no one layer is."""

    phase: str
    layer: int | None
    allocated_bytes: int
    items: LiveItems


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One pipeline stage's peak; `layers` is its first and last layer.

    Of an interleaved schedule `layers` only counts them, and `chunks` has the first and last of each run that the stage
    has, as `ShardedStage` says; plans of earlier versions have none. `moments` are each pass's layers, what comes
    before and behind them, the reduction and the update, in their order, each at its most: of the micro-batch at which
    the stage is fullest then.
    """

    stage: int
    layers: tuple[int, int]
    peak_bytes: int
    phase: str
    items: MemoryItems
    moments: tuple[MemoryMoment, ...]
    chunks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A moment outside the steps: one GPU's live tensors, and the host memory per GPU, at that moment."""

    name: str
    device_bytes: int
    host_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """What the worst stage's peak reads as by one counter, with that counter's own error band, and what it counts."""

    name: str
    size_bytes: int
    low_bytes: int
    high_bytes: int
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What one GPU of the worst stage must hold, as nvidia-smi would show it.

    `allocated_bytes` are the allocator's live tensors, `reserved_bytes` adds
    rounding and fragmentation, `peak_bytes` the context and communicators too.
    `host_bytes` is what the host needs for each GPU of the fullest node, loading and checkpoints included.
    `node_host_bytes` is what that node needs from the first step on, without loading. Every node with this GPU is taken
    to have `node_host_sure_bytes` for the GPUs in use, and none more than `node_host_limit_bytes`; both are the node's
    own where the request says what it has. All three are None in plans of earlier versions. `readings` are the peak as
    different counters show it, none in plans of earlier versions.
    """

    peak_bytes: int
    peak_low_bytes: int
    peak_high_bytes: int
    limit_bytes: int
    margin_bytes: int
    host_bytes: int
    node_host_bytes: int | None
    node_host_sure_bytes: int | None
    node_host_limit_bytes: int | None
    nvme_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    phase: str
    items: MemoryItems
    spikes: tuple[Spike, ...]
    stages: tuple[StageMemory, ...]
    readings: tuple[MemoryReading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The seconds of a step that nothing else hides, by what they are spent on.

    `expert_parallel` is the exchange of tokens with the ranks of their experts, `context_parallel` that of keys
    and values around the ranks of a sequence; plans of earlier versions have it in `tensor_parallel`.
    """

    forward: float
    backward: float
    recompute: float
    tensor_parallel: float
    expert_parallel: float
    pipeline_bubble: float
    data_parallel: float
    optimizer: float
    offload: float
    context_parallel: float = 0.0

    @property
    def total_seconds(self) -> float:
        """Return the sum of the parts."""
        return (
            self.forward
            + self.backward
            + self.recompute
            + self.tensor_parallel
            + self.context_parallel
            + self.expert_parallel
            + self.pipeline_bubble
            + self.data_parallel
            + self.optimizer
            + self.offload
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStep:
    """A pipeline stage's work: its layers in all chunks, and what one micro-batch takes there, forward and backward."""

    stage: int
    layers: int
    micro_batch_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step: `tflops_per_gpu` counts the model's own operations only.

    `highest_measured_utilization` is the highest that any public run of such a model reached on the card, in this
    format; None where none is known.
    The slowest of the `stages` sets the pace of all.
    """

    seconds: float
    low_seconds: float
    high_seconds: float
    parts: StepParts
    tokens_per_second: float
    tflops_per_gpu: float
    model_flops_utilization: float
    highest_measured_utilization: float | None = None
    stages: tuple[StageStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One way to recover from failures, with the goodput it leaves.

    `saving_seconds` hold the training up at each checkpoint, `recovery_seconds` pass
    from a failure until work goes on. A way that the layout rules out is not
    `possible` and has no figures.
    """

    name: str
    launch: str
    restarts: str
    bad_nodes: str
    data_position: str
    possible: bool
    saving_seconds: float | None
    interval_seconds: float | None
    recovery_seconds: float | None
    goodput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareNodes:
    """Nodes to keep beside those that train, so that enough are up for the target part of the time.

    `spares` and `availability` are None where not even twice the nodes will do.
    """

    nodes: int
    spares: int | None
    availability: float | None
    target_availability: float
    repair_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The whole run. What needs a token budget or a price is None without one.

    `checkpoint_interval_seconds` is Young's and Daly's first-order optimum,
    `checkpoint_interval_daly_seconds` Daly's of higher order, which `goodput` rests on,
    and no less than a step.
    `seconds` are those of the steps alone, `expected_seconds` with what failures and
    checkpoints cost. `spare_nodes` is None where no availability was asked for.
    """

    steps: int | None
    seconds: float | None
    gpu_hours: float | None
    cost_usd: float | None
    model_flops: float | None
    failures_per_day: float
    probability_of_failure_per_day: float
    checkpoint_bytes: int
    checkpoint_seconds: float
    checkpoint_interval_seconds: float | None
    checkpoint_interval_daly_seconds: float | None
    recovery_seconds: float
    goodput: float | None
    expected_seconds: float | None
    spare_nodes: SpareNodes | None
    elastic_gpus: tuple[int, ...]
    recovery: tuple[Recovery, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """One kind of collective: the messages of each layer and how long they take a step.

    `bytes_per_layer` are the messages themselves; a ring over n ranks sends an
    all-reduced message 2·(n−1)/n times and a gathered one (n−1)/n times.
    """

    group: str
    operation: str
    bytes_per_layer: int
    calls_per_step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The device mesh, outermost axis first; the last axis is within a node.

    Experts are divided over the same ranks in another way: rank r of a stage has
    expert coordinate floor(r / `expert_tensor_parallel`) mod `expert_parallel`.
    """

    order: tuple[str, ...]
    shape: tuple[int, ...]
    expert_parallel: int
    expert_tensor_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStage:
    """What a pipeline stage holds; `layers` is its first and last layer.

    An interleaved schedule deals each stage several runs of layers: `chunks` has the first and last layer of each, in
    the order in which a micro-batch passes them, and `layers` only counts them, as if they were one run.
    """

    stage: int
    layers: tuple[int, int]
    chunks: tuple[tuple[int, int], ...]
    embedding: bool
    head: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedWeight:
    """How a weight is split; `name` has `*` for the layer, `axis` is the tensor dimension.

    `stage_copies` is how many of its `copies` each stage holds; a tied matrix may stand on two.
    """

    name: str
    shape: tuple[int, ...]
    split: str
    axis: int | None
    local_shape: tuple[int, ...]
    copies: int
    stage_copies: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Who holds what."""

    mesh: Mesh
    stages: tuple[ShardedStage, ...]
    weights: tuple[ShardedWeight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """One layout, with its memory, its step and its run."""

    layout: Layout
    memory: Memory
    step: Step
    run: Run
    communication: tuple[Communication, ...]
    sharding: Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another layout worth knowing: none is better in GPUs, time and margin at once."""

    layout: Layout
    peak_bytes: int
    margin_bytes: int
    step_seconds: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One cause why a named layout is not the plan; `pointer` is the field of the request it lies in."""

    rule: str
    detail: str
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A layout the client named, completed by the best search inside it, beside the plan.

    `outcome` is `excluded` (rules leave no such layout; nothing else is then known),
    `does_not_fit`, `tight` (the plan fits with room), `late`, `more_gpus`, `costlier`,
    `slower`, `near_equal` (within the time model's error; the plan is simpler),
    `outside_request` (as good or better, and the request fixes something else), or
    `chosen`.
    """

    layout: Layout | None
    outcome: str
    verdict: str | None
    reasons: tuple[Reason, ...]
    peak_bytes: int | None
    margin_bytes: int | None
    step_seconds: float | None
    step_parts: StepParts | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """How large the search was.

    A layout counts as considered if its memory was worked out, or bounded where another one beats it or it has no room;
    as fitting, if its memory was worked out and fits.
    """

    layouts_considered: int
    layouts_excluded: int
    layouts_fitting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutStack:
    """A training stack that was not searched, and why."""

    framework: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedStacks:
    """The training stacks that were searched, those among them that no run measured, and those that were left out."""

    searched: tuple[str, ...]
    unmeasured: tuple[str, ...]
    left_out: tuple[LeftOutStack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change to the question, already planned: what it would need and take, and how much more than the plan."""

    change: Mapping[str, Any]
    peak_bytes: int
    step_seconds: float
    peak_bytes_difference: int
    step_seconds_difference: float
    fits: bool
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEntry:
    """The best plan on one entry of a fleet; entries come best first.

    `entry` is its place in the request. One that cannot run the job at all has a
    `refusal` instead of a plan. `usd_per_token` and `cost_usd` need a price, and
    `run_seconds` and `meets_deadline` a token budget and a deadline.
    """

    entry: int
    gpu: str
    gpus: int | None
    fits: bool
    verdict: str
    layout: Layout | None
    peak_bytes: int | None
    margin_bytes: int | None
    step_seconds: float | None
    tokens_per_second: float | None
    run_seconds: float | None
    usd_per_token: float | None
    cost_usd: float | None
    meets_deadline: bool | None
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """A part of the answer that could not be worked out, by its fields' names (`plan.run.elastic_gpus`), and why.

    It is empty or null in the answer; everything else holds without it.
    """

    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAnswer:
    """What `plan_training` returns.

    `fits` is the best estimate against the limit; `verdict` is `fits` when the
    high end of the error bar fits too, `tight` when only the estimate does, `no`.
    """

    fits: bool
    verdict: str
    summary: str
    plan: TrainingPlan
    alternatives: tuple[Alternative, ...]
    search: SearchCounts
    advice: tuple[Advice, ...]
    assumptions: tuple[str, ...] = field(default=())
    comparisons: tuple[Comparison, ...] = ()
    fleet: tuple[FleetEntry, ...] = ()
    omitted: tuple[Omitted, ...] = ()
    stacks: SearchedStacks
