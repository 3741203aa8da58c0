"""The angles of positions that a rank keeps, and their cosines and sines: for all layers once, or for each."""

from __future__ import annotations

import numpy as np

from plimsoll.planners.architecture import OperationKind
from plimsoll.planners.formats.precision import FP32_BYTES
from plimsoll.planners.jobs.job import Job
from plimsoll.planners.layouts.candidates import FloatArray, IntArray
from plimsoll.planners.memory.latents import KEY_VALUE_LATENT

# functools.lru_cache(maxsize=32) in Megatron-Core 0.16.1, models/common/embeddings/yarn_rotary_pos_embedding.py.
MOST_REMEMBERED_ANGLES = 32


def rotary_table_bytes(job: Job) -> int:
    """Return the cosines and sines of a sequence's positions, for all layers once, or 0 where the stack has tables."""
    if job.profile.kernels.rotary_table_bytes or has_tables_of_layers(job):
        return 0
    return 2 * job.precision.compute_bytes * _rotated_features(job) * job.sequence_length


def has_tables_of_layers(job: Job) -> bool:
    """Return whether every layer has angles of its own: Megatron-Core's latent attention has a rotation each."""
    return job.profile.kernels.transformer_engine and _latent_positions(job) > 0


def tables_of_layers(job: Job, layers: IntArray) -> FloatArray:
    """Return the angles of a sequence's positions in fp32, and their cosines and sines, of so many such layers.

    Source: Megatron-Core 0.16.1, models/common/embeddings/yarn_rotary_pos_embedding.py: `forward`, whose results are
    remembered for `MOST_REMEMBERED_ANGLES` layers, and `_set_cos_sin_cache`.
    """
    positions = _latent_positions(job) * job.sequence_length
    both = 2 * job.precision.compute_bytes * layers
    result: FloatArray = positions * (FP32_BYTES * np.minimum(layers, MOST_REMEMBERED_ANGLES) + both).astype(np.float64)
    return result


def _latent_positions(job: Job) -> int:
    """Return the features of a latent key that turn with its position; 0 where none do."""
    for block in (part.block for part in job.layers):
        widths = {tensor.name: tensor.width for tensor in block.tensors}
        turns = any(operation.kind is OperationKind.ROTARY for operation in block.operations)
        up = [op.matmul_shape for op in block.operations if op.inputs == (KEY_VALUE_LATENT,)]
        if turns and up and up[0] is not None:
            return widths[KEY_VALUE_LATENT] - up[0][0]
    return 0


def lasting_rotary_table_bytes(job: Job) -> int:
    """Return a stack's own tables of every position that the model has: one, or beside adapters one a layer."""
    kernels, model = job.profile.kernels, job.model
    positions = max(model.max_position_embeddings or 0, job.sequence_length)
    # A cosine and a sine for each pair of features.
    table = kernels.rotary_table_bytes * _rotated_features(job) * positions
    table *= 2 if model.model_type in kernels.doubled_tables else 1
    is_shared = job.method == "full" or positions >= kernels.one_table_from.get(model.model_type, positions + 1)
    return table if is_shared else table * model.num_layers


def rotary_cast_bytes(job: Job) -> int:
    """Return what a layer keeps of each position of a sequence: casts of a doubled table's part, for queries and keys.

    Source: torchtune, models/qwen2/_positional_embeddings.py, `forward`.
    """
    if job.model.model_type not in job.profile.kernels.doubled_tables or job.precision.compute_bytes == FP32_BYTES:
        return 0
    return 2 * 2 * job.precision.compute_bytes * _rotated_features(job)


def _rotated_features(job: Job) -> int:
    """Return the features of a head that turn with its position, 0 where none do."""
    for part in job.layers:
        kinds = {op.kind for op in part.block.operations}
        if OperationKind.ROTARY in kinds:
            return max(op.key_dim for op in part.block.operations)
    return 0
