"""Ways to divide a model's blocks among the stages of a pipeline, by the names that stacks and papers give them.

A way is what a client asks for in `layout.pipeline_layout`, and what an answer says: one of `NAMED`, `first=N,last=M`,
`first-less=N,last-less=M`, or a list of every virtual stage's blocks (`block_lists.py`). What a pipeline of some
degree makes of it is a `Division`.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from plimsoll.planners.architecture import Block, ModelSpec, OperationKind, Split
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.block_lists import POINTER, layers_of_letters, layers_of_modules, written
from plimsoll.planners.jobs.partitions import (
    balanced_by_weight,
    first_have_more,
    layers_between,
    with_fewer_at_ends,
)
from plimsoll.planners.sharding.stages import behind_the_first

EVEN = "even"
BEHIND_FIRST = "behind-first"
BY_COMPUTE = "by-compute"
FOR_EMBEDDING = "account-for-embedding"
FOR_LOSS = "account-for-loss"
FOR_BOTH = "account-for-embedding-and-loss"
# DeepSpeed's `partition_method`, of the blocks that Megatron-DeepSpeed puts in a row.
BY_LAYERS = "type:transformer"
BY_LAYERS_AND_EMBEDDING = "type:transformer|embedding"
UNIFORM = "uniform"
BY_PARAMETERS = "parameters"
PARTITIONED = (BY_LAYERS, BY_LAYERS_AND_EMBEDDING, UNIFORM, BY_PARAMETERS)
# Blocks beside the layers that such a split counts as one each: embedding, head with loss.
ACCOUNTED: Mapping[str, tuple[int, int]] = MappingProxyType({FOR_EMBEDDING: (1, 0), FOR_LOSS: (0, 1), FOR_BOTH: (1, 1)})
NAMED = (EVEN, BEHIND_FIRST, BY_COMPUTE, *ACCOUNTED, *PARTITIONED)
# Forms that are none of the names, as a stack's table `can` lists them (`pipeline_layouts`).
ENDS = "ends"
FEWER_AT_ENDS = "fewer-at-ends"
LISTED = "listed"
FORMS = (*NAMED, ENDS, FEWER_AT_ENDS, LISTED)
# What a stack whose own way has no name does unless it is told otherwise.
ONE_FEWER_AT_ENDS = "first-less=1,last-less=1"

LONGEST_LIST = 4096  # characters of a list as it is written
MOST_KEPT = 4096
MOST_TRIED = 5  # degrees on each side of one

# Embedding, and head with loss, which may stand alone.
BLOCKS_BESIDE_LAYERS = 2
# The cast and the embedding before the layers of a row that DeepSpeed cuts.
BLOCKS_BEFORE_LAYERS = 2

FLOPS_PER_PRODUCT = 2  # a multiply-add
# Of blocks that cost nothing in `by-compute`, by where they stand (nanotron, models/llama.py).
EMBEDDINGS, LAST_NORMS, BEHIND_HEAD = 1, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A model's blocks on the virtual stages of one pipeline, in the order in which a micro-batch passes them.

    Chunk c of stage i of p is virtual stage c·p + i. `layers` has how many layers each has; the first has the
    embedding, and `head` is the one with last norm and head. `multi_token` is the one with all layers for multi-token
    prediction, which `layers` counts: None where there are none.
    """

    layers: tuple[int, ...]
    head: int
    multi_token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLayout:
    """A way to divide blocks among stages: `form` is one of `FORMS`.

    `first` and `last` belong to `ends`: the layers of the first and of the last stage, in all chunks; None where they
    are as many as the other stages'. Of `fewer-at-ends` they are by how many layers those have fewer. `layers` belong
    to `listed`, and of it `multi_token` has the layers for multi-token prediction of each virtual stage. `fewer` marks
    a way that the search makes (`balanced`): by so many layers the first and the last stage have fewer than the others.
    """

    form: str
    first: int | None = None
    last: int | None = None
    layers: tuple[int, ...] = ()
    multi_token: tuple[int, ...] = ()
    fewer: tuple[int, int] | None = None

    def division(self, model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int) -> Division | None:
        """Return what a pipeline makes of it, None where it cannot be divided so."""
        return _division(self, ByIdentity(model), pipeline_parallel, virtual_pipeline)

    def told(self, model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int) -> str:
        """Return it as a client can ask for it again; what the search balanced is named, or listed."""
        if self.form == ENDS:
            given = (("first", self.first), ("last", self.last))
            return ",".join(f"{name}={count}" for name, count in given if count is not None)
        if self.form == FEWER_AT_ENDS:
            return f"first-less={self.first},last-less={self.last}"
        if self.form != LISTED:
            return self.form
        division = self.division(model, pipeline_parallel, virtual_pipeline)
        if division is None:
            return self.form
        return (
            _written(division, model)
            if self.fewer is None
            else _shortest(division, model, pipeline_parallel, virtual_pipeline)
        )


def named(form: str) -> PipelineLayout:
    """Return the way of one of the names."""
    return PipelineLayout(form=form)


def balanced(fewer_first: int, fewer_last: int) -> PipelineLayout:
    """Return the way whose first and last stage have so many layers fewer than the others.

    What does not divide is left out of the first stages, which keep the most micro-batches.
    """
    return PipelineLayout(form=LISTED, fewer=(fewer_first, fewer_last))


def read_pipeline_layout(text: str) -> PipelineLayout:
    """Return the way that a client's text names; raise `InvalidQuestion` where it names none."""
    wanted = text.strip()
    if wanted in NAMED:
        return named(wanted)
    of_ends = _of_ends(wanted)
    if of_ends is not None:
        return of_ends
    if wanted.startswith("["):
        return PipelineLayout(form=LISTED, layers=layers_of_modules(wanted))
    if re.search(r"[|*]", wanted) or re.fullmatch(r"[EtmL,()\s]+", wanted):
        layers, multi_token = layers_of_letters(wanted)
        return PipelineLayout(form=LISTED, layers=layers, multi_token=multi_token)
    raise InvalidQuestion(
        f"{text[:40]!r} is no way to divide a pipeline's blocks: it may be {', '.join(NAMED)}, first=N,last=M, "
        "first-less=N,last-less=M, or a list of blocks such as Et*7|(t*8|)*14t*7L (E embedding, t layer, m layer for "
        "multi-token prediction, L head and loss, | the next stage) or of modules.",
        pointer=POINTER,
    )


def _of_ends(text: str) -> PipelineLayout | None:
    """Return the way of a text that says layers of the first and last stage, in either order, or None."""
    pairs = [re.fullmatch(r"\s*(first|last)(-less)?=(\d{1,5})", part) for part in text.split(",")]
    if None in pairs:
        return None
    counts = {pair[1]: int(pair[3]) for pair in pairs if pair is not None}
    are_fewer = {pair[2] is not None for pair in pairs if pair is not None}
    if len(counts) != len(pairs) or len(are_fewer) != 1:
        return None
    if are_fewer == {False}:
        return PipelineLayout(form=ENDS, first=counts.get("first"), last=counts.get("last"))
    if len(counts) != 2:
        return None
    return PipelineLayout(form=FEWER_AT_ENDS, first=counts["first"], last=counts["last"])


def own_way(forms: tuple[str, ...]) -> str:
    """Return how a stack of these forms divides a pipeline unless it is told otherwise, as a client can ask for it."""
    return ONE_FEWER_AT_ENDS if forms[0] == FEWER_AT_ENDS else forms[0]


def _shortest(division: Division, model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int) -> str:
    """Return the shortest way to say a division: a name, the layers of the ends, or the list."""
    first, last = (sum(division.layers[end::pipeline_parallel]) for end in (0, pipeline_parallel - 1))
    last -= model.multi_token_layers
    ends = (PipelineLayout(form=ENDS, last=last), PipelineLayout(form=ENDS, first=first))
    ways = (named(EVEN), *map(named, ACCOUNTED), *ends, PipelineLayout(form=ENDS, first=first, last=last))
    for way in ways:
        if way.division(model, pipeline_parallel, virtual_pipeline) == division:
            return way.told(model, pipeline_parallel, virtual_pipeline)
    return _written(division, model)


def _written(division: Division, model: ModelSpec) -> str:
    return written(division.layers, model.multi_token_layers, division.multi_token)


def pipeline_layouts(asked: str | None, forms: tuple[str, ...], model: ModelSpec) -> tuple[PipelineLayout, ...]:
    """Return the ways to try: the one that a client asked for, or a stack's own, and what lists of blocks can say.

    They are one tuple, whenever the same is asked.
    """
    return _ways(asked, forms, ByIdentity(model))


@functools.lru_cache(maxsize=MOST_KEPT)
def _ways(asked: str | None, forms: tuple[str, ...], same: ByIdentity[ModelSpec]) -> tuple[PipelineLayout, ...]:
    if asked is not None:
        return (read_pipeline_layout(asked),)
    return (read_pipeline_layout(own_way(forms)), *(balanced_ways(same) if LISTED in forms else ()))


# What a head costs beside layers by its products: those that are recomputed in full take a third more.
HEAD_SHARES = (0.75, 1.0)


@functools.lru_cache(maxsize=MOST_KEPT)
def balanced_ways(same: ByIdentity[ModelSpec]) -> tuple[PipelineLayout, ...]:
    """Return the ways of a model that a search may balance stages by: the head is as much work as some layers."""
    most = math.ceil(_head_in_layers(same) + same.value.multi_token_layers)
    return tuple(balanced(fewer_first, fewer_last) for fewer_first in (0, 1) for fewer_last in range(most + 1))


@functools.lru_cache(maxsize=MOST_KEPT)
def worthwhile(
    ways: tuple[PipelineLayout, ...], same: ByIdentity[ModelSpec], pipeline_parallel: int, virtual_pipeline: int
) -> tuple[int, ...]:
    """Return which of the ways are worth trying in a pipeline, by their places: each division once.

    Of those that the search balances these are the ones whose slowest stage has the least to do, by what a head costs
    where nothing is computed again and where all layers are; without virtual stages with one layer fewer in the first
    stage too, which has the most to hold.
    """
    found: dict[Division, int] = {}
    for place, way in enumerate(ways):
        division = way.division(same.value, pipeline_parallel, virtual_pipeline)
        if division is not None:
            found.setdefault(division, place)
    kept = {place for place in found.values() if ways[place].fewer is None}
    for fewer_first in (0, 1) if virtual_pipeline == 1 else (0,):
        of_first = {
            division: place for division, place in found.items() if (ways[place].fewer or (-1,))[0] == fewer_first
        }
        for share in HEAD_SHARES if of_first else ():
            head = share * _head_in_layers(same)
            kept.add(min(of_first.items(), key=lambda item: (_most_work(item[0], pipeline_parallel, head), item[1]))[1])
    return tuple(sorted(kept))


def _most_work(division: Division, pipeline_parallel: int, head: float) -> float:
    """Return the work of the stage that has the most, in layers; of several chunks, that of each added up."""
    work = [float(layers) for layers in division.layers]
    work[division.head] += head
    starts = range(0, len(work), pipeline_parallel)
    return sum(max(work[start : start + pipeline_parallel]) for start in starts)


def _head_in_layers(same: ByIdentity[ModelSpec]) -> float:
    """Return how many of a model's mean layers do as many products as its head, as often as it is multiplied by.

    What joins layers for multi-token prediction is counted with it.
    """
    model, (head, *others) = same.value, block_work(same).tolist()
    layers, joints = others[: len(model.layers)], others[len(model.layers) :]
    whole = sum(work * block.repeats for work, block in zip(layers, model.layers, strict=True))
    counted = head * model.heads + sum(joints) * model.multi_token_layers
    return float(counted * (model.num_layers + model.multi_token_layers) / whole)


@functools.lru_cache(maxsize=MOST_KEPT)
def block_work(same: ByIdentity[ModelSpec]) -> npt.NDArray[np.float64]:
    """Return the products of a token, attention's scores apart, in the head and in a layer of each kind.

    Behind them stand those of what joins a layer for multi-token prediction, where there is any.
    """
    model = same.value
    blocks = (*model.layers, *([model.multi_token] if model.multi_token else ()))
    of_layers = (sum(op.forward_flops_per_token(0.0) for op in block.operations) for block in blocks)
    of_head = sum(op.forward_flops_per_token(0.0) for op in model.head.operations if op.kind is OperationKind.MATMUL)
    return np.array([of_head, *of_layers])


@functools.lru_cache(maxsize=MOST_KEPT)
def _division(
    way: PipelineLayout, same: ByIdentity[ModelSpec], pipeline_parallel: int, virtual_pipeline: int
) -> Division | None:
    model, stages = same.value, pipeline_parallel * virtual_pipeline
    if way.form == BY_COMPUTE:
        return _by_compute(model, stages)
    if way.form in (UNIFORM, BY_PARAMETERS):
        return _by_blocks(way.form, model, stages)
    if way.form == FEWER_AT_ENDS:
        layers: tuple[int, ...] | None = with_fewer_at_ends(model.num_layers, stages, way.first or 0, way.last or 0)
    elif way.form == LISTED and way.fewer is None:
        layers = way.layers
    elif way.form == LISTED:
        layers = _balanced(model.num_layers, pipeline_parallel, virtual_pipeline, *(way.fewer or (0, 0)))
    elif way.form == ENDS:
        layers = _with_ends(model.num_layers, pipeline_parallel, virtual_pipeline, way.first, way.last)
    elif way.form == BEHIND_FIRST and virtual_pipeline > 1:
        layers = _even(model.num_layers, stages)
    elif way.form == BY_LAYERS_AND_EMBEDDING:
        # Its pattern finds the head where the head is the embedding once more.
        layers = with_fewer_at_ends(model.num_layers, stages, 1, int(model.tied_head))
    else:
        layers = _OF_COUNT[way.form](model.num_layers, stages)
    if layers is None or len(layers) != stages or sum(layers) != model.num_layers or min(layers) < 0:
        return None
    multi_token = _multi_token_stage(way, model, pipeline_parallel, virtual_pipeline)
    if multi_token is not None:
        if not 0 <= multi_token < stages:
            return None
        layers = tuple(
            count + (model.multi_token_layers if stage == multi_token else 0) for stage, count in enumerate(layers)
        )
    # The embedding or the head may stand alone.
    return None if 0 in layers[1:-1] else Division(layers=layers, head=stages - 1, multi_token=multi_token)


NOWHERE = -1


def _multi_token_stage(
    way: PipelineLayout, model: ModelSpec, pipeline_parallel: int, virtual_pipeline: int
) -> int | None:
    """Return the virtual stage of the layers for multi-token prediction; `NOWHERE` where they cannot be so.

    That is the head's unless a list says another. Source: Megatron-Core, transformer/multi_token_prediction.py,
    `get_mtp_num_layers_to_build`; pipeline_parallel_layer_layout.py, `validate_layer_layout`.
    """
    wanted = model.multi_token_layers
    if way.form == LISTED and way.fewer is None:
        if sum(way.multi_token) != wanted:
            return NOWHERE
        stage = way.multi_token.index(wanted) if wanted else None
        # In chunks the first stage has none: it would have the embedding's table twice.
        is_first = stage is not None and virtual_pipeline > 1 and stage % pipeline_parallel == 0
        return NOWHERE if is_first else stage
    return pipeline_parallel * virtual_pipeline - 1 if wanted else None


def balanced_list(model: ModelSpec, stages: int, multi_token_layers: int = 0) -> str | None:
    """Return a list of as even stages as can be, None where one would have no layer.

    Layers for multi-token prediction, which the model's own do not count, are in the last.
    """
    layers = behind_the_first(model.num_layers, stages)
    if min(layers) < 1:
        return None
    counts = (*layers[:-1], layers[-1] + multi_token_layers)
    return written(counts, multi_token_layers, stages - 1 if multi_token_layers else None)


def _even(num_layers: int, stages: int) -> tuple[int, ...] | None:
    each, rest = divmod(num_layers, stages)
    return None if rest or not each else (each,) * stages


def _behind_first(num_layers: int, stages: int) -> tuple[int, ...] | None:
    return behind_the_first(num_layers, stages) if stages <= num_layers else None


def _accounted(for_embedding: int, for_loss: int) -> Callable[[int, int], tuple[int, ...] | None]:
    """Return the split that counts embedding or head as a layer.

    Source: NVIDIA/Megatron-LM, core/transformer/transformer_block.py, get_num_layers_to_build.
    """

    def divided(num_layers: int, stages: int) -> tuple[int, ...] | None:
        each, rest = divmod(num_layers + for_embedding + for_loss, stages)
        if rest or stages == 1:
            return (num_layers,) if stages == 1 else None
        return (each - for_embedding, *(each,) * (stages - 2), each - for_loss)

    return divided


_OF_COUNT: Mapping[str, Callable[[int, int], tuple[int, ...] | None]] = MappingProxyType(
    {
        EVEN: _even,
        BEHIND_FIRST: _behind_first,
        BY_LAYERS: lambda num_layers, stages: with_fewer_at_ends(num_layers, stages, 0, 0),
        **{form: _accounted(*counts) for form, counts in ACCOUNTED.items()},
    }
)


def _with_ends(
    num_layers: int, pipeline_parallel: int, virtual_pipeline: int, first: int | None, last: int | None
) -> tuple[int, ...] | None:
    """Return the layers of virtual stages whose ends have so many in all their chunks, the others alike.

    Source: NVIDIA/Megatron-LM, core/transformer/transformer_block.py, get_num_layers_to_build.
    """
    if pipeline_parallel == 1:
        return None
    given = {place: count for place, count in ((0, first), (pipeline_parallel - 1, last)) if count is not None}
    others = pipeline_parallel - len(given)
    each, rest = divmod(num_layers - sum(given.values()), others) if others else (0, num_layers - sum(given.values()))
    counts = [given.get(stage, each) for stage in range(pipeline_parallel)]
    if rest or any(count < 1 or count % virtual_pipeline for count in counts):
        return None
    return tuple(count // virtual_pipeline for count in counts) * virtual_pipeline


def _balanced(
    num_layers: int, pipeline_parallel: int, virtual_pipeline: int, fewer_first: int, fewer_last: int
) -> tuple[int, ...] | None:
    """Return the layers of virtual stages whose first and last stage have fewer than the others by so many.

    Each chunk has as many layers in every stage, for all stages go through it at once, but where some are left out: in
    the first chunk of the first stages, and in the last one of the last, which has the head.
    """
    most = -(-(num_layers + fewer_first + fewer_last) // pipeline_parallel)
    each, rest = divmod(most, virtual_pipeline)
    layers = [
        each + (chunk >= virtual_pipeline - rest) for chunk in range(virtual_pipeline) for _ in range(pipeline_parallel)
    ]
    layers[0] -= fewer_first
    layers[-1] -= fewer_last
    for stage in range(sum(layers) - num_layers):
        layers[stage] -= 1
    # An embedding or a head may have a chunk to itself, and no stage.
    is_empty = each == 0 or min(layers) < (0 if virtual_pipeline > 1 else 1)
    return None if pipeline_parallel == 1 or is_empty else tuple(layers)


def _by_compute(model: ModelSpec, stages: int) -> Division | None:
    """Return blocks dealt out by their matrices.

    A stage takes blocks until it has its share of all products, the block
    that reaches it included, and so stages can be left with nothing, which no stack runs. Only layers and
    the head cost; the embedding stands first, the last norm before the head, the
    cast of the logits and the loss behind it. Source: nanotron, `build_model` of
    models/base.py, which weighs a layer by its matrices and the head by
    vocabulary x hidden size; the blocks of models/llama.py. It reads as if a share had to be exceeded; in the
    published runs whose shares end with a layer, 10 of 20 blocks' worth and 5 of 20, the first stage has 10 layers
    and 5, by their memory and by their time.
    """
    dealt = _dealt_by_compute(model, stages)
    if dealt[-1] + 1 != stages:
        return None
    of_layers = dealt[EMBEDDINGS : EMBEDDINGS + model.num_layers]
    return Division(layers=tuple(of_layers.count(each) for each in range(stages)), head=dealt[-1 - BEHIND_HEAD])


def reached_by_compute(model: ModelSpec, stages: int) -> int:
    """Return how many of so many stages get a block where blocks are dealt out by their matrices."""
    return _dealt_by_compute(model, stages)[-1] + 1


def _dealt_by_compute(model: ModelSpec, stages: int) -> list[int]:
    """Return the stage of each block, in order."""
    layers = [0.0] * model.num_layers
    for block in model.layers:
        for layer in block.layers:
            layers[layer] = _cost_of_whole_heads(block, model.hidden_size)
    head = sum(op.forward_flops_per_token(0.0) for op in model.head.operations if op.kind is OperationKind.MATMUL)
    costs = [0.0] * EMBEDDINGS + layers + [0.0] * LAST_NORMS + [head] + [0.0] * BEHIND_HEAD
    whole, dealt, stage, done = sum(costs), [], 0, 0.0
    for cost in costs:
        dealt.append(stage)
        done += cost
        if done * stages >= whole * (stage + 1) and stage < stages - 1:
            stage += 1
    return dealt


def _by_blocks(form: str, model: ModelSpec, stages: int) -> Division | None:
    """Return blocks as DeepSpeed's PipelineModule cuts the row of them that Megatron-DeepSpeed makes.

    A cast, embedding, layers, of a mixture the sum of its losses, last norm, head and a cast: by their number, or by
    their parameters, whole matrices and all experts counted. Source: deepspeedai/Megatron-DeepSpeed 4efb479,
    megatron/model/gpt_model.py, GPTModelPipe; DeepSpeed 0.19, runtime/pipe/module.py, `_partition_layers`.
    """
    layers = [0] * model.num_layers
    for block in model.layers:
        for layer in block.layers:
            layers[layer] = block.elements
    norm = sum(weight.elements for weight in model.head.weights if weight.split is not Split.VOCABULARY)
    head = model.embedding.elements if model.tied_head else model.head.elements - norm
    losses = (0,) if model.experts_per_token else ()
    weights = (0, model.embedding.elements, *layers, *losses, norm, head, 0)
    counts = first_have_more(len(weights), stages) if form == UNIFORM else balanced_by_weight(weights, stages)
    held = layers_between(counts, BLOCKS_BEFORE_LAYERS, model.num_layers)
    ends = list(itertools.accumulate(counts))
    of_head = next(stage for stage, end in enumerate(ends) if end >= len(weights) - 1)
    if ends[0] < BLOCKS_BEFORE_LAYERS or 0 in counts or 0 in held[1:-1]:
        return None
    return Division(layers=held, head=of_head)


def _cost_of_whole_heads(block: Block, hidden_size: int) -> float:
    """Return the products of a layer as if each of its query heads had a key and a value of its own.

    Source: nanotron 2411b02, models/llama.py and models/qwen.py, `get_block_compute_costs`: 4 x heads x their width x
    hidden size of the attention, however many heads share a key.
    """
    widths = {tensor.name: tensor.width for tensor in block.tensors}
    shared = (
        width - widths[name]
        for op in block.operations
        if op.kind is OperationKind.ATTENTION
        for name, width in zip(op.inputs[1:], (op.heads * op.key_dim, op.heads * op.value_dim), strict=False)
        if name in widths
    )
    own = sum(op.forward_flops_per_token(0.0) for op in block.operations)
    return own + FLOPS_PER_PRODUCT * hidden_size * sum(shared)


def nearest_degrees(
    ways: tuple[PipelineLayout, ...],
    model: ModelSpec,
    pipeline_parallel: int,
    virtual_pipeline: int,
    gpus: int = 0,
    works: Callable[[int], bool] = lambda _degree: True,
) -> str:
    """Return the degrees next to one that some of these ways can divide over, in words; empty where there are none.

    They divide the GPUs, where so many are named, and work. Without stages there are no virtual ones.
    """
    can = [
        degree
        for degree in range(1 if virtual_pipeline == 1 else 2, model.num_layers + BLOCKS_BESIDE_LAYERS + 1)
        if gpus % degree == 0 and any(way.division(model, degree, virtual_pipeline) is not None for way in ways)
    ]
    below = [degree for degree in reversed(can) if degree < pipeline_parallel][:MOST_TRIED]
    above = [degree for degree in can if degree > pipeline_parallel][:MOST_TRIED]
    nearest = (next(filter(works, side), None) for side in (below, above))
    return " or ".join(str(degree) for degree in nearest if degree is not None)
