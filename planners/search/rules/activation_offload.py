"""What activations on the host need where a stack sends them part by part, or layer by layer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plimsoll.planners.jobs.job import Job
from plimsoll.planners.jobs.offload_modules import OF_EXPERTS
from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import FULL, NONE, SELECTIVE, BoolArray, Candidates, of_module_set
from plimsoll.planners.memory.eager_attention import EAGER
from plimsoll.planners.search.rules.rule import NOWHERE, Breach, Case, Rule
from plimsoll.planners.stacks.records import BY_MODULES

EVERYWHERE: BoolArray = np.ones(1, dtype=bool)
FP8 = "fp8"


def _by_parts(broken: Callable[[Candidates, Job], BoolArray], words: Callable[[Case, Job], str]) -> Breach:
    """Return a breach of layouts whose activations go to the host part by part."""

    def where(layouts: Candidates, job: Job) -> BoolArray:
        if (
            job.offload_layers is not None
            or job.profile.can.activation_offload != BY_MODULES
            or not layouts.activation_offload.any()
        ):
            return NOWHERE
        found = broken(layouts, job)
        return NOWHERE if found is NOWHERE else layouts.activation_offload & found

    return Breach(where=where, words=words)


def _recomputes_whole_layers(layouts: Candidates, _job: Job) -> BoolArray:
    """Return where layers are computed again as one, which frees the inputs that their second runs begin with.

    Source: core_v0.16.1, core/transformer/transformer_layer.py, `forced_released_tensors` of attn_norm and mlp_norm;
    docs/user-guide/features/fine_grained_activation_offloading.md names recomputation by parts alone.
    """
    whole: BoolArray = layouts.recompute == FULL
    return whole


def _whole_layers(_case: Case, job: Job) -> str:
    return (
        f"{job.profile.name} sends activations to the host part by part, and a layer that is recomputed as one keeps "
        "none: with activation_offload, recompute must be none, or of modules."
    )


def _recomputes_mixtures(layouts: Candidates, job: Job) -> BoolArray:
    """Return where parts of experts that are computed again as one are to be sent.

    Source: NVIDIA/Megatron-LM d98e8a6, core/transformer/transformer_config.py ("Cannot offload ... while recomputing
    the entire MoE layer").
    """
    is_broken = [MIXTURE in again and bool({*OF_EXPERTS} & {*sent}) for again, sent in _sets(job)]
    if not any(is_broken):
        return NOWHERE
    again: BoolArray = (layouts.recompute == SELECTIVE) & of_module_set(layouts, is_broken)
    return again


def _of_mixtures(_case: Case, job: Job) -> str:
    sent = [name for name in OF_EXPERTS if any(MIXTURE in again and name in sent for again, sent in _sets(job))]
    return (
        f"{job.profile.name} offloads no {' or '.join(sent)} of experts that are recomputed whole. Recompute moe_act "
        "in place of moe, or leave them out of activation_offload."
    )


def _multiplies_in_fp8(_layouts: Candidates, job: Job) -> BoolArray:
    return EVERYWHERE if job.precision.compute_format == FP8 else NOWHERE


def _in_fp8(_case: Case, job: Job) -> str:
    return f"{job.profile.name}'s activation_offload is planned in 16 and 32 bits, not with products in fp8."


def _has_scores(_layouts: Candidates, job: Job) -> BoolArray:
    return EVERYWHERE if job.attention == EAGER else NOWHERE


def _with_scores(_case: Case, job: Job) -> str:
    return f"{job.profile.name}'s activation_offload is planned with attention flash, not eager."


def _has_no_parts(layouts: Candidates, job: Job) -> BoolArray:
    has_none = [not sent for _, sent in _sets(job)]
    return of_module_set(layouts, has_none) if any(has_none) else NOWHERE


def _sets(job: Job) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return each of the job's sets of recomputed modules, and the parts that go to the host beside it."""
    return [(again, job.offload_modules(number)) for number, again in enumerate(job.module_sets)]


def _no_parts(_case: Case, job: Job) -> str:
    return f"No layer of {job.model.name} has a part whose activations {job.profile.name} would gain by offloading."


ACTIVATIONS_GO_BY_PARTS = Rule(
    name="activations_go_by_parts",
    field="activation_offload",
    reads=("recompute", "activation_offload"),
    reason=(
        "activations that go to the host part by part need flash, 16 or 32 bits, and no recompute of whole layers or "
        "mixtures"
    ),
    breaches=(
        _by_parts(_has_no_parts, _no_parts),
        _by_parts(_recomputes_whole_layers, _whole_layers),
        _by_parts(_recomputes_mixtures, _of_mixtures),
        _by_parts(_multiplies_in_fp8, _in_fp8),
        _by_parts(_has_scores, _with_scores),
    ),
)


def _recompute_too_little(layouts: Candidates, job: Job) -> BoolArray:
    """Return where a stack that offloads only what it also recomputes would not recompute every layer."""
    if not job.profile.can.activation_offload_recomputes or not layouts.activation_offload.any():
        return NOWHERE
    is_part = layouts.recompute != FULL if job.recompute_every is None else EVERYWHERE
    too_little: BoolArray = layouts.activation_offload & is_part
    return too_little


def _too_little(_case: Case, job: Job) -> str:
    return f"{job.profile.name} offloads activations only where every layer is recomputed: recompute must be full."


ACTIVATIONS_GO_WITH_RECOMPUTE = Rule(
    name="activations_go_with_recompute",
    field="activation_offload",
    reads=("recompute", "activation_offload"),
    reason="activations go to the host only where every layer is recomputed",
    breaches=(Breach(where=_recompute_too_little, words=_too_little),),
)


def _by_layers(broken: Callable[[Candidates, Job], BoolArray], words: Callable[[Case, Job], str]) -> Breach:
    """Return a breach of layouts whose first layers send all they keep to the host.

    Source: Megatron-Core 0.16.1, transformer/transformer_config.py, __post_init__ ("CPU offloading").
    """

    def where(layouts: Candidates, job: Job) -> BoolArray:
        if job.offload_layers is None or not layouts.activation_offload.any():
            return NOWHERE
        found = broken(layouts, job)
        return NOWHERE if found is NOWHERE else layouts.activation_offload & found

    return Breach(where=where, words=words)


def _are_staged(layouts: Candidates, _job: Job) -> BoolArray:
    staged: BoolArray = layouts.pipeline_parallel > 1
    return staged


def _staged(case: Case, job: Job) -> str:
    return (
        f"{job.profile.name} offloads activations of whole layers without a pipeline alone, and pipeline_parallel is "
        f"{case.layout.pipeline_parallel}. Name modules in place of layers."
    )


def _recompute_any(layouts: Candidates, _job: Job) -> BoolArray:
    again: BoolArray = layouts.recompute != NONE
    return again


def _any_again(_case: Case, job: Job) -> str:
    return (
        f"{job.profile.name} offloads activations of whole layers without recomputation alone: recompute must be none."
    )


def _predicts_or_pairs(layouts: Candidates, job: Job) -> BoolArray:
    return EVERYWHERE if job.model.multi_token_layers else layouts.expert_overlap


def _beside_others(_case: Case, job: Job) -> str:
    return (
        f"{job.profile.name}'s offload of whole layers is not planned with multi-token prediction or "
        "overlap.expert_parallel."
    )


LAYERS_GO_WHOLE = Rule(
    name="layers_go_whole",
    field="activation_offload",
    reads=("pipeline_parallel", "recompute", "activation_offload"),
    reason="activations that go to the host layer by layer need flash, 16 or 32 bits, no pipeline and no recompute",
    breaches=(
        _by_layers(_are_staged, _staged),
        _by_layers(_recompute_any, _any_again),
        _by_layers(_predicts_or_pairs, _beside_others),
        _by_layers(_multiplies_in_fp8, _in_fp8),
        _by_layers(_has_scores, _with_scores),
    ),
)
