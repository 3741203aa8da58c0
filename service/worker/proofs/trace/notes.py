"""What stands in for what in a training step that is traced or run, and what is left out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from plimsoll.service.worker.jobs.job import FP8_MIXED, TraceJob
from plimsoll.service.worker.jobs.stack import Stack
from plimsoll.service.worker.jobs.states import has_own_experts, is_fully_sharded, runs_own_code
from plimsoll.service.worker.training.parallel.pipeline import schedule_note
from plimsoll.service.worker.training.step import MOST_TRACED_MICRO_BATCHES


def _always(_job: TraceJob, _stack: Stack) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence, and the jobs that it holds of; one `of_traces` does not hold of a run on a device.

    One `of_any_model` holds too where a trace runs the stack's own model, and not transformers'. One `of_stand_ins`
    does not hold where the stack's own code trains transformers' model.
    """

    words: str | Callable[[TraceJob, Stack], str]
    holds: Callable[[TraceJob, Stack], bool] = _always
    of_traces: bool = False
    of_any_model: bool = False
    of_stand_ins: bool = False

    def sentence(self, job: TraceJob, stack: Stack) -> str:
        """Return the note on a job."""
        return self.words if isinstance(self.words, str) else self.words(job, stack)


def _reduces_at_once(job: TraceJob, stack: Stack) -> bool:
    return job.accumulation_steps > 1 and is_fully_sharded(job, stack) and job.pipeline_parallel == 1


def _has_buckets(job: TraceJob, stack: Stack) -> bool:
    return not is_fully_sharded(job, stack) and job.data_parallel > 1 and stack.has_gradient_buckets


def _is_wrapped(job: TraceJob, stack: Stack) -> bool:
    return stack.runs_own_wrapper(job)


NOTES = (
    Note(
        words="Not in the trace: the CUDA context, cuBLAS workspaces, NCCL's communicators and memory inside kernels.",
        of_traces=True,
        of_any_model=True,
    ),
    Note(
        words="reserved_bytes replays the allocations through a model of torch's caching allocator.",
        of_traces=True,
        of_any_model=True,
    ),
    Note(words="Gradient clipping and checkpoint writing are not run.", of_any_model=True),
    Note(
        words="Steps are traced until one leaves the memory as it found it: the second, and a third at most.",
        of_traces=True,
        of_any_model=True,
    ),
    Note(
        holds=lambda job, stack: stack.runs_own_model(job),
        words=lambda _job, stack: stack.notes.model,
        of_traces=True,
        of_any_model=True,
    ),
    Note(
        holds=lambda job, stack: stack.runs_own_model(job) and has_own_experts(job, stack),
        words="Every expert gets as many tokens as another, as the plan has it.",
        of_traces=True,
        of_any_model=True,
    ),
    Note(
        holds=lambda job, stack: not runs_own_code(job, stack),
        words=lambda job, _stack: (
            f"transformers' model and torch's sharding stand in for {job.framework}'s own code, which did not run."
        ),
        of_stand_ins=True,
    ),
    Note(holds=lambda _job, stack: stack.has_own_engine, words=lambda _job, stack: stack.notes.engine),
    Note(holds=_is_wrapped, words=lambda _job, stack: stack.notes.engine, of_traces=True),
    Note(
        holds=lambda job, _stack: job.trains_adapters,
        words="Adapters are our own layers with peft's tensors: an fp32 pair beside each targeted matrix.",
    ),
    Note(
        holds=lambda job, _stack: job.method == "qlora",
        words="NF4 weights are held by shape; their scales stand on every rank, as bitsandbytes' do.",
    ),
    Note(holds=lambda _job, stack: stack.has_fused_kernels, words=lambda _job, stack: stack.notes.kernels),
    Note(
        holds=lambda _job, stack: stack.has_liger_kernels,
        words="Norms, gated activations, rotations and the loss allocate, keep and write over what Liger's do.",
    ),
    Note(
        holds=lambda job, _stack: job.precision == FP8_MIXED,
        words="Products in fp8 are torchao's Float8Linear, one scale a tensor, gathered in 16 bits, not compiled.",
    ),
    Note(
        holds=lambda job, _stack: job.tracing.has_latent_attention,
        words="Latent attention is torch's memory-efficient kernel: flash takes no values of other lengths.",
    ),
    Note(
        holds=lambda job, _stack: bool(job.tracing.gated_delta_module),
        words="For the kernels of flash-linear-attention and causal-conv1d shapes stand in, after their code.",
    ),
    Note(
        holds=lambda job, _stack: bool(job.tracing.state_space_module),
        words="For Mamba-2's kernel, mamba_ssm's on an H100, shapes stand in, after its code.",
    ),
    Note(holds=has_own_experts, words=lambda _job, stack: stack.notes.experts),
    Note(
        holds=lambda job, _stack: job.context_parallel > 1,
        words="Attention is torch's ring: keys and values gathered a layer at a time, halves balanced.",
        of_any_model=True,
    ),
    Note(
        holds=lambda job, _stack: job.pipeline_parallel > 1,
        words=lambda job, _stack: schedule_note(job),
        of_any_model=True,
    ),
    Note(
        holds=lambda job, _stack: job.pipeline_parallel == 1 and job.accumulation_steps > MOST_TRACED_MICRO_BATCHES,
        words=lambda job, _stack: (
            f"{MOST_TRACED_MICRO_BATCHES} of {job.accumulation_steps} micro-batches of each step were traced; "
            "the later ones find the memory as the second did."
        ),
        of_any_model=True,
    ),
    Note(holds=_reduces_at_once, words="Gradients are reduced after every micro-batch, so that none is kept whole."),
    Note(
        holds=_has_buckets,
        words="DistributedDataParallel's gradient buckets are allocated by its own sizes, and not filled.",
        of_stand_ins=True,
    ),
    Note(
        holds=lambda job, _stack: job.reference is not None,
        words=(
            "TRL's own DPOTrainer made the loss, beside a reference of its own that TRL prepared. Every token counts "
            "as one of a completion; its Triton kernels, which write in place, were not run. Metrics read zeros."
        ),
        of_traces=True,
    ),
    Note(
        holds=lambda job, _stack: job.evaluation is not None,
        words=(
            "After each step transformers' own evaluation_loop ran; what it moves to the host was let go of, and "
            "batches are of one length on every rank."
        ),
        of_traces=True,
    ),
    Note(
        holds=lambda job, _stack: job.fused_cross_entropy,
        words="The fused cross-entropy is our own after the Liger kernel's algorithm.",
    ),
)


def step_notes(job: TraceJob, stack: Stack, *, on_device: bool) -> list[str]:
    """Return what a job's step leaves out and what stands in for what."""
    is_own = stack.runs_own_model(job) and not on_device
    has_own_part = stack.has_own_engine or (stack.runs_own_wrapper(job) and not on_device)
    notes = (
        note
        for note in NOTES
        if note.holds(job, stack)
        and not (on_device and note.of_traces)
        and (note.of_any_model or not is_own)
        and not (note.of_stand_ins and has_own_part)
    )
    return [note.sentence(job, stack) for note in notes]


def traced_with(job: TraceJob, stack: Stack, *, on_device: bool) -> str:
    """Return which code ran: package versions, model class and how it was sharded."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    torch_version = torch.__version__.partition("+")[0]
    if stack.runs_own_model(job) and not on_device:
        return f"{stack.own_model} {version(stack.own_model)} under torch {torch_version}"
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[job.config["model_type"]]
    sharding = "FSDP2" if is_fully_sharded(job, stack) else "replicated parameters"
    if stack.runs_own_wrapper(job) and not on_device:
        wrapped = "FSDP2" if is_fully_sharded(job, stack) else "DistributedDataParallel"
        wrapper = f"{stack.own_wrapper} {version(stack.own_wrapper)}"
        sharding = f"{wrapped} by {wrapper}" if job.world_size > 1 else f"by {wrapper}"
    if stack.has_own_engine:
        engine = f"{stack.program} {version(stack.own_engine)}"
        sharding = f"and {engine}'s own engine, ZeRO stage {job.zero_stage}"
    tensor = " and DTensor tensor parallelism" if job.tensor_parallel > 1 else ""
    trainer = f", its loss by TRL {version(stack.own_trainer)}" if job.reference is not None else ""
    model = f"transformers {transformers.__version__} {model_class} under torch {torch_version}"
    return f"{model} {sharding}{tensor}{trainer}"
