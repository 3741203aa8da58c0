"""What hiding traffic behind computation needs beside a stack that can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import FULL, BoolArray, Candidates, any_of, recomputes_module
from plimsoll.planners.layouts.experts import expert_counts, expert_tensor_ranks
from plimsoll.planners.search.rules.rule import NOWHERE, Breach, Case, Rule

# NVIDIA/Megatron-LM core_v0.16.1, core/transformer/transformer_config.py, __post_init__
MOST_MULTI_TOKEN_LAYERS = 1
EVERYWHERE: BoolArray = np.ones(1, dtype=bool)


def _of_experts(broken: Callable[[Candidates, Job], BoolArray], words: Callable[[Case, Job], str]) -> Breach:
    """Return a breach of layouts that hide their exchange with experts."""

    def where(layouts: Candidates, job: Job) -> BoolArray:
        if not any_of(layouts.expert_overlap):
            return NOWHERE
        hidden: BoolArray = layouts.expert_overlap & broken(layouts, job)
        return hidden

    return Breach(where=where, words=words)


def _has_no_exchange(layouts: Candidates, _job: Job) -> BoolArray:
    alone: BoolArray = layouts.expert_parallel == 1
    return alone


def _has_plain_pipeline(layouts: Candidates, _job: Job) -> BoolArray:
    plain: BoolArray = (layouts.pipeline_parallel > 1) & (layouts.virtual_pipeline == 1)
    return plain


def _recomputes_whole_layers(layouts: Candidates, job: Job) -> BoolArray:
    """Return where layers, or their mixtures, are computed again as one: the schedule goes through their parts."""
    whole: BoolArray = (layouts.recompute == FULL) | recomputes_module(layouts, job, MIXTURE)
    return whole


def _computes_in_fp32(_layouts: Candidates, job: Job) -> BoolArray:
    return EVERYWHERE if job.precision.compute_bytes == FP32_BYTES else NOWHERE


def _holds_one_expert(layouts: Candidates, job: Job) -> BoolArray:
    """Return where each rank has a single expert, whose tokens are freed as they have been worked on.

    Nothing sorts them into a copy (core_v0.16.1, core/models/gpt/fine_grained_callables.py, `should_free_input`;
    transformer/moe/token_dispatcher.py, `dispatch_postprocess`), and the expert's gradient needs them.
    """
    counts = expert_counts(job.model)
    are_cut = expert_tensor_ranks(layouts, job) > 1
    single: BoolArray = np.isin(layouts.expert_parallel, list(counts)) & ~are_cut
    return single


def _one_expert(case: Case, job: Job) -> str:
    return (
        f"{job.profile.name} runs overlap of expert_parallel with several experts on each rank only: of the one that "
        f"expert_parallel {case.layout.expert_parallel} leaves, it frees tokens that are still needed."
    )


def _predicts_too_much(layouts: Candidates, job: Job) -> BoolArray:
    """Return where layers for multi-token prediction are on the only stage, or are more than the schedule takes."""
    further = job.model.multi_token_layers
    if not further:
        return NOWHERE
    alone: BoolArray = (layouts.pipeline_parallel == 1) | np.bool_(further > MOST_MULTI_TOKEN_LAYERS)
    return alone


def _too_many_tokens(_case: Case, job: Job) -> str:
    return (
        f"{job.profile.name} runs overlap of expert_parallel with no more than {MOST_MULTI_TOKEN_LAYERS} layer for "
        "multi-token prediction, in a pipeline."
    )


def _no_exchange(_case: Case, _job: Job) -> str:
    return "overlap of expert_parallel needs expert_parallel above 1: there is no exchange to hide."


def _plain_pipeline(case: Case, _job: Job) -> str:
    return (
        f"overlap of expert_parallel in a pipeline of {case.layout.pipeline_parallel} stages needs virtual_pipeline "
        "above 1: only interleaved stages have forward and backward passes to pair."
    )


def _whole_layers(case: Case, job: Job) -> str:
    what = "full" if case.layout.recompute == "full" else "of the module moe"
    return f"{job.profile.name} goes through layers part by part for overlap of expert_parallel: no recompute {what}."


def _in_fp32(_case: Case, job: Job) -> str:
    return f"With {job.profile.name}, overlap of expert_parallel needs bf16 or fp16."


# NVIDIA/Megatron-LM core_v0.16.1, core/transformer/transformer_config.py (__post_init__); the module `moe`:
# docs/user-guide/features/moe_a2a_overlap.md.
EXPERT_OVERLAP_HAS_PAIRS = Rule(
    name="expert_overlap_has_pairs",
    field="overlap/expert_parallel",
    reads=("expert_parallel", "pipeline_parallel", "virtual_pipeline", "recompute"),
    reason=(
        "overlap of expert_parallel needs expert_parallel above 1 and several experts on each rank, virtual_pipeline "
        "above 1 in a pipeline, 16 bits, no recompute of whole layers, and one layer at the most for multi-token "
        "prediction, in a pipeline"
    ),
    breaches=(
        _of_experts(_has_no_exchange, _no_exchange),
        _of_experts(_has_plain_pipeline, _plain_pipeline),
        _of_experts(_recomputes_whole_layers, _whole_layers),
        _of_experts(_computes_in_fp32, _in_fp32),
        _of_experts(_holds_one_expert, _one_expert),
        _of_experts(_predicts_too_much, _too_many_tokens),
    ),
)


def _leaves_sequence_whole(layouts: Candidates, job: Job) -> BoolArray:
    """Return where tensor-parallel traffic comes in one piece although it is to be hidden.

    Source: NVIDIA/Megatron-LM, training/arguments.py: --tp-comm-overlap needs --sequence-parallel.
    """
    if not job.overlap.tensor_parallel:
        return NOWHERE
    whole: BoolArray = (layouts.tensor_parallel > 1) & ~layouts.sequence_parallel
    return whole


def _lacks_kernels(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a stack hides tensor-parallel traffic with other kernels only.

    Source: pytorch/torchtitan 0.2.2, distributed/tensor_parallel.py, maybe_enable_async_tp: needs a compiled model.
    """
    kernels = job.profile.overlap.tensor_parallel_kernels
    if not job.overlap.tensor_parallel or not kernels or job.kernels in kernels:
        return NOWHERE
    lacking: BoolArray = layouts.tensor_parallel > 1
    return lacking


def _whole_sequence(case: Case, _job: Job) -> str:
    return f"overlap of tensor_parallel {case.layout.tensor_parallel} needs sequence_parallel."


def _other_kernels(_case: Case, job: Job) -> str:
    kernels = " or ".join(job.profile.overlap.tensor_parallel_kernels)
    return f"With {job.profile.name}, overlap of tensor_parallel needs training.kernels: {kernels}."


TENSOR_OVERLAP_HAS_PIECES = Rule(
    name="tensor_overlap_has_pieces",
    field="overlap/tensor_parallel",
    reads=("tensor_parallel",),
    reason="overlap of tensor_parallel needs sequence_parallel, and of some frameworks compiled kernels",
    breaches=(
        Breach(where=_leaves_sequence_whole, words=_whole_sequence),
        Breach(where=_lacks_kernels, words=_other_kernels),
    ),
)


def _hides_parameters_alone(_layouts: Candidates, job: Job) -> BoolArray:
    """Return where the gathering of parameters is to hide and the reduction of gradients is not."""
    needs = job.profile.overlap.parameters_with_gradients
    return EVERYWHERE if needs and job.overlap.parameters and not job.overlap.gradients else NOWHERE


def _parameters_alone(_case: Case, job: Job) -> str:
    return f"{job.profile.name} hides the gathering of parameters only where it hides the reduction of gradients."


# NVIDIA/Megatron-LM core_v0.16.1, training/arguments.py: --overlap-param-gather needs --overlap-grad-reduce.
PARAMETERS_HIDE_WITH_GRADIENTS = Rule(
    name="parameters_hide_with_gradients",
    field="overlap/parameters",
    reads=("zero_stage",),
    reason="overlap of parameters needs overlap of gradients",
    breaches=(Breach(where=_hides_parameters_alone, words=_parameters_alone),),
)
