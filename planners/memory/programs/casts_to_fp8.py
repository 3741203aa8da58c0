"""Moments of a layer at which torchao's products cast what they multiply to fp8, one operation after the other.

Source: torchao, float8/float8_linear.py, `matmul_with_hp_or_float8_args`, and over tensor-parallel ranks
float8/float8_tensor_parallel.py, whose inputs are cast before they are gathered and kept so.
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.formats.precision import FP8_BYTES
from plimsoll.planners.layouts.candidates import NONE, FloatArray
from plimsoll.planners.memory.activity import LayerBackward
from plimsoll.planners.memory.holdings import LayerHoldings
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, Moment

# Of a gated feed-forward the activation's output and the second half, which its product's gradient lets go of.
FREED_HALVES = 2
# A norm in separate operations saves its input in fp32 and its normalised output, each in units of 16 bits.
NORM_IN_FP32 = 3.0


def casts_to_fp8(
    asked: Question, held: LayerHoldings, layer: LayerBackward, *, gradient_bytes: FloatArray
) -> tuple[Moment, ...]:
    """Return the moments of a layer's casts of `held.last_matrix` and of the tensors around it.

    A matrix is cast before it has a gradient of its own; its input is, for that gradient, when its own gradient is
    done. Until a product's backward pass returns it holds the casts of its output's gradient and of the matrix.
    """
    job, layouts = asked.job, asked.layouts
    size, cast_bytes = job.precision.compute_bytes, job.profile.kernels.fp8_cast_bytes
    is_split = layouts.tensor_parallel > 1
    to_fp8, message = FP8_BYTES / size, asked.active.p2p_message
    matrix, of_matrix = held.last_matrix, cast_bytes * held.last_matrix
    widest = layer.last_matmul_gradients - message
    product = np.where(is_split, to_fp8, 1.0) * widest  # as the last matrix keeps its input
    at_input = 2.0 * to_fp8 * message + FP8_BYTES * matrix + widest * cast_bytes / size
    gathered = np.where(layouts.sequence_parallel, layouts.tensor_parallel, 1) * to_fp8 * message
    # The residual and its gradient; over tensor-parallel ranks, which keep neither, the feed-forward's input as well
    # and the gathered gradient, and in place of a cast of the last matrix's input that in 16 bits.
    beside = np.where(is_split, 3.0 * message + gathered + widest, 2.0 * message + to_fp8 * widest)
    second_run = np.where(layouts.recompute == NONE, 0.0, layer.working_set + beside)
    widened = (cast_bytes - FP8_BYTES) / size * widest
    # The gradient of what is cast stays in 16 bits too, unless tensor-parallel ranks pass it on in fp8 alone.
    cast_gradient = np.where(is_split, to_fp8, 1.0 + to_fp8) * widest
    halves = widest + cast_gradient - FREED_HALVES * widest - product
    return (
        Moment("second run's input cast", np.where(is_split, second_run + widened, 0.0), NO_BYTES),
        Moment("second run's matrix cast", np.where(second_run > 0.0, second_run + of_matrix, 0.0), NO_BYTES),
        Moment("last matrix cast", layer.working_set + message + gathered + of_matrix, NO_BYTES),
        Moment(
            "its input cast",
            np.where(is_split, 0.0, layer.working_set + layer.last_matmul_gradients + at_input),
            NO_BYTES,
        ),
        Moment("second matrix cast", layer.working_set + halves + message + of_matrix, gradient_bytes * matrix),
        Moment(
            "first matrix cast",
            _at_first_matrix(asked, layer) + cast_gradient + of_matrix,
            gradient_bytes * np.maximum(held.feed_forward - matrix, 0.0),
        ),
    )


def _at_first_matrix(asked: Question, layer: LayerBackward) -> FloatArray:
    """Return what is alive as the feed-forward's first matrix is cast, beside the gradient of what it wrote.

    All that the attention saves, what the second norm does, that norm's output and its gradient, which over
    tensor-parallel ranks are whole on each, and the residual's gradient.
    """
    job, layouts, message = asked.job, asked.layouts, asked.active.p2p_message
    to_fp8 = FP8_BYTES / job.precision.compute_bytes
    gathered = np.where(layouts.sequence_parallel, layouts.tensor_parallel, 1)
    output = np.where(layouts.tensor_parallel > 1, (1.0 + to_fp8) * gathered, 2.0) * message
    norm = NORM_IN_FP32 if job.profile.kernels.norm_keeps_fp32 else 1.0
    # Of narrow heads the input norm's own backward pass holds more than the attention has saved.
    before = np.maximum(layer.at_second_norm - layer.at_input_norm, 0.0)
    result: FloatArray = before + (norm + 1.0) * message + output
    return result
