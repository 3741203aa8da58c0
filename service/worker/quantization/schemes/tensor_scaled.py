"""int8 and fp8 with one scale for the whole tensor."""

from __future__ import annotations

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, Span, even_spans
from plimsoll.service.worker.quantization.schemes.eight_bit_codes import (
    e4m3_codes,
    e4m3_scales,
    int8_codes,
    int8_scales,
)
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor, Restore, check_finite, check_scales


class TensorScaled:
    """One scale a tensor, of its largest magnitude; codes are weights over the scale."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Take `torch.int8` or `torch.float8_e4m3fn`."""
        self._dtype = dtype
        is_int8 = dtype is torch.int8
        self._scale_of, self._codes_of = (int8_scales, int8_codes) if is_int8 else (e4m3_scales, e4m3_codes)

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
        scale = self._scale_of(amax)
        check_scales(scale)
        codes = torch.empty(line.numel(), dtype=self._dtype, device=line.device)

        def quantize_span(start: int, stop: int) -> None:
            if kernels is not None:
                fill = kernels.quantize_int8 if self._dtype is torch.int8 else kernels.quantize_e4m3
                fill(line[start:stop], divisor=scale.item() or 1.0, codes=codes[start:stop])
                return
            codes[start:stop] = self._codes_of(line[start:stop].float(), scale)

        workers.map(quantize_span, spans)
        return QuantizedTensor(shape=tuple(weight.shape), parts={"codes": codes, "scale": scale})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of any elements."""
        return even_spans(torch.Size(shape).numel(), chunk_elements)

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span to its weights in fp32."""
        codes, scale = quantized.parts["codes"], quantized.parts["scale"]
        return lambda start, stop: codes[start:stop].float().mul_(scale)
