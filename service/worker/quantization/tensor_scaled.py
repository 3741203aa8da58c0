"""int8 and fp8 with one scale for the whole tensor."""

from __future__ import annotations

import torch

from service.worker.quantization.chunk_workers import ChunkWorkers, Span, even_spans
from service.worker.quantization.quantized import QuantizedTensor, Restore, check_finite
from service.worker.quantization.row_scaled import E4M3_LARGEST

# 2 x amax is the tensor's range and 254 the steps from -127 to 127.
INT8_STEPS = 254
INT8_LEAST, INT8_LARGEST = -128, 127


class TensorScaled:
    """One scale a tensor: `amax` is the largest magnitude, codes are weights over the scale."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Take `torch.int8` or `torch.float8_e4m3fn`."""
        self._dtype = dtype

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return codes and scale; a tensor of zeros has scale 0. Raises `NonFiniteWeights`."""
        line = weight.reshape(-1)
        spans = even_spans(line.numel(), workers.chunk_elements)
        kernels = workers.kernels_for(line)
        if kernels is None:
            largest = workers.map(lambda start, stop: line[start:stop].abs().amax(), spans)
        else:
            largest = workers.map(lambda start, stop: torch.tensor(kernels.largest_magnitude(line[start:stop])), spans)
        amax = torch.stack(largest).amax().float()
        check_finite(amax)
        scale = 2 * amax / INT8_STEPS if self._dtype is torch.int8 else amax / E4M3_LARGEST
        divisor = torch.where(scale > 0, scale, 1.0)
        codes = torch.empty(line.numel(), dtype=self._dtype, device=line.device)

        def quantize_span(start: int, stop: int) -> None:
            if kernels is not None:
                fill = kernels.quantize_int8 if self._dtype is torch.int8 else kernels.quantize_e4m3
                fill(line[start:stop], divisor=divisor.item(), codes=codes[start:stop])
                return
            codes[start:stop] = self._rounded(line[start:stop].float() / divisor)

        workers.map(quantize_span, spans)
        return QuantizedTensor(shape=tuple(weight.shape), parts={"codes": codes, "scale": scale})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of any elements."""
        return even_spans(torch.Size(shape).numel(), chunk_elements)

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span to its weights in fp32."""
        codes, scale = quantized.parts["codes"], quantized.parts["scale"]
        return lambda start, stop: codes[start:stop].float().mul_(scale)

    def _rounded(self, steps: torch.Tensor) -> torch.Tensor:
        if self._dtype is torch.int8:
            return steps.round_().clamp_(INT8_LEAST, INT8_LARGEST)
        return steps.clamp_(-E4M3_LARGEST, E4M3_LARGEST)
