"""One scale for each output feature: LLM.int8, and fp8 by channels.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 3; codes and scales of
int8 equal those of bitsandbytes 0.50.2 (Int8Params, int8_vectorwise_quant), of
fp8 those of torchao's rowwise scaling.
"""

from __future__ import annotations

import torch

from service.worker.quantization.chunk_workers import ChunkWorkers, Span, row_spans
from service.worker.quantization.quantized import QuantizedTensor, Restore, check_finite, rows_and_columns

INT8_LARGEST = 127.0
# Micikevicius et al. 2022, arXiv:2209.05433, table 1.
E4M3_LARGEST = 448.0


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
        return _row_spans_in_elements(shape, chunk_elements)

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span of whole rows to its weights in fp32."""
        return _restore_rows(quantized.parts["codes"], quantized.parts["absmax"] / INT8_LARGEST)


class RowScaledFloat:
    """e4m3 codes and, for each row, its largest magnitude over 448."""

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return codes and row scales; a row of zeros has scale 0. Raises `NonFiniteWeights`."""
        rows, columns = rows_and_columns(tuple(weight.shape))
        matrix = weight.reshape(rows, columns)
        codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight.device)
        scale = torch.empty(rows, dtype=torch.float32, device=weight.device)
        kernels = workers.kernels_for(matrix)

        def quantize_rows(start: int, stop: int) -> None:
            largest = torch.amax(matrix[start:stop].abs(), dim=1).float()
            scale[start:stop] = largest / E4M3_LARGEST
            divisors = torch.where(largest > 0, scale[start:stop], 1.0)
            if kernels is None:
                steps = matrix[start:stop].float() / divisors.unsqueeze(1)
                codes[start:stop] = steps.clamp_(-E4M3_LARGEST, E4M3_LARGEST)
                return
            for row, divisor in enumerate(divisors.tolist(), start):
                kernels.quantize_e4m3(matrix[row], divisor=divisor, codes=codes[row])

        workers.map(quantize_rows, row_spans(rows, columns, workers.chunk_elements))
        check_finite(scale)
        return QuantizedTensor(shape=tuple(weight.shape), parts={"codes": codes, "scale": scale})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of whole rows, in elements."""
        return _row_spans_in_elements(shape, chunk_elements)

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span of whole rows to its weights in fp32."""
        return _restore_rows(quantized.parts["codes"], quantized.parts["scale"])


def _row_spans_in_elements(shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
    rows, columns = rows_and_columns(shape)
    return [(start * columns, stop * columns) for start, stop in row_spans(rows, columns, chunk_elements)]


def _restore_rows(codes: torch.Tensor, steps: torch.Tensor) -> Restore:
    """Return a function from a span of whole rows to its codes times each row's step, in fp32."""
    columns = codes.shape[1]

    def restore_span(start: int, stop: int) -> torch.Tensor:
        rows = slice(start // columns, stop // columns)
        return (codes[rows].float() * steps[rows].unsqueeze(1)).view(-1)

    return restore_span
