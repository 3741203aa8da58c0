"""Layers of which a test gives only the sizes that it is about, and programs drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plimsoll.planners.memory.steps.layers import Layer, Layers, Run, layers_of
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, LayerOnRank, Mask, Moment, Unit, mask_of, only
from plimsoll.planners.memory.steps.step import BACKWARD, Held, Step

NOTHING = {
    "experts": None,
    "has_expert_unit": False,
    "is_recomputed": False,
    "moments": (),
    "beside_reduction": (),
}
SIZES = (
    "kept",
    "kept_before_experts",
    "beside_moments",
    "below_highest",
    "in_lowest",
    "summed_at_first",
    "before_scatter",
    "beside_return",
    "at_experts",
    "at_experts_again",
    "experts_gathered_again",
    "at_experts_reduced",
)
OF_UNIT = (
    "weights", "buffer", "gradients", "reduced", "summed", "last_matrix_gradient", "output", "shard", "last_gradient",
    "last_summed",
)  # fmt: skip
STAGES, LAYOUTS = 2, 6


def unit(**sizes: Any) -> Unit:
    """Return weights of a layer; what is not told is nothing."""
    return Unit(**{name: np.asarray(sizes.get(name, 0.0)) for name in OF_UNIT})


def layer(**own: Any) -> LayerOnRank:
    """Return a layer; what is not told is nothing, and `buffer` and `weights` are its unit's."""
    of_unit = unit(**{name: own.pop(name) for name in OF_UNIT if name in own})
    rest: dict[str, Any] = {"unit": of_unit, **dict.fromkeys(SIZES, 0.0), **NOTHING, **own}
    return LayerOnRank(**{name: np.asarray(value) if name in SIZES else value for name, value in rest.items()})


def run(count: Any, *layers: LayerOnRank) -> Run:
    """Return so many groups of these layers."""
    return Run(unit=layers, count=np.asarray(count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnStage:
    """A stage's quantities, drawn at random."""

    layers: Layers
    message: Any
    less: Any
    mask: Mask


@dataclass(frozen=True, slots=True)
class DrawnProgram:
    """Which of the things that programs do this one does, in each layer of its passes, lowest and highest first."""

    upwards: tuple[str, ...]
    downwards: tuple[str, ...]

    def run(self, step: Step, stage: DrawnStage) -> None:
        """Go through one step."""
        work = _Pieces(step, stage)
        step.take("parameters", "parameters", stage.message)
        for layer in step.each(stage.layers):
            for name in self.upwards:
                work.do(name, layer)
        peak = step.take("logits", "logits", stage.message * 3)
        step.phase = BACKWARD
        step.drop(peak)
        for layer in step.each(stage.layers, downwards=True):
            for name in self.downwards:
                work.do(name, layer)
        with step.quiet():
            for layer in step.each(stage.layers):
                step.drop(work.kept.get(layer))
        step.take("optimizer", "temporaries", stage.message)


class _Pieces:
    def __init__(self, step: Step, stage: DrawnStage) -> None:
        self.step, self.stage = step, stage
        self.kept: dict[Layer, Held] = {}
        self.buffer = step.carry("communication", "buffer")
        self.sums = step.carry("gradients", "sums")

    def do(self, name: str, layer: Layer) -> None:
        getattr(self, name)(layer, layer.bytes)

    def keep(self, layer: Layer, own: LayerOnRank) -> None:
        kept = self.kept.get(layer)
        if kept is None:
            self.kept[layer] = self.step.take("activations", "kept", own.kept)
        else:
            self.step.resize(kept, own.kept)

    def keep_where(self, layer: Layer, own: LayerOnRank) -> None:
        with self.step.where(self.stage.mask):
            self.keep(layer, own)

    def keep_less_lowest(self, layer: Layer, own: LayerOnRank) -> None:
        self.keep(layer, own)
        with self.step.where(layer.is_lowest):
            self.step.shrink(self.kept[layer], self.stage.less)

    def hold_for_a_moment(self, layer: Layer, own: LayerOnRank) -> None:
        self.step.drop(self.step.take("activations", "moment", own.beside_return))

    def gather(self, layer: Layer, own: LayerOnRank) -> None:
        ahead = self.step.take("communication", "ahead", own.unit.buffer)
        self.step.drop(self.buffer)
        self.step.hand_over(ahead, self.buffer)

    def gather_below(self, layer: Layer, own: LayerOnRank) -> None:
        self.step.drop(self.buffer)
        self.step.grow(self.buffer, layer.buffers_below(self.stage.message)[0])

    def differentiate(self, layer: Layer, own: LayerOnRank) -> None:
        self.step.moments(own.moments, unsaved=only(layer.is_lowest, self.stage.less))

    def add_up(self, layer: Layer, own: LayerOnRank) -> None:
        self.step.grow(self.sums, own.unit.shard)

    def add_up_at_the_top(self, layer: Layer, own: LayerOnRank) -> None:
        with self.step.where(layer.is_highest), self.step.where(self.stage.mask):
            self.step.grow(self.sums, self.stage.message)

    def work_on(self, layer: Layer, own: LayerOnRank) -> None:
        self.keep(layer, own)
        self.step.resize(self.kept[layer], own.beside_moments)

    def let_go(self, layer: Layer, own: LayerOnRank) -> None:
        self.step.drop(self.kept.pop(layer, None))


KEEPING = ("keep", "keep_where", "keep_less_lowest")
UPWARDS = ("hold_for_a_moment", "gather", "add_up", "add_up_at_the_top")
DOWNWARDS = ("gather_below", "differentiate", "add_up", "add_up_at_the_top", "work_on", "let_go", "hold_for_a_moment")


def drawn(seed: int) -> tuple[DrawnProgram, DrawnStage]:
    """Return a program and its quantities over stages and layouts."""
    numbers = np.random.default_rng(seed)
    up = (KEEPING[numbers.integers(len(KEEPING))], *_some_of(numbers, UPWARDS))
    program = DrawnProgram(up, _some_of(numbers, DOWNWARDS))
    stage = DrawnStage(
        layers=layers_of([_drawn_run(numbers) for _ in range(numbers.integers(1, 4))]),
        message=_size(numbers, 10),
        less=_size(numbers, 20),
        mask=mask_of(numbers.integers(0, 2, LAYOUTS).astype(bool)),
    )
    return program, stage


def _some_of(numbers: np.random.Generator, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[index] for index in numbers.permutation(len(names))[: numbers.integers(1, len(names) + 1)])


def _drawn_run(numbers: np.random.Generator) -> Run:
    count = numbers.integers(0, numbers.choice([2, 3, 4, 10]), (STAGES, LAYOUTS))
    return Run(unit=tuple(_drawn_layer(numbers) for _ in range(numbers.integers(1, 4))), count=count)


def _drawn_layer(numbers: np.random.Generator) -> LayerOnRank:
    sizes = {name: _size(numbers, 100) for name in (*OF_UNIT, *SIZES)}
    sizes["kept"] = sizes["kept"] + 20
    moments = tuple(Moment(name, _size(numbers, 100), _size(numbers, 100)) for name in ("last matrix", "norm"))
    return layer(**sizes, moments=moments)


def _size(numbers: np.random.Generator, most: int) -> Any:
    shapes: Sequence[tuple[int, ...]] = ((STAGES, LAYOUTS), (LAYOUTS,), (1,), ())
    shape = shapes[numbers.integers(len(shapes))]
    return NO_BYTES if numbers.random() < 0.1 else np.asarray(numbers.integers(0, most, shape)).astype(np.float64)
