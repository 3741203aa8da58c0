"""How far a layer's output is from what it would be: random activations through original and restored weights.

Activations are normal but for one input feature in a thousand, which is twenty
times as large, as in transformers from 6.7 billion parameters on. Through normal
activations alone the output's error would be that of the weights.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 4.1 (0.1 % of the features, 20 times the magnitude).
"""

from __future__ import annotations

import functools

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers
from plimsoll.service.worker.quantization.measuring.error import ErrorSums
from plimsoll.service.worker.quantization.measuring.error_histogram import error_histogram
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor, Quantizer, rows_and_columns

TOKENS = 16
OUTLIER_FEATURE_EVERY = 1000
OUTLIER_FACTOR = 20.0
ACTIVATION_SEED = 0
# A sample of the output features keeps this cheaper than the quantization itself; so many elements are whole
# blocks of every scheme, and the error of a hundred outputs for each token is known to 2 %.
SAMPLE_ELEMENTS = 2**18
LARGEST_BLOCK_ELEMENTS = 4096


def sampled_error(
    weight: torch.Tensor, quantized: QuantizedTensor, scheme: Quantizer, workers: ChunkWorkers
) -> ErrorSums:
    """Return the sums over the outputs of the tensor's first rows, as many as a quarter of a million weights make up.

    The products are summed in fp32. The histogram of the weights' own errors comes
    with them, from the same sample.
    """
    _, columns = rows_and_columns(quantized.shape)
    row_elements = -(-columns // LARGEST_BLOCK_ELEMENTS) * LARGEST_BLOCK_ELEMENTS
    first_span = scheme.spans(quantized.shape, max(SAMPLE_ELEMENTS, row_elements))[0]

    def sums(start: int, stop: int) -> ErrorSums:
        rows = (stop - start) // columns
        original = weight.reshape(-1)[: rows * columns].float().view(rows, columns)
        restored = scheme.restore(quantized, workers)(start, stop)[: rows * columns].view(rows, columns)
        return _sums(original, restored.sub_(original))

    # On one thread: so small a job is done before others have been woken.
    return workers.map(sums, [first_span])[0]


def _sums(original: torch.Tensor, difference: torch.Tensor) -> ErrorSums:
    activations = _activations(original.shape[1], original.device)
    return ErrorSums(
        output_squares=float((activations @ original.T).double().square().sum()),
        output_error_squares=float((activations @ difference.T).double().square().sum()),
        histogram=error_histogram(original, difference),
    )


@functools.lru_cache(maxsize=8)
def _activations(features: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ACTIVATION_SEED)
    activations = torch.randn(TOKENS, features, generator=generator)
    activations[:, OUTLIER_FEATURE_EVERY // 2 :: OUTLIER_FEATURE_EVERY] *= OUTLIER_FACTOR
    return activations.to(device)
