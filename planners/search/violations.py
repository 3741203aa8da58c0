"""The rules that a layout breaks, each with its numbers and the field at fault.

`fixed.py` knows what contradicts itself in the degrees a client named, without
any search. Here stand the rules of `rules.py` put into words for layouts that
were formed: a rule is broken where every layout that could be formed breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.ground.figures import counted
from plimsoll.planners.jobs.job import ONE_FORWARD_ONE_BACKWARD, Job
from plimsoll.planners.layouts.candidates import OFFLOAD_TARGETS, RECOMPUTE_MODES, BoolArray, Candidates, IntArray
from plimsoll.planners.layouts.experts import expert_counts
from plimsoll.planners.layouts.stages import compute_weighted_stages
from plimsoll.planners.memory.shards import tensor_divisions, uneven_matrices
from plimsoll.planners.questions import TrainingQuestion
from plimsoll.planners.search.axes import candidate_grid, gpu_counts
from plimsoll.planners.search.rules import RULES, Rule

NO_EXPERTS = "This model has no experts; expert_parallel must be 1."
TRAINING_FIELDS = ("micro_batch_size", "recompute", "fused_cross_entropy", "activation_offload")
# Where the named degrees multiply to no number of GPUs there are, layouts are formed on these multiples of them.
MULTIPLES_OF_NAMED = (1, 2, 4, 8)
MOST_NAMED = 3  # kinds of matrices that one message lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule; `field` is the degree a client would change, empty where it is none in particular."""

    rule: str
    field: str
    detail: str

    @property
    def pointer(self) -> str:
        """Return where the field stands in a training request."""
        return request_pointer(self.field)


def request_pointer(field: str) -> str:
    """Return the JSON pointer of a field in a training request."""
    if field == "framework":
        return "/framework"
    part = "/training" if field in TRAINING_FIELDS else "/layout"
    return f"{part}/{field}" if field else part


def named_fields(question: TrainingQuestion) -> frozenset[str]:
    """Return the fields of layout and training that the client fixed."""
    request = question.layout
    names = {name for name in request.__dataclass_fields__ if getattr(request, name) is not None}
    return frozenset(names | {name for name in TRAINING_FIELDS if getattr(question, name) is not None})


def broken_rules(question: TrainingQuestion, jobs: Sequence[Job]) -> tuple[Violation, ...]:
    """Return the rules that every layout of the question breaks, in their order.

    Where no rule alone excludes everything, those that exclude anything are
    returned, each with how many of the layouts break it.
    """
    formed = [(job, _formed(question, job)) for job in jobs]
    formed = [(job, layouts) for job, layouts in formed if len(layouts)]
    if not formed:
        return ()
    counts = {rule.name: sum(_breaking(rule, job, layouts) for job, layouts in formed) for rule in RULES}
    total = sum(len(layouts) for _, layouts in formed)
    job, layouts = formed[0]
    broken = [rule for rule in RULES if counts[rule.name] == total]
    if broken:
        return tuple(_violation(rule, job, layouts, question) for rule in broken)
    return tuple(
        Violation(
            rule=rule.name,
            field=_field(rule, question),
            detail=f"{counts[rule.name]:,} of {total:,} possible layouts break this rule: {rule.reason}.",
        )
        for rule in RULES
        if counts[rule.name]
    )


def _formed(question: TrainingQuestion, job: Job) -> Candidates:
    """Return the layouts of the question, on numbers of GPUs that its degrees can multiply to."""
    count = question.hardware.gpus
    tried: list[IntArray] = [] if count.is_free else gpu_counts(question)
    request = question.layout
    degrees = (request.data_parallel, request.tensor_parallel, request.pipeline_parallel, request.context_parallel)
    named = int(np.prod([degree for degree in degrees if degree is not None], dtype=np.int64))
    for gpus in (*tried, named * np.array(MULTIPLES_OF_NAMED)):
        layouts = candidate_grid(question, job, gpus).every()
        if len(layouts):
            break
    return layouts


def _breaking(rule: Rule, job: Job, layouts: Candidates) -> int:
    obeyed: BoolArray = rule.obeyed(layouts, job)
    return int(np.count_nonzero(~obeyed))


def _violation(rule: Rule, job: Job, layouts: Candidates, question: TrainingQuestion) -> Violation:
    read, words = DETAILS[rule.name]
    values = {name: np.unique(getattr(layouts, name)) for name in read}
    # What one virtual stage breaks, more of them break too.
    values |= {name: values[name][:1] for name in ("virtual_pipeline",) if name in values}
    if all(some.size == 1 for some in values.values()):
        row = {name: int(some[0]) for name, some in values.items()}
        detail = words(row, job, layouts)
    else:
        detail = f"None of {len(layouts):,} possible layouts obeys this rule: {rule.reason}."
    return Violation(rule=rule.name, field=_field(rule, question), detail=detail)


def _field(rule: Rule, question: TrainingQuestion) -> str:
    """Return the field to point at: one the client named and the rule reads, the rule's own first."""
    named, (read, _) = named_fields(question), DETAILS[rule.name]
    return next((field for field in (rule.field, *read) if field in named), rule.field)


def _heads(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    tensor, model = row["tensor_parallel"], job.model
    heads = (("attention heads", model.attention_heads), ("key-value heads", model.key_value_heads))
    uneven = [f"the {count} {name}" for name, count in heads if count % tensor]
    return f"tensor_parallel {tensor} does not divide {' or '.join(uneven)}. {whole_heads(model)}"


def whole_heads(model: ModelSpec) -> str:
    """Return the tensor-parallel degrees that leave every rank whole heads, in a sentence."""
    common = math.gcd(model.attention_heads, model.key_value_heads)
    *some, last = [str(degree) for degree in range(1, common + 1) if common % degree == 0]
    return f"Whole heads allow {', '.join(some)} or {last}." if some else f"Whole heads allow only {last}."


def _matrices(row: Mapping[str, int], job: Job, layouts: Candidates) -> str:
    tensor = row["tensor_parallel"]
    (way,) = tensor_divisions(layouts.take([0]), job).ways
    uneven = sorted(
        f"{weight.name.format(layer='*', expert='*')} {tuple(weight.shape)}"
        for part in job.layers
        for weight in uneven_matrices(part, way)
    )
    kinds = tuple(dict.fromkeys(uneven))
    others = f" and {len(kinds) - MOST_NAMED} more" if len(kinds) > MOST_NAMED else ""
    return f"tensor_parallel {tensor} does not divide evenly {', '.join(kinds[:MOST_NAMED])}{others}."


def _chunks(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    chunks = row["pipeline_parallel"] * row["virtual_pipeline"]
    return (
        f"pipeline_parallel {row['pipeline_parallel']} x virtual_pipeline {row['virtual_pipeline']} = {chunks} chunks "
        f"are more than the {job.model.num_layers} layers."
    )


def _blocks(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    stages = row["pipeline_parallel"]
    reached = compute_weighted_stages(job.model, stages).reached
    return (
        f"pipeline_parallel {stages} is too many: {job.profile.name} gives each stage a like share of the work, so "
        f"{counted(reached, 'stage')} take all layers and {stages - reached} would have none."
    )


def _even_chunks(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    stages, layers = row["pipeline_parallel"], job.model.num_layers
    if row["virtual_pipeline"] == 1:
        even = [degree for degree in range(1, layers + 1) if layers % degree == 0]
        below, above = max(degree for degree in even if degree < stages), [degree for degree in even if degree > stages]
        return (
            f"pipeline_parallel {stages} does not divide the {layers} layers, and {job.profile.name} is planned with "
            f"equal stages: {' or '.join(map(str, (below, *above[:1])))} would do."
        )
    chunks = stages * row["virtual_pipeline"]
    return (
        f"pipeline_parallel {stages} x virtual_pipeline {row['virtual_pipeline']} = {chunks} chunks do not divide the "
        f"{layers} layers."
    )


def _recomputed(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    virtual, layers = row["virtual_pipeline"], row["full_layers"]
    return f"virtual_pipeline {virtual} does not divide the {layers} recomputed layers of a stage."


def _batch(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    data, micro = row["data_parallel"], row["micro_batch_size"]
    return (
        f"global_batch_size {job.global_batch_size} is not a multiple of data_parallel {data} x micro_batch_size "
        f"{micro} = {data * micro}."
    )


def _rounds(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    stages, virtual = row["pipeline_parallel"], row["virtual_pipeline"]
    if stages == 1:
        return f"virtual_pipeline {virtual} needs pipeline_parallel above 1."
    if job.pipeline_schedule != ONE_FORWARD_ONE_BACKWARD:
        return f"virtual_pipeline {virtual} needs the schedule 1f1b, not {job.pipeline_schedule}."
    micro_batches = job.global_batch_size // (row["data_parallel"] * row["micro_batch_size"])
    return (
        f"virtual_pipeline {virtual} needs a number of micro-batches per step that is a multiple of the {stages} "
        f"stages, not {micro_batches}."
    )


def _sequence(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    context, tensor, length = row["context_parallel"], row["tensor_parallel"], job.sequence_length
    if context > 1 and length % (2 * context):
        return f"2 x context_parallel {context} does not divide the sequence of {length} tokens."
    return (
        f"context_parallel {context} x tensor_parallel {tensor} = {context * tensor} does not divide the sequence of "
        f"{length} tokens, which sequence_parallel needs."
    )


def _flash(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    return f"context_parallel {row['context_parallel']} needs flash attention, and attention is {job.attention}."


def _tensor_ranks(_row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return "sequence_parallel needs tensor_parallel above 1."


def _group(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return f"shard_group {row['shard_group']} does not divide data_parallel {row['data_parallel']}."


def _lone_group(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return (
        f"shard_group 1 leaves zero_stage {row['zero_stage']} nothing to divide over: beside data_parallel "
        f"{row['data_parallel']} it must be 2 or more."
    )


def _experts(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    degree, ranks = row["expert_parallel"], row["data_parallel"] * row["context_parallel"]
    counts = expert_counts(job)
    uneven = [f"the {count} experts" for count in sorted(counts) if count % degree]
    if not counts:
        return NO_EXPERTS
    with_tensor = ranks * row["tensor_parallel"]
    if job.profile.can.experts_over_tensor and ranks % degree and with_tensor % degree:
        uneven.append(f"data_parallel x context_parallel x tensor_parallel = {with_tensor}")
    elif not job.profile.can.experts_over_tensor and ranks % degree:
        uneven.append(f"data_parallel x context_parallel = {ranks}")
    return f"expert_parallel {degree} does not divide {' or '.join(uneven)}."


def _expert_tokens(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return (
        f"expert_parallel {row['expert_parallel']} beside tensor_parallel {row['tensor_parallel']} needs "
        "sequence_parallel: without it tensor-parallel ranks would send the same tokens twice."
    )


def _expert_groups(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    ranks = row["shard_group"] * row["context_parallel"]
    return (
        f"expert_parallel {row['expert_parallel']} does not divide the {ranks} ranks of a shard group, within which "
        f"{job.profile.name} divides experts."
    )


def _attention(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    return f"context_parallel {row['context_parallel']} cannot be planned: {job.model.model_type} has recurrent layers."


def _expert_shards(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    ranks, degree = row["shard_group"], row["expert_parallel"]
    if ranks % degree:
        return f"shard_group {ranks} is not a multiple of expert_parallel {degree}."
    return (
        f"{job.profile.name} splits each expert over shard_group {ranks} / expert_parallel {degree} = "
        f"{ranks // degree} ranks, which do not divide it evenly."
    )


def _sharded_offload(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return f"offload {OFFLOAD_TARGETS[row['offload']]} needs zero_stage 3, not {row['zero_stage']}."


def _compression(row: Mapping[str, int], job: Job, _layouts: Candidates) -> str:
    return f"gradient_compression {job.gradient_compression} needs zero_stage 0, not {row['zero_stage']}."


def _nvme(row: Mapping[str, int], _job: Job, _layouts: Candidates) -> str:
    return f"offload_target nvme needs zero_stage 3, not {row['zero_stage']}: only stage 3 can use NVMe."


def _framework(_row: Mapping[str, int], job: Job, layouts: Candidates) -> str:
    modes = {RECOMPUTE_MODES[mode] for mode in np.unique(layouts.recompute).tolist()}
    return (
        f"{job.profile.name} does not run these degrees together: ZeRO {_values(layouts.zero_stage)}, tensor "
        f"{_values(layouts.tensor_parallel)}, pipeline {_values(layouts.pipeline_parallel)}, context "
        f"{_values(layouts.context_parallel)}, expert "
        f"{_values(layouts.expert_parallel)}, shard group {_values(layouts.shard_group)}, recompute "
        f"{'/'.join(sorted(modes))}."
    )


def _values(column: IntArray) -> str:
    return "/".join(str(value) for value in np.unique(column).tolist())


# For each rule the degrees it reads and its words for one layout.
DETAILS: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, int], Job, Candidates], str]]] = {
    "framework": ((), _framework),
    "heads_divide": (("tensor_parallel",), _heads),
    "matrices_divide": (("tensor_parallel",), _matrices),
    "stages_have_layers": (("pipeline_parallel", "virtual_pipeline"), _chunks),
    "stages_have_blocks": (("pipeline_parallel",), _blocks),
    "stages_are_even": (("pipeline_parallel", "virtual_pipeline"), _even_chunks),
    "recomputed_layers_divide": (("virtual_pipeline", "full_layers"), _recomputed),
    "batch_divides": (("data_parallel", "micro_batch_size"), _batch),
    "interleaving_needs_pipeline": (
        ("virtual_pipeline", "pipeline_parallel", "data_parallel", "micro_batch_size"),
        _rounds,
    ),
    "sequence_divides": (("context_parallel", "tensor_parallel"), _sequence),
    "context_needs_flash": (("context_parallel",), _flash),
    "context_needs_attention": (("context_parallel",), _attention),
    "sequence_parallel_needs_tensor": ((), _tensor_ranks),
    "shard_group_divides": (("shard_group", "data_parallel"), _group),
    "shard_group_has_ranks": (("shard_group", "data_parallel", "zero_stage"), _lone_group),
    "experts_divide": (("expert_parallel", "data_parallel", "context_parallel", "tensor_parallel"), _experts),
    "experts_need_sequence_parallel": (("expert_parallel", "tensor_parallel"), _expert_tokens),
    "experts_lie_in_shard_groups": (("expert_parallel", "shard_group", "context_parallel"), _expert_groups),
    "expert_shards_exist": (("shard_group", "expert_parallel"), _expert_shards),
    "offload_needs_sharding": (("offload", "zero_stage"), _sharded_offload),
    "compression_needs_whole_gradients": (("zero_stage",), _compression),
    "nvme_needs_stage_three": (("zero_stage",), _nvme),
}
