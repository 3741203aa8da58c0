"""Pipeline stages: how many layers each has where nobody says, and the weights that go with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plimsoll.planners.architecture import Block, ModelSpec, Split, Weight
from plimsoll.planners.ground.errors import ImpossibleLayout


def behind_the_first(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return equal shares, what is left over going one each to the stages after the first.

    The first has the embedding and keeps the most micro-batches already
    (Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
    """
    base, extra = divmod(num_layers, stages)
    return tuple(base + (1 <= stage <= extra) for stage in range(stages))


def last_but_one_first(num_layers: int, stages: int) -> tuple[int, ...]:
    """Return equal shares, what is left over going to the stages before the last, from the back.

    Source: vLLM, distributed/utils.py, get_pp_indices.
    """
    shares = [num_layers // stages] * stages
    for extra in range(num_layers % stages):
        shares[-2 - extra] += 1
    return tuple(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """One pipeline stage: its decoder layers, and what stands at either end of the model.

    A tied head on another stage than the embedding multiplies by a copy of the
    embedding's matrix, `tied_copy`, which is trained and stored like the first.
    """

    index: int
    layers: range
    embedding: tuple[Weight, ...]
    blocks: tuple[tuple[Block, tuple[int, ...]], ...]
    head: tuple[Weight, ...]
    tied_copy: tuple[Weight, ...]

    def kinds(self) -> Iterator[tuple[Weight, int]]:
        """Yield each kind of weight with the number of layers of the stage that have it."""
        for block, layers in self.blocks:
            for weight in block.weights:
                yield weight, len(layers)
        for weight in (*self.embedding, *self.tied_copy, *self.head):
            yield weight, 1

    def named(self) -> Iterator[tuple[str, Weight]]:
        """Yield the stage's weights in the model's order, `{layer}` filled in and `{expert}` not."""
        block_of = {layer: block for block, layers in self.blocks for layer in layers}
        for weight in self.embedding:
            yield weight.name, weight
        for layer in self.layers:
            block = block_of[layer]
            for weight in block.weights:
                yield weight.name.replace("{layer}", str(layer - block.first_named)), weight
        for weight in (*self.tied_copy, *self.head):
            yield weight.name, weight


def stage_weights(spec: ModelSpec, layers: tuple[int, ...]) -> tuple[StageWeights, ...]:
    """Return the weights of each stage, `layers` being the number of decoder layers each has.

    Raises `ImpossibleLayout` where the stages have not just the model's layers.
    """
    if sum(layers) != spec.num_layers or min(layers) < 0:
        raise _impossible(f"stages of {', '.join(map(str, layers))} layers are not {spec.num_layers} layers.")
    matrices = tuple(weight for weight in spec.embedding.weights if weight.split is Split.VOCABULARY)
    stages, start, last = [], 0, len(layers) - 1
    for index, count in enumerate(layers):
        own = range(start, start + count)
        start += count
        within = ((block, tuple(layer for layer in block.layers if layer in own)) for block in spec.layers)
        stages.append(
            StageWeights(
                index=index,
                layers=own,
                embedding=spec.embedding.weights if index == 0 else (),
                blocks=tuple((block, chosen) for block, chosen in within if chosen),
                head=spec.head.weights if index == last else (),
                tied_copy=matrices if index == last and index and spec.tied_head else (),
            )
        )
    return tuple(stages)


def _impossible(detail: str) -> ImpossibleLayout:
    return ImpossibleLayout(detail, rule="stages-have-layers", pointer="/layout/pipeline_parallel")
