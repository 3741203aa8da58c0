"""Layers marked as a pass comes to them."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from plimsoll.service.worker.jobs.job import PipelineStage
from plimsoll.service.worker.recording.repeated_layers import event_sign
from plimsoll.service.worker.training import own_steps, step
from plimsoll.service.worker.training.layer_marks import marking_layers
from tests.service.worker.cases import config, traced


class Told(torch.autograd.Function):
    """Says when it runs forward and backward."""

    @staticmethod
    def forward(ctx, value, told, name):
        ctx.told, ctx.name = told, name
        told.append(f"{name} forward")
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.told.append(f"{ctx.name} backward")
        return gradient, None, None


class Model(nn.Module):
    """A decoder whose parts say when they run; `gathers` makes hooks of each layer that do so besides."""

    config = SimpleNamespace(model_type="llama")

    def __init__(self, told, layers=2):
        super().__init__()
        self.told, self.model = told, nn.Module()
        self.model.layers = nn.ModuleList(nn.Identity() for _ in range(layers))
        for number, layer in enumerate(self.model.layers):
            layer.register_forward_pre_hook(lambda _layer, values, n=number: Told.apply(*values, told, f"before {n}"))
            layer.register_forward_hook(lambda _layer, _values, value, n=number: Told.apply(value, told, f"after {n}"))

    def forward(self, value):
        value = Told.apply(value, self.told, "embedding")
        for layer in self.model.layers:
            value = layer(value)
        return Told.apply(value, self.told, "head")


def stage(first, last):
    return PipelineStage(number=0, stages=1, first_layer=first, last_layer=last)


def test_a_layer_has_what_its_hooks_do_in_both_passes():
    told, at_work = [], []

    def mark(layer):
        if at_work[-1:] != [layer]:
            at_work.append(layer)
            told.append(layer)

    with marking_layers([(model := Model(told)).model.layers], [stage(6, 7)], mark):
        model(torch.ones(1, requires_grad=True)).backward()
    forward = ["embedding forward", 6, "before 0 forward", "after 0 forward", 7, "before 1 forward", "after 1 forward"]
    backward = ["head backward", 7, "after 1 backward", "before 1 backward", 6, "after 0 backward", "before 0 backward"]
    assert told == [*forward, None, "head forward", *backward, None, "embedding backward"]


def test_nothing_is_marked_outside_the_block():
    told = []
    model = Model([])
    with marking_layers([model.model.layers], [stage(0, 1)], told.append):
        pass
    model(torch.ones(1, requires_grad=True)).backward()
    assert told == []


def test_what_outlives_a_pass_is_not_told_of_it_twice():
    told, received = [], torch.ones(1, requires_grad=True)
    model = Model([])
    with marking_layers([model.model.layers], [stage(0, 1)], told.append):
        for _ in range(3):
            model.model.layers[0](received).backward()
            received.grad = None
    assert told == [0, 0, 0, None] * 3


def test_layers_that_nothing_is_learned_below_are_marked_forwards_alone():
    told = []
    with marking_layers([(model := Model([])).model.layers], [stage(0, 1)], told.append):
        model(torch.ones(1))
    assert told == [0, 1, None]


def passes_of_last_step(ledger):
    """Return the layers that each pass of the last step comes to."""
    passes = {}
    for mark in ledger.layer_marks:
        phase = ledger.marks[mark.phase]
        if phase.step == ledger.marks[-1].step:
            passes.setdefault((mark.phase, phase.phase), []).append(mark.layer)
    return [(phase, layers) for (_, phase), layers in passes.items()]


@pytest.mark.slow
@pytest.mark.parametrize("zero_stage", [1, 3])
def test_an_engine_of_its_own_is_marked_too(zero_stage):
    ledger = traced(framework="deepspeed", zero_stage=zero_stage, accumulation_steps=2)
    assert passes_of_last_step(ledger) == [("forward", [0, 1, None]), ("backward", [1, 0, None])] * 2


@pytest.mark.slow
def test_every_micro_batch_of_an_interleaved_stage_is_marked_chunk_by_chunk():
    # Of four layers on two stages in two chunks, the first has 0 and 2.
    layout = {
        "data_parallel": 2,
        "pipeline_parallel": 2,
        "virtual_pipeline": 2,
        "accumulation_steps": 2,
        "zero_stage": 1,
    }
    first = PipelineStage(number=0, stages=2, first_layer=0, last_layer=1)
    ledger = traced(first, framework="megatron", config=config(num_hidden_layers=4), **layout)
    forward, backward = (
        sorted(layers[0] for phase, layers in passes_of_last_step(ledger) if phase == each)
        for each in ("forward", "backward")
    )
    assert forward == backward == [0, 0, 2, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "fsdp2"},
        {"framework": "fsdp2", "recompute": "full", "accumulation_steps": 2},
        {"framework": "fsdp2", "recompute": "selective", "data_parallel": 2, "tensor_parallel": 2},
        {"framework": "ddp", "zero_stage": 0},
        {"framework": "megatron", "zero_stage": 1},
        {"method": "lora", "config": config(tie_word_embeddings=True)},
    ],
)
def test_marking_changes_no_event_of_a_trace(monkeypatch, changes):
    marked = traced(**changes)
    for traces in (step, own_steps):
        monkeypatch.setattr(traces, "marking_layers", lambda *_: contextlib.nullcontext())
    plain = traced(**changes)
    assert [event_sign(each) for each in marked.events] == [event_sign(each) for each in plain.events]
    assert marked.marks == plain.marks
    assert marked.layer_marks
    assert not plain.layer_marks
