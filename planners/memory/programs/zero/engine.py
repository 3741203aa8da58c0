"""A step of DeepSpeed's engine, whatever its stage: gradients are reduced, and weights gathered, tensor by tensor.

What tensors take that are gathered, made, copied and reduced is followed elsewhere (`walk.py`); here it meets the
states and the activations. Stages 0 and 1 reduce after the step's last micro-batch, stages 2 and 3 as gradients come.
Source: DeepSpeed 0.19.8, runtime/engine.py, runtime/zero/stage_1_and_2.py and stage3.py, and
runtime/fp16/fused_optimizer.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plimsoll.planners.layouts.candidates import BoolArray, FloatArray
from plimsoll.planners.memory.programs.at_rest import AtRest, begin, update
from plimsoll.planners.memory.programs.beside_policy import BesidePolicy, run_beside_policy
from plimsoll.planners.memory.steps.layers import Layer, Layers
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, only
from plimsoll.planners.memory.steps.step import BACKWARD, FORWARD, REDUCTION, Held, Step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """The most that is held as tensors of a part come and go, and what is left, beyond what was there before."""

    most: FloatArray
    left: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ZeroEngineStage:
    """Whole bytes of one rank.

    - `sends_as_it_goes` says that gradients are on their way as soon as they are made, else they are added up;
    - `resting` is the reduction's bucket where it never goes; else it is `bucket` from the first gradient on, so many
      moments into the highest layer or with the head, and `bucket_before` in what comes before that; `persistent` are
      weights that stay gathered until the update, `second_copy` a rank's part of another copy until after it;
    - `embedding`, `head`, `head_back`, `embedding_back`: what the parts' tensors take, `flush` as the last bucket is
      reduced and `at_boundary` as all gradients are;
    - `message` is the residual stream of a micro-batch, `embedded` the embedding's output that the model holds,
      `unsaved` what the first layer need not keep behind a frozen embedding;
    - `head_kept`: at the head; `forward_logits` and `kept_logits` at the loss and after it, `logits` and
      `logits_gradient` as it is differentiated and after that;
    - `head_gradient` is made of the head's matrix, and `tied` waits for the embedding's where both are one table.
    """

    rest: AtRest
    layers: Layers
    sends_as_it_goes: BoolArray
    resting: FloatArray
    bucket_before: FloatArray
    bucket: FloatArray
    moments_before_bucket: int
    persistent: FloatArray
    second_copy_at_loss: FloatArray
    second_copy: FloatArray
    embedding: Pass
    head: Pass
    head_back: Pass
    embedding_back: Pass
    flush: FloatArray
    at_boundary: FloatArray
    message: FloatArray
    embedded: FloatArray
    unsaved: FloatArray
    head_kept: FloatArray
    forward_logits: FloatArray
    logits: FloatArray
    kept_logits: FloatArray
    logits_gradient: FloatArray
    head_gradient: FloatArray
    tied: FloatArray
    companions: tuple[BesidePolicy, ...]


def zero_engine(step: Step, stage: ZeroEngineStage) -> None:
    """Go through one step."""
    lasting = begin(step, stage.rest)
    step.leave(step.take("communication", "reduction's bucket", stage.resting))
    bucket = step.take("communication", "reduction's bucket", stage.bucket_before)
    persistent = step.take("communication", "weights that stay gathered", stage.persistent)
    traffic = step.carry(_item_of_traffic(stage), "gathered weights and gradients")
    step.phase = FORWARD
    second_copy = step.take("parameters", "second copy of the weights", stage.second_copy_at_loss)
    _pass(step, traffic, stage.embedding)
    stream = step.take("activations", "residual stream", stage.message)
    embedded = step.take("activations", "embedding's output", NO_BYTES)
    kept: dict[Layer, Held] = {}
    for layer in step.each(stage.layers):
        own = layer.bytes
        unsaved = only(layer.is_lowest, stage.unsaved)
        kept[layer] = step.take("activations", "kept by the layer", own.kept - unsaved)
        first_run = step.take("activations", "layer's first run", own.traffic.first_run)
        _pass(step, traffic, Pass(most=own.traffic.forward, left=own.traffic.left_forward))
        step.drop(first_run)
        with step.where(layer.is_lowest):
            step.grow(embedded, stage.embedded)
    step.drop(embedded)
    _pass(step, traffic, stage.head)
    step.resize(stream, stage.head_kept)
    logits = step.take("logits", "logits", stage.forward_logits)
    step.resize(logits, stage.kept_logits)
    run_beside_policy(step, stage.companions)
    step.phase = BACKWARD
    step.resize(logits, stage.logits)
    step.resize(logits, stage.logits_gradient)
    message = step.take("activations", "gradient of the stream", stage.message)
    step.drop(step.take("gradients", "head's gradient", stage.head_gradient), logits, stream)
    tied = step.take("gradients", "gradient of a table that waits", stage.tied)
    if not stage.moments_before_bucket:
        step.resize(bucket, stage.bucket)
    _pass(step, traffic, stage.head_back)
    step.drop(message)
    for layer in step.each(stage.layers, downwards=True):
        own = layer.bytes
        step.resize(kept[layer], own.beside_moments)
        unsaved, first = only(layer.is_lowest, stage.unsaved), stage.moments_before_bucket
        if first:
            step.moments(own.moments[:first], unsaved=unsaved)
            with step.where(layer.is_highest):
                step.resize(bucket, stage.bucket)
        if own.moments[first:]:
            step.moments(own.moments[first:], unsaved=unsaved)
        step.drop(kept[layer])
        step.resize(traffic, traffic.amount + own.traffic.left)
    step.resize(second_copy, stage.second_copy)
    message = step.take("activations", "gradient of the stream", stage.message)
    step.drop(step.take("gradients", "gradient of the table's rows", stage.tied), tied)
    _pass(step, traffic, stage.embedding_back)
    step.drop(message, lasting.passes)
    step.phase = REDUCTION
    step.drop(step.take("communication", "last bucket reduced", stage.flush))
    step.drop(step.take("communication", "all gradients reduced", stage.at_boundary))
    step.drop(traffic, bucket, persistent)
    step.resize(lasting.gradients, stage.rest.all_gradients)
    update(step, stage.rest)
    step.drop(second_copy)


def _item_of_traffic(stage: ZeroEngineStage) -> str:
    """Return what an account calls the tensors that come and go; in a list's sums it makes no difference."""
    return "communication" if np.all(stage.sends_as_it_goes) else "gradients"


def _pass(step: Step, traffic: Held, of: Pass) -> None:
    """Let a part's tensors come and go, and keep what is left of them."""
    step.drop(step.take(traffic.item, traffic.name, of.most))
    step.resize(traffic, traffic.amount + of.left)
