"""LLM.int8: one scale for each output feature.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 3; codes and scales equal
those of bitsandbytes 0.50.2 (Int8Params, int8_vectorwise_quant).
"""

from __future__ import annotations

import torch

from service.worker.quantization.chunk_workers import ChunkWorkers, Span, row_spans
from service.worker.quantization.quantized import QuantizedTensor, Restore, check_finite, rows_and_columns

INT8_LARGEST = 127.0


class RowScaled:
    """int8 codes and, for each row, its largest magnitude (bitsandbytes' SCB)."""

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return codes and row scales; raises `NonFiniteWeights`.

        bitsandbytes casts weights to fp16 first, so what exceeds 65,504 has no
        finite code.
        """
        rows, columns = rows_and_columns(tuple(weight.shape))
        matrix = weight.reshape(rows, columns)
        codes = torch.empty(rows, columns, dtype=torch.int8, device=weight.device)
        absmax = torch.empty(rows, dtype=torch.float32, device=weight.device)

        kernels = workers.kernels_for(matrix)

        def quantize_rows(start: int, stop: int) -> None:
            if kernels is not None:
                kernels.quantize_int8_rows(matrix[start:stop], codes=codes[start:stop], absmax=absmax[start:stop])
                return
            values = matrix[start:stop].to(torch.float16).float()
            largest = torch.amax(values.abs(), dim=1)
            absmax[start:stop] = largest
            # A row of zeros has scale 0, and codes 0.
            factors = torch.where(largest > 0, INT8_LARGEST / largest, 0.0)
            codes[start:stop] = (values * factors.unsqueeze(1)).round_()

        workers.map(quantize_rows, row_spans(rows, columns, workers.chunk_elements))
        check_finite(absmax, what="values (after LLM.int8's cast to fp16)")
        return QuantizedTensor(shape=tuple(weight.shape), parts={"codes": codes, "absmax": absmax})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of whole rows, in elements."""
        rows, columns = rows_and_columns(shape)
        return [(start * columns, stop * columns) for start, stop in row_spans(rows, columns, chunk_elements)]

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span of whole rows to its weights in fp32."""
        codes, absmax = quantized.parts["codes"], quantized.parts["absmax"]
        columns = codes.shape[1]

        def restore_span(start: int, stop: int) -> torch.Tensor:
            rows = slice(start // columns, stop // columns)
            return (codes[rows].float() * (absmax[rows].unsqueeze(1) / INT8_LARGEST)).view(-1)

        return restore_span
