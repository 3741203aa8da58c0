"""What the scores that a mixture's dispatcher remembers hold on to once the mixture has been recomputed.

Megatron-Core's dispatcher names its latest scores until the layer goes forward again, and with them their graph. Where
a layer is recomputed that begins with a tensor of its own, the second run's input, which has a gradient.

Source: Megatron-Core 0.16.1, core/tensor_parallel/random.py (`CheckpointFunction.backward`), and
core/transformer/moe/token_dispatcher.py (`MoEAlltoAllTokenDispatcher.dispatch_preprocess`).
"""

from __future__ import annotations

import numpy as np

from plimsoll.planners.jobs.recompute_modules import MIXTURE
from plimsoll.planners.layouts.candidates import ALL_LAYERS, FULL, BoolArray, FloatArray, any_of, recomputes_module
from plimsoll.planners.layouts.stages import layers_of_highest
from plimsoll.planners.memory.activity import LayerActivity
from plimsoll.planners.memory.programs.paired import REMEMBERED_TENSORS
from plimsoll.planners.memory.programs.question import Question
from plimsoll.planners.memory.steps.on_rank import NO_BYTES, some


def remembered_below_head(asked: Question) -> FloatArray:
    """Return what an interleaved last stage holds of its other chunks' layers as its highest one is at work.

    Between two passes of that each of the others was last gone through backwards, once there is a second round.
    """
    layouts, rows, job = asked.layouts, asked.rows, asked.job
    mixtures = [layer for layer in asked.active.layers if any_of(layer.saved_routing)]
    if not mixtures or not job.profile.kernels.transformer_engine or layouts.virtual_pipeline.max() == 1:
        return NO_BYTES
    is_whole = (layouts.recompute == FULL) & (layouts.full_layers == ALL_LAYERS)
    of_mixture = recomputes_module(layouts, job, MIXTURE)
    goes_round = layouts.micro_batches(job.global_batch_size) > layouts.pipeline_parallel
    others = rows.layers - layers_of_highest(layouts, rows.pipelines)
    exists = rows.has_head & (layouts.virtual_pipeline > 1) & goes_round & (is_whole | of_mixture)
    return some(np.where(exists, REMEMBERED_TENSORS * others * np.ceil(asked.active.p2p_message), 0.0))


def remembered_bytes(asked: Question, own: LayerActivity, recomputed: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return what is held of a layer that has been differentiated, and what of it the layer below has as well.

    That is the gradient of the latter's output, where the whole layer was recomputed. Nothing of a dense layer.
    """
    if not any_of(own.saved_routing):
        return NO_BYTES, NO_BYTES
    message = np.ceil(asked.active.p2p_message)
    of_mixture = recomputes_module(asked.layouts, asked.job, MIXTURE)
    remembered = np.where(recomputed | of_mixture, REMEMBERED_TENSORS * message, 0.0)
    return some(remembered), some(np.where(recomputed, message, 0.0))
