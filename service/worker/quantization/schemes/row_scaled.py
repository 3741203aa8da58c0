"""One scale for each output feature: LLM.int8, and fp8 by channels."""

from __future__ import annotations

from typing import Protocol

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, Span, row_spans
from plimsoll.service.worker.quantization.kernels.native_kernels import NativeKernels
from plimsoll.service.worker.quantization.schemes.eight_bit_codes import e4m3_codes, e4m3_scales
from plimsoll.service.worker.quantization.schemes.quantized import (
    QuantizedTensor,
    Restore,
    check_finite,
    rows_and_columns,
)

LLM_INT8_LARGEST = 127.0


class RowCodes(Protocol):
    """How rows become codes and back. `part` is what the scales of a tensor, fp32 a row, are called."""

    dtype: torch.dtype
    part: str
    checked_values: str

    def fill(self, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Fill codes and scales of some rows; those of a row that is not finite have no finite scale."""
        ...

    def run_kernel(
        self, kernels: NativeKernels, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Fill the same by a compiled kernel."""
        ...

    def steps(self, scales: torch.Tensor) -> torch.Tensor:
        """Return what the codes of each row are multiples of."""
        ...


class RowScaled:
    """A scheme with one scale a row."""

    def __init__(self, codes: RowCodes) -> None:
        self._codes = codes

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return codes and row scales; a row of zeros has scale 0. Raises `NonFiniteWeights`."""
        rows, columns = rows_and_columns(tuple(weight.shape))
        matrix = weight.reshape(rows, columns)
        codes = torch.empty(rows, columns, dtype=self._codes.dtype, device=weight.device)
        scales = torch.empty(rows, dtype=torch.float32, device=weight.device)
        kernels = workers.kernels_for(matrix)

        def quantize_rows(start: int, stop: int) -> None:
            if kernels is None:
                self._codes.fill(matrix[start:stop], codes[start:stop], scales[start:stop])
            else:
                self._codes.run_kernel(kernels, matrix[start:stop], codes[start:stop], scales[start:stop])

        workers.map(quantize_rows, row_spans(rows, columns, workers.chunk_elements))
        check_finite(scales, what=self._codes.checked_values)
        return QuantizedTensor(shape=tuple(weight.shape), parts={"codes": codes, self._codes.part: scales})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of whole rows, in elements."""
        rows, columns = rows_and_columns(shape)
        return [(start * columns, stop * columns) for start, stop in row_spans(rows, columns, chunk_elements)]

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span of whole rows to its weights in fp32."""
        codes = quantized.parts["codes"]
        steps = self._codes.steps(quantized.parts[self._codes.part])
        columns = codes.shape[1]

        def restore_span(start: int, stop: int) -> torch.Tensor:
            rows = slice(start // columns, stop // columns)
            return (codes[rows].float() * steps[rows].unsqueeze(1)).view(-1)

        return restore_span


class LlmInt8Rows:
    """int8 codes under the row's largest magnitude itself, which bitsandbytes calls SCB.

    bitsandbytes casts weights to fp16 first, so what exceeds 65,504 has no finite
    code.

    Source: Dettmers et al. 2022, arXiv:2208.07339, section 3; codes and scales
    equal those of bitsandbytes 0.50.2 (Int8Params, int8_vectorwise_quant).
    """

    dtype = torch.int8
    part = "absmax"
    checked_values = "values (after LLM.int8's cast to fp16)"

    def fill(self, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Fill codes and largest magnitudes; a row of zeros has codes 0."""
        values = matrix.to(torch.float16).float()
        largest = torch.amax(values.abs(), dim=1)
        scales.copy_(largest)
        factors = torch.where(largest > 0, LLM_INT8_LARGEST / largest, 0.0)
        codes.copy_(values.mul_(factors.unsqueeze(1)).round_())

    def run_kernel(
        self, kernels: NativeKernels, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Fill the same by the compiled kernel."""
        kernels.quantize_int8_rows(matrix, codes=codes, absmax=scales)

    def steps(self, scales: torch.Tensor) -> torch.Tensor:
        """Return a 127th of the largest magnitudes."""
        return scales / LLM_INT8_LARGEST


class E4m3Rows:
    """e4m3 codes under the row's largest magnitude over 448, as torchao's rowwise scaling has them."""

    dtype = torch.float8_e4m3fn
    part = "scale"
    checked_values = "values"

    def fill(self, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Fill codes and scales."""
        scales.copy_(e4m3_scales(torch.amax(matrix.abs(), dim=1).float()))
        codes.copy_(e4m3_codes(matrix.float(), scales.unsqueeze(1)))

    def run_kernel(
        self, kernels: NativeKernels, matrix: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor
    ) -> None:
        """Fill the same by the compiled kernel."""
        kernels.quantize_e4m3_rows(matrix, codes=codes, scales=scales)

    def steps(self, scales: torch.Tensor) -> torch.Tensor:
        """Return the scales, of which the codes are multiples."""
        return scales
