"""What a training answer says in words: its summary, and the assumptions it rests on.

Every note is a function of its own that yields whole sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.formats.precision import FP8_MIXED, FP32_BYTES
from plimsoll.planners.ground.figures import SIGNIFICANT_DIGITS, counted, duration, figure, listed
from plimsoll.planners.ground.hardware import has_bf16
from plimsoll.planners.ground.terms import ONE_FORWARD_ONE_BACKWARD
from plimsoll.planners.ground.units import GIB, GIGA
from plimsoll.planners.jobs.adapters import unadapted_note
from plimsoll.planners.jobs.job import BlockWeights, Job
from plimsoll.planners.jobs.pipeline_layouts import BEHIND_FIRST, BY_LAYERS, EVEN, own_way
from plimsoll.planners.jobs.recompute_modules import LAYER_NORM, NOT_WITH_DELAYED_SCALING, has_norm_apart
from plimsoll.planners.memory.frozen import frozen_note, stacked_experts_note
from plimsoll.planners.memory.host_words import host_notes, host_shortage, lacking_host_bytes
from plimsoll.planners.memory.nearest import nearest_note, plan_sizes
from plimsoll.planners.memory.recurrent import block_scan
from plimsoll.planners.plans import Alternative, Layout, TrainingPlan
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.rules.fields import named_fields
from plimsoll.planners.stacks.model_code import in_words, traits_of
from plimsoll.planners.stacks.releases import Release
from plimsoll.planners.timing.efficiency import Efficiency
from plimsoll.planners.timing.stalls import risks
from plimsoll.planners.timing.untimed import untimed_notes
from plimsoll.planners.timing.utilization import highest_utilization
from plimsoll.planners.training.failure_notes import failure_notes
from plimsoll.planners.training.tie_notes import tie_notes

# The run, its failures and the deadline are told in as many digits as tell them apart, short of this many.
MOST_DIGITS = 8
FLASH_HEAD_MULTIPLE = 8
OFFLOADED = {"optimizer": "optimizer states", "optimizer+parameters": "optimizer states and parameters"}
CHOSEN = " The search chose this; set {} to rule it out."
OFFLOADED_TO = {"cpu": "in host memory", "nvme": "on NVMe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a note may speak of; `waiting_bytes` is what copies to the host leave waiting on a GPU, uncounted."""

    question: TrainingQuestion
    job: Job
    plan: TrainingPlan
    efficiency: Efficiency
    alternatives: tuple[Alternative, ...] = ()
    waiting_bytes: float = 0.0

    @property
    def layout(self) -> Layout:
        """Return how the plan divides the work."""
        return self.plan.layout


def summary(question: TrainingQuestion, plan: TrainingPlan, verdict: str) -> str:
    """Return the layout, what it needs and takes, and whether it meets the deadline where there is one."""
    layout, memory = plan.layout, plan.memory
    where = f"{question.model.name} on {layout.gpus} x {question.hardware.gpu.name} with {layout.framework}"
    how = f"{where} ({_degrees(layout)}, {', '.join(_choices(layout))})"
    peak, limit = f"{memory.peak_bytes / GIB:,.1f} GiB", f"{memory.limit_bytes / GIB:,.1f} GiB"
    if layout.offload != "none" or layout.activation_offload:
        limit += f", with {(memory.node_host_bytes or 0) / GIB:,.1f} GiB of host memory per node"
    shortage = host_shortage(memory, is_given=question.hardware.host_memory_bytes is not None)
    host = f" {shortage}" if shortage else ""
    if verdict == "no":
        least = "" if lacking_host_bytes(memory) else ", and no other layout tried needs less"
        return f"Does not fit: {how}. Each GPU needs {peak} of {limit}; the peak is in {memory.phase}{least}.{host}"
    word, highest = "Fits" if verdict == "fits" else "Fits tightly", ""
    # Else it is tight for its host's memory, of which the shortage tells.
    if memory.peak_high_bytes > memory.limit_bytes:
        highest = f", perhaps up to {memory.peak_high_bytes / GIB:,.1f} GiB,"
    needs = f"Each GPU needs {peak}{highest} of {limit}; the peak is in {memory.phase}."
    step = f"A step takes {duration(plan.step.seconds)}: {plan.step.tokens_per_second:,.0f} tokens/s."
    return f"{word}: {how}. {needs} {step}{host}{_in_time(question, plan)}"


def _degrees(layout: Layout) -> str:
    degrees = f"data {layout.data_parallel} x tensor {layout.tensor_parallel} x pipeline {layout.pipeline_parallel}"
    if layout.context_parallel > 1:
        degrees += f" x context {layout.context_parallel}"
    if layout.expert_parallel > 1:
        degrees += f", experts over {layout.expert_parallel}"
    return degrees


def recomputation(layout: Layout) -> str:
    """Return how a layout recomputes, and of what where not of all."""
    if layout.recompute_modules:
        return f"{layout.recompute} of {listed(layout.recompute_modules)}"
    layers = layout.recompute_layers
    if layout.recompute_every is not None:
        return f"{layout.recompute} of one layer in {layout.recompute_every}"
    if layers == 0:
        return "of no layers"
    return layout.recompute if layers is None else f"{layout.recompute} of {counted(layers, 'layer')} per stage"


def _choices(layout: Layout) -> Iterator[str]:
    """Yield every choice of a layout beside its degrees that changes what it holds or takes."""
    is_grouped = layout.zero_stage > 0 and layout.shard_group != layout.data_parallel
    yield f"ZeRO {layout.zero_stage}" + (f" over groups of {layout.shard_group}" if is_grouped else "")
    if layout.context_all_to_all > 1:
        yield f"heads exchanged between {layout.context_all_to_all} ranks of a sequence"
    if layout.secondary_shard_group > 1:
        yield f"a second copy of weights over {layout.secondary_shard_group}"
    accumulated = layout.gradient_accumulation_steps
    yield f"micro-batch {layout.micro_batch_size}" + (f" x {accumulated} accumulated" if accumulated > 1 else "")
    yield f"recompute {recomputation(layout)}"
    if layout.sequence_parallel:
        yield "sequence parallel"
    if layout.virtual_pipeline > 1:
        yield f"{layout.virtual_pipeline} virtual stages per GPU"
    if layout.overlap is not None and layout.overlap.expert_parallel:
        yield "exchange with experts overlapped"
    if layout.pipeline_schedule != ONE_FORWARD_ONE_BACKWARD:
        yield f"schedule {layout.pipeline_schedule}"
    # These are as even as can be.
    if layout.pipeline_layout not in (None, EVEN, BEHIND_FIRST, BY_LAYERS):
        yield f"stages {layout.pipeline_layout}"
    if layout.offload != "none":
        yield f"{OFFLOADED[layout.offload]} {OFFLOADED_TO[layout.offload_target]}"
    if layout.activation_offload:
        of = f" of {listed(layout.offload_modules)}" if layout.offload_modules else ""
        if layout.offload_layers is not None:
            of = f" of {counted(layout.offload_layers, 'layer')}"
        yield f"activations{of} offloaded to host memory"
    if layout.fused_cross_entropy:
        yield "fused loss"


def _in_time(question: TrainingQuestion, plan: TrainingPlan) -> str:
    """Return a sentence on whether the run keeps its deadline; nothing where none was asked for."""
    deadline, alone, expected = question.deadline_seconds, plan.run.seconds, plan.run.expected_seconds
    if question.objective != "deadline" or deadline is None or alone is None or expected is None:
        return ""
    kept = "misses the deadline of {}" if alone > deadline else "meets the deadline of {}"
    if alone <= deadline < expected:
        kept = "meets the deadline of {} only if nothing fails"
    alone_text, expected_text, deadline_text = _told_apart(alone, expected, deadline)
    return (
        f" The run takes {alone_text}, or {expected_text} with the failures to expect: it {kept.format(deadline_text)}."
    )


def _told_apart(*times: float) -> list[str]:
    """Return times with as many digits as tell those that differ apart."""
    for digits in range(SIGNIFICANT_DIGITS, MOST_DIGITS):
        texts = [duration(seconds, digits) for seconds in times]
        if len(set(texts)) == len(set(times)):
            break
    return texts


def _version(release: Release, *, is_asked: bool) -> str:
    """Return which release is planned for, which others are planned like it, and whether a run of any is known."""
    first, last = release.alike
    alike = "" if first == last else f"; versions {first} to {last} are planned alike"
    unknown = "" if release.has_runs else " No measured run of it is on record, so the memory's bounds are wider."
    asked = "" if is_asked else " Set framework_version where yours is another."
    return f"The plan is for {release.program} {release.version}{alike}.{unknown}{asked}"


def _memory(told: Told) -> Iterator[str]:
    profile, job = told.job.profile, told.job
    if profile.release is not None:
        yield _version(profile.release, is_asked=told.question.framework_version is not None)
    bounds = f"{profile.band.low:.2f} to {profile.band.high:.2f} times the estimate"
    yield (
        f"Memory follows the profile {profile.name!r} ({profile.title}). The peak may be {bounds}. "
        f"{profile.band.reason}"
    )
    sizes = plan_sizes(told.layout, parameters=job.model.parameters, sequence_length=job.sequence_length)
    nearest = nearest_note(told.layout, method=job.method, sizes=sizes)
    if nearest is not None:
        yield nearest
    yield "host_bytes is the host memory per GPU."
    yield from host_notes(told.plan, told.question.hardware)


def _time(told: Told) -> Iterator[str]:
    efficiency = told.efficiency
    low, high = efficiency.band(experts=bool(told.question.model.experts_per_token))
    yield (
        f"{efficiency.provenance} A step may take {low:.2f} to {high:.2f} times the estimate; "
        f"{efficiency.common.coverage:.0%} of runs are expected to. {efficiency.stack.band_reason}"
    )
    yield from untimed_notes(told.question.hardware, efficiency, experts=bool(told.question.model.experts_per_token))
    if told.question.objective == "cost" and told.question.hardware.usd_per_gpu_hour is None:
        yield "No usd_per_gpu_hour is given, so that layouts are compared in GPU time, as at any one price."
    yield from risks(told.layout, told.plan.step, told.plan.memory, told.question.hardware, efficiency)
    yield "TFLOP/s and utilization count attention as causal and leave recomputation out."
    yield from _unmeasured_utilization(told)
    yield from _overlap(told)
    yield from _attention(told)


def _ties(told: Told) -> Iterator[str]:
    yield from tie_notes(told.question, told.plan, told.alternatives)


def _overlap(told: Told) -> Iterator[str]:
    """Yield which traffic hides behind computation, how much of it, and what that costs."""
    stack, job, layout = told.efficiency.stack, told.job, told.layout
    pairs = layout.overlap is not None and layout.overlap.expert_parallel
    parts = {
        "data-parallel traffic": stack.data_overlap_fraction if job.overlap.gradients else 0.0,
        "tensor-parallel traffic under sequence parallelism": stack.tensor_overlap_fraction
        if job.overlap.hides_tensor_parallel
        else 0.0,
        "the exchange with experts": 0.0 if pairs else stack.expert_overlap_fraction,
    }
    hidden = [f"{fraction:.0%} of {name}" for name, fraction in parts.items() if fraction > 0]
    if pairs:
        yield (
            "The exchange with experts runs beside another micro-batch's computation, which loses "
            f"{stack.expert_overlap_cost_fraction:.0%} of that time to the kernels that send; passes without a pair "
            "hide nothing. More memory is reserved for the second stream than is counted."
        )
    if hidden:
        yield f"Up to {listed(hidden)} can overlap compute; no other traffic does."
    elif not pairs:
        yield "No traffic overlaps compute."
    asked = told.question.layout.overlap
    if asked is not None and asked.parameters is False and layout.zero_stage > 0:
        yield "The gathering of updated parameters overlaps nothing."
    if job.overlap.tensor_parallel and not stack.measured_tensor_overlap:
        yield (
            f"No timed run of {job.profile.name} that hides tensor-parallel traffic was fitted: it is assumed to hide "
            "as much as of the stacks whose runs were. What its buffers hold is not counted."
        )


def _unmeasured_utilization(told: Told) -> Iterator[str]:
    """Yield that nobody measured what the plan claims, where the best of the card's public runs reached less."""
    claimed = told.plan.step.model_flops_utilization
    highest = highest_utilization(told.question.hardware.gpu.id, told.job)
    if highest is not None and claimed > highest.fraction:
        yield (
            f"A utilization of {claimed:.1%} is more than anyone measured of such models on this GPU in "
            f"this precision: the highest public one is {highest.fraction:.1%}, {highest.run}. The step may well take "
            "longer."
        )


def _attention(told: Told) -> Iterator[str]:
    """Yield the attention's kernels, and heads that they pad; nothing of a model without attention.

    Source: pytorch, aten/src/ATen/native/transformers/attention.cpp (`pad_last_dim<8>`).
    """
    blocks = told.question.model.layers
    widths = {op.key_dim for block in blocks for op in block.operations if op.kind is OperationKind.ATTENTION}
    if not widths:
        return
    if told.question.attention == "flash" and not has_bf16(told.question.hardware.gpu):
        yield (
            "Attention runs on torch's memory-efficient kernels, which keep no scores either: flash kernels need "
            "compute capability 8.0."
        )
    else:
        yield f"Attention runs on {told.question.attention} kernels."
    odd = [f"{width:,}" for width in sorted(widths) if width % FLASH_HEAD_MULTIPLE]
    if told.question.attention == "flash" and odd:
        yield (
            f"Flash kernels pad heads of {listed(odd)} features to the next multiple of {FLASH_HEAD_MULTIPLE}; the "
            "padding is not counted."
        )


def _fused_by_others(told: Told) -> Iterator[str]:
    """Yield that the program does not fuse the loss of such models by itself, where that is asked for."""
    model_type, can = told.question.model.model_type, told.job.profile.can
    if told.layout.fused_cross_entropy and not can.fuses_loss_of(model_type):
        yield (
            f"What {told.job.profile.name} fuses losses with has no patch for {model_type!r}: the plan takes it that "
            "another fused cross-entropy is put in, without which the logits stand whole."
        )


def _chosen_by_search(told: Told) -> Iterator[str]:
    """Yield what the search switched on though nobody asked for it."""
    layout, named = told.layout, named_fields(told.question)
    switched = {
        "sequence_parallel": layout.sequence_parallel,
        "virtual_pipeline": layout.virtual_pipeline > 1 and layout.virtual_pipeline,
        "pipeline_layout": layout.pipeline_layout not in (None, _plain_stages(told)) and layout.pipeline_layout,
        "overlap/expert_parallel": layout.overlap is not None and layout.overlap.expert_parallel,
        "shard_group": layout.zero_stage > 0 and layout.shard_group != layout.data_parallel and layout.shard_group,
        "context_all_to_all": layout.context_all_to_all > 1 and layout.context_all_to_all,
        "secondary_shard_group": layout.secondary_shard_group > 1 and layout.secondary_shard_group,
        "recompute": layout.recompute != "none" and recomputation(layout),
        "fused_cross_entropy": layout.fused_cross_entropy,
    }
    chosen = [
        f"{field.replace('/', '.')} {str(value).lower() if isinstance(value, bool) else value}"
        for field, value in switched.items()
        if value is not False and field not in named
    ]
    if chosen:
        yield f"The search chose what the request left open: {', '.join(chosen)}."
    if layout.activation_offload:
        by = (
            ""
            if "activation_offload" in named
            else " The search chose this; set activation_offload to false to rule it out."
        )
        yield f"Saved activations wait in host memory between the forward and the backward pass.{by}"
    if layout.offload_layers is not None:
        yield (
            f"The first {counted(layout.offload_layers, 'layer')} send every tensor they keep, as Transformer Engine "
            "does from 2.10 on without NVTE_CPU_OFFLOAD_V1; before, it sends the inputs of its own modules alone, and "
            "more stays."
        )
    if told.waiting_bytes:
        yield (
            "Their copies take longer than the forward pass that hides them, and no pass waits for them: up to "
            f"{told.waiting_bytes / GIB:,.1f} GiB more per GPU wait for theirs, which the peak does not count."
        )
    if layout.offload != "none":
        by = "" if "offload" in named else CHOSEN.format("offload to none")
        what, where = OFFLOADED[layout.offload], OFFLOADED_TO[layout.offload_target]
        yield f"{what[0].upper()}{what[1:]} are kept {where}.{by}"
    elif told.question.hardware.gpus.is_free and told.question.objective == "throughput" and "offload" not in named:
        yield (
            "No number of GPUs is named, so the plan takes the fewest that need no offload; objective fewest_gpus "
            "offloads where fewer will do then."
        )


def _plain_stages(told: Told) -> str:
    """Return how the stack divides a pipeline unless it is told otherwise."""
    return own_way(told.job.profile.can.pipeline_layouts)


def _layers(told: Told) -> Iterator[str]:
    job, question = told.job, told.question
    unknown = traits_of(question.model) & set(job.profile.models.unknown)
    if unknown:
        yield (
            f"Whether {job.profile.name} has code for {in_words(unknown)} is not on record; the plan assumes that it "
            "does, or that you add it."
        )
    if any(weight.experts > 1 for part in job.layers for weight in part.block.weights):
        if told.layout.expert_parallel == 1:
            yield "Every rank has all experts, which are assumed to be equally busy."
        elif question.expert_imbalance == 1.0:
            yield "Experts are assumed to be equally busy; set expert_imbalance where the busiest rank has more tokens."
        else:
            busy = f"{figure(question.expert_imbalance)} times the mean rank's tokens"
            yield f"The busiest expert-parallel rank has {busy}."
    if any(block_scan(part.block) is not None for part in job.layers):
        yield (
            "Recurrent layers run on the kernels of mamba_ssm, causal_conv1d and flash-linear-attention; no measured "
            "run of such a model is on record."
        )
    if job.multi_token is not None:
        yield _further_tokens(job, job.multi_token)
    if job.profile.gradient_note and question.gradient_dtype is None and job.precision.compute_bytes < FP32_BYTES:
        yield job.profile.gradient_note
    if job.low_precision is not None:
        yield (
            f"What products in {job.precision.computed} save for backward follows Transformer Engine's source; no "
            "measured run is on record."
        )
        if job.precision.compute_format != "fp8":
            yield f"No run in {job.precision.computed} was timed: it is taken to reach what fp8 does of the GPU's peak."
        if job.low_precision_weights:
            yield f"Matrices lie in {job.precision.computed} alone; with low_precision_weights false in 16 bits too."
        if job.precision.name == FP8_MIXED and any(
            name in told.layout.recompute_modules for name in NOT_WITH_DELAYED_SCALING
        ):
            yield (
                "Delayed scaling in fp8 does not recompute norms and experts' activations: products are scaled by "
                "their present values instead, which needs Transformer Engine 2.6."
            )
    if LAYER_NORM in told.layout.recompute_modules and job.profile.kernels.transformer_engine:
        yield from _norms(job)
    positions = question.model.max_position_embeddings
    if positions is not None and question.sequence_length > positions:
        yield (
            f"The sequence has {question.sequence_length:,} tokens; the model was configured for {positions:,} "
            "positions."
        )


def _further_tokens(job: Job, joint: BlockWeights) -> str:
    """Return what layers for multi-token prediction add, and who counts it."""
    layers = job.model.multi_token_layers
    own = next(part for part in job.layers if job.model.num_layers in part.block.layers)
    added = layers * (own.block.elements + joint.block.elements)
    return (
        f"Multi-token prediction adds {counted(layers, 'layer')} with {added:,} parameters in all, and another product "
        f"with the head for each. Memory, time and TFLOP/s count them, as {job.profile.name} counts its own TFLOP/s. "
        "Their stage holds the embedding's table again where it is not the first."
    )


def _norms(job: Job) -> Iterator[str]:
    """Say which norms are not recomputed although they are asked for."""
    are_apart = [has_norm_apart(part.block) for part in job.layers]
    if not all(are_apart):
        of = "its dense layers" if any(are_apart) else "this model's layers"
        yield (
            f"Recomputing layernorm saves nothing in {of}: {job.profile.name} has each norm in one module with the "
            "matrix behind it, which it recomputes as part of mlp or not at all."
        )


def _elsewhere(told: Told) -> Iterator[str]:
    """Yield what is said of memory off the GPU and of what rides along with the model that learns."""
    job = told.job
    if job.offload_target == "nvme" and told.question.hardware.nvme_bytes_per_second is None:
        rate = told.efficiency.common.nvme_bytes_per_second / GIGA
        yield f"NVMe drives are assumed to give each GPU {rate:.1f} GB/s, a DGX-2's published share."
    if told.layout.offload != "none" and job.profile.host.note:
        yield job.profile.host.note
    if told.layout.offload != "none" and told.layout.offload_target == "nvme":
        yield job.profile.host.nvme_note
    if job.companions:
        yield (
            "Companion models run forward after the policy; gathering their weights overlaps compute. Generating "
            "samples is not part of the step."
        )
        if job.method != "full" and any(companion.role == "reference" for companion in job.companions):
            yield (
                "The reference is a model of its own, in memory beside the policy. Without one TRL takes the policy "
                "with its adapters switched off: leave the companion out for that."
            )
    if job.method != "full":
        yield frozen_note(job)
        beside = unadapted_note(job.model, job.lora)
        if beside is not None:
            yield beside
        stacked = stacked_experts_note(job)
        if stacked is not None:
            yield stacked
        merged = job.model.parameters * job.precision.compute_bytes / GIB
        yield f"Merged into the base, the adapters add nothing to serve: {merged:.1f} GiB of weights."
    if job.gradient_compression != "none":
        yield "Compressing gradients is assumed to cost no time; its effect on convergence is not planned."
    if job.optimizer.paged_to_host:
        yield "Paged optimizer states are counted in host memory, where memory pressure moves them."


def _failures(told: Told) -> Iterator[str]:
    yield from failure_notes(told.question.resilience, told.plan.run)


def _nodes(told: Told) -> Iterator[str]:
    """Yield how the GPUs stand in nodes, where there are several: a slow network between them decides much."""
    hardware, gpus = told.question.hardware, told.layout.gpus
    nodes = -(-gpus // hardware.gpus_per_node)
    if nodes > 1:
        rate = hardware.gpu.nic_bytes_per_second / GIGA
        yield (
            f"The {gpus:,} GPUs are {nodes:,} nodes of {hardware.gpus_per_node}, with {figure(rate)} GB/s per GPU "
            "between nodes; set hardware.gpus_per_node, hardware.cluster or hardware.override where yours differ."
        )


def _model_and_gpu(told: Told) -> Iterator[str]:
    yield from told.job.model.assumptions
    yield from told.question.hardware.gpu.assumptions


NOTES: tuple[Callable[[Told], Iterator[str]], ...] = (
    _memory,
    _time,
    _ties,
    _fused_by_others,
    _chosen_by_search,
    _layers,
    _elsewhere,
    _failures,
    _nodes,
    _model_and_gpu,
)
