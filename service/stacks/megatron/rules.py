"""What Megatron-LM asserts of its arguments before it trains.

Source: Megatron-LM, training/arguments.py (validate_args), core/transformer/transformer_config.py (__post_init__),
core/num_microbatches_calculator.py and core/parallel_state.py, read at commit d98e8a64dd (August 2026).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.jobs.pipeline_layouts import read_pipeline_layout
from plimsoll.service.stacks.megatron.activations import broken_rules_of_activations
from plimsoll.service.stacks.megatron.context import broken_rules_of_context
from plimsoll.service.stacks.megatron.experts import told_expert_tensor
from plimsoll.service.stacks.megatron.flags import FLAGS
from plimsoll.service.stacks.megatron.pipelines import counted_blocks, virtual_stages
from plimsoll.service.stacks.megatron.states import broken_rules_of_states, copies_of_states
from plimsoll.service.workloads.commands.divisors import divisors_text
from plimsoll.service.workloads.commands.flags import option

# Layers are dealt out to other stages than the options that are read say; forks have some of their own for it.
OTHER_STAGES = re.compile(
    r"pipeline-num-layers|pipeline-stage$|pipeline-split|noop-layers|layer-list"
    r"|layers-list|standalone-embedding|uneven|heterogeneous"
)
VARYING_BATCH = frozenset({"--rampup-batch-size", "--decrease-batch-size-if-needed", "--step-batch-size-schedule"})
Values = Mapping[str, Any]


def broken_rules(values: Values, others: Collection[str], ranks: int | None) -> tuple[str, ...]:
    """Return what a command's arguments break, each with what would do; `ranks` are all processes, None if unknown."""
    return (
        *_of_heads(values),
        *_of_layers(values, others),
        *_of_sequence(values),
        *broken_rules_of_context(values),
        *_of_experts(values),
        *_of_overlap(values, others),
        *broken_rules_of_states(values),
        *broken_rules_of_activations(values),
        *(() if ranks is None else _of_ranks(values, others, ranks)),
    )


def _degree(values: Values, name: str) -> int:
    return int(values.get(name, 1))


def _of_heads(values: Values) -> Iterator[str]:
    tensor, heads = _degree(values, "tensor_parallel"), int(values["heads"])
    groups = int(values["query_groups"]) if values.get("groups_queries") and "query_groups" in values else heads
    if tensor and heads % tensor:
        yield f"{heads} attention heads do not divide by {tensor}: tensor parallel {divisors_text(heads)}"
    elif tensor and groups and groups % tensor and tensor % groups:
        yield f"{groups} query groups neither divide by {tensor} nor divide it: tensor parallel {divisors_text(groups)}"


def divides_otherwise(others: Collection[str]) -> bool:
    """Return whether options that are not read say more of how layers are dealt out."""
    return any(OTHER_STAGES.search(name) for name in others)


def _of_layers(values: Values, others: Collection[str]) -> Iterator[str]:
    layers, stages = int(values["layers"]), _degree(values, "pipeline_parallel")
    if not stages or divides_otherwise(others):
        return
    if any(field in values for field in ("listed_stages", "layers_of_first_stage", "layers_of_last_stage")):
        yield from _of_unlike_stages(values, layers, stages)
        return
    beside = sum(counted_blocks(values))
    blocks, named = layers + beside, f"{layers} layers"
    if beside:
        named += f" and {beside} of embedding and loss ({blocks})"
    if blocks % stages:
        yield f"{named} do not divide by {stages}: pipeline parallel {divisors_text(blocks)}"
        return
    virtual = int(values.get("virtual_stage_layers") or 0)
    if stages > 1 and virtual and (blocks // stages) % virtual:
        yield (
            f"{blocks // stages} layers of a stage do not divide by {virtual}: "
            f"--num-layers-per-virtual-pipeline-stage {divisors_text(blocks // stages)}"
        )


def _of_unlike_stages(values: Values, layers: int, stages: int) -> Iterator[str]:
    """Yield what is broken of a list of stages, or of the layers of the first and the last one.

    Source: arguments.py, validate_args ("Uneven virtual pipeline parallelism"); transformer_config.py ("PP layout",
    "Uneven PP"). A list that is not planned breaks nothing that is known.
    """
    if "listed_stages" in values:
        try:
            listed = read_pipeline_layout(str(values["listed_stages"]))
        except InvalidQuestion:
            return
        further, wanted = sum(listed.multi_token), int(values.get("multi_token_prediction") or 0)
        if len(listed.layers) % stages:
            yield f"the {len(listed.layers)} stages of --pipeline-model-parallel-layout are no multiple of {stages}"
        elif sum(listed.layers) != layers:
            yield f"--pipeline-model-parallel-layout lists {sum(listed.layers)} layers, and --num-layers says {layers}"
        elif further != wanted:
            yield f"--pipeline-model-parallel-layout has {further} of m, and --mtp-num-layers says {wanted}"
        return
    ends = [values[field] for field in ("layers_of_first_stage", "layers_of_last_stage") if field in values]
    left, others = layers - sum(map(int, ends)), stages - len(ends)
    if stages > 1 and (left < 0 or (left % others if others > 0 else left)):
        yield f"{left} layers are left for the {others} stages beside those of {' and '.join(map(str, ends))}"


def _of_sequence(values: Values) -> Iterator[str]:
    length, context = int(values["sequence_length"]), _degree(values, "context_parallel")
    if context > 1 and length % (2 * context):
        yield f"--seq-length {length} is no multiple of 2 x context parallel {context}"
    positions = values.get("positions")
    if positions is not None and length > int(positions):
        yield f"--seq-length {length} is above --max-position-embeddings {positions}"


def _of_experts(values: Values) -> Iterator[str]:
    degree, experts = _degree(values, "expert_parallel"), int(values.get("experts") or 0)
    if degree > 1 and not experts:
        yield f"expert parallel {degree} needs --num-experts"
    elif degree > 1 and experts % degree:
        yield f"{experts} experts do not divide by {degree}: expert parallel {divisors_text(experts)}"


def _of_overlap(values: Values, others: Collection[str]) -> Iterator[str]:
    """Yield what hiding traffic needs, as transformer_config.py and arguments.py assert it."""
    if values.get("overlap_tensor_parallel") and not values.get("sequence_parallel"):
        yield "--tp-comm-overlap needs --sequence-parallel"
    if not values.get("overlap_expert_parallel"):
        return
    flag = "--overlap-moe-expert-parallel-comm"
    if _degree(values, "expert_parallel") == 1:
        yield f"{flag} needs --expert-model-parallel-size above 1"
    stages = _degree(values, "pipeline_parallel")
    if stages > 1 and not divides_otherwise(others) and _is_not_interleaved(values, stages):
        yield f"{flag} in a pipeline needs --num-layers-per-virtual-pipeline-stage"
    if values.get("recompute") == "full":
        yield f"{flag} goes without --recompute-granularity full"


def _is_not_interleaved(values: Values, stages: int) -> bool:
    """Return whether a pipeline is sure to have no virtual stages."""
    try:
        return virtual_stages(values, stages) == 1
    except InvalidQuestion:
        return False


def _of_ranks(values: Values, others: Collection[str], ranks: int) -> Iterator[str]:
    tensor, stages, context = (
        _degree(values, name) for name in ("tensor_parallel", "pipeline_parallel", "context_parallel")
    )
    of_replica = tensor * stages * context
    if not of_replica or ranks % of_replica:
        named = f"tensor {tensor} x pipeline {stages} x context {context} = {of_replica}"
        yield f"its degrees ({named} ranks a replica) do not divide its {ranks} processes"
        return
    of_experts = stages * _degree(values, "expert_parallel") * told_expert_tensor(values)
    if values.get("experts") and of_experts and ranks % of_experts:
        named = f"expert {_degree(values, 'expert_parallel')} x expert-tensor {told_expert_tensor(values)}"
        named += f" x pipeline {stages} = {of_experts}"
        yield f"its experts' degrees ({named} ranks) do not divide its {ranks} processes"
        return
    yield from _of_copies(values, ranks // (tensor * stages), ranks // of_experts if of_experts else 0)
    replicas, micro, batch = ranks // of_replica, int(values["micro_batch_size"]), values.get("global_batch_size")
    if batch is not None and micro and int(batch) % (micro * replicas) and not VARYING_BATCH & set(others):
        step = micro * replicas
        yield (
            f"--global-batch-size {batch} is no multiple of {step} (micro-batch {micro} x {replicas} replicas): "
            f"{' or '.join(str(near) for near in (int(batch) // step * step, -(-int(batch) // step) * step) if near)}"
        )


def _of_copies(values: Values, replicas: int, expert_replicas: int) -> Iterator[str]:
    """Yield what copies of the distributed optimizer do not divide, of ranks that share weights and of experts' own.

    Source: core/parallel_state.py, initialize_model_parallel ("divisible by partial DistOpt shard factor").
    """
    copies, flag = copies_of_states(values), option(FLAGS, "optimizer_copies")
    if copies < 1 or replicas % copies:
        yield f"{flag} {copies} does not divide {replicas} ranks of data x context parallel: {divisors_text(replicas)}"
    elif values.get("experts") and expert_replicas % copies:
        near = divisors_text(expert_replicas)
        yield f"{flag} {copies} does not divide {expert_replicas} ranks that share experts: {near}"
