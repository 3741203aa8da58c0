"""Schemes that cut each row into groups of input features.

A row's last group may be shorter; it is filled up with its own last value while
it is scaled, which changes neither its range nor its largest magnitude.
"""

from __future__ import annotations

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, Span, row_spans
from plimsoll.service.worker.quantization.kernels.native_kernels import PIECE_ELEMENTS
from plimsoll.service.worker.quantization.schemes.group_codes import (
    GroupCodes,
    GroupPiece,
    pack_nibbles,
    unpack_nibbles,
)
from plimsoll.service.worker.quantization.schemes.quantized import (
    QuantizedTensor,
    Restore,
    check_finite,
    check_scales,
    rows_and_columns,
)


class GroupScaled:
    """A scheme with groups of `group_size` input features."""

    def __init__(self, codes: GroupCodes, *, group_size: int) -> None:
        self._codes = codes
        self._group_size = group_size
        self._per_byte = 2 if codes.packs_pairs else 1

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return codes and scales; raises `NonFiniteWeights`."""
        rows, columns = rows_and_columns(tuple(weight.shape))
        matrix = weight.reshape(rows, columns)
        stored = torch.empty(
            -(-rows * columns // self._per_byte),
            dtype=torch.uint8 if self._codes.packs_pairs else torch.int8,
            device=weight.device,
        )
        scales = {
            name: torch.empty(rows, -(-columns // self._group_size), dtype=dtype, device=weight.device)
            for name, dtype in self._codes.scale_parts.items()
        }
        kernels = workers.kernels_for(matrix) if self._suits_kernels(columns) else None

        def quantize_rows(start: int, stop: int) -> torch.Tensor:
            piece = GroupPiece(
                line=matrix[start:stop],
                group_size=self._group_size,
                stored=stored[start * columns // self._per_byte : -(-stop * columns // self._per_byte)],
                scales={name: part[start:stop] for name, part in scales.items()},
            )
            if kernels is not None:
                return torch.tensor(self._codes.run_kernel(kernels, piece))
            return self._fill(piece)

        largest = workers.map(quantize_rows, row_spans(rows, columns, workers.chunk_elements))
        check_finite(torch.stack(largest))
        for part in scales.values():
            if part.is_floating_point():
                check_scales(part)
        parts = {"codes": stored, **scales}
        if "zero_point" in parts:
            parts["zero_point"] = pack_nibbles(parts["zero_point"].view(-1))
        return QuantizedTensor(shape=tuple(weight.shape), parts=parts)

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of whole rows, in elements."""
        rows, columns = rows_and_columns(shape)
        return [(start * columns, stop * columns) for start, stop in row_spans(rows, columns, chunk_elements)]

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:  # noqa: ARG002
        """Return a function from a span of whole rows to its weights in fp32."""
        rows, columns = rows_and_columns(quantized.shape)
        num_groups = -(-columns // self._group_size)
        stored = quantized.parts["codes"]
        scales = {name: quantized.parts[name] for name in self._codes.scale_parts}
        if "zero_point" in scales:
            zero_points = unpack_nibbles(scales["zero_point"])[: rows * num_groups]
            scales["zero_point"] = zero_points.view(rows, num_groups)

        def restore_span(start: int, stop: int) -> torch.Tensor:
            decoded = self._codes.decode(stored[start // self._per_byte : -(-stop // self._per_byte)])[: stop - start]
            of_rows = {name: part[start // columns : stop // columns] for name, part in scales.items()}
            groups = self._grouped(decoded.view(-1, columns))
            restored = self._codes.rescale(groups, of_rows).view(-1, num_groups * self._group_size)
            return restored[:, :columns].reshape(-1)

        return restore_span

    def _fill(self, piece: GroupPiece) -> torch.Tensor:
        """Fill a piece's parts by torch operations, unless it is not finite; return its largest magnitude."""
        rows, columns = piece.line.shape
        groups = self._grouped(piece.line.float())
        largest = groups.abs().amax()
        if not bool(torch.isfinite(largest)):
            return largest
        found = self._codes.scales(groups)
        for name, part in found.items():
            piece.scales[name].copy_(part)
        encoded = self._codes.encode(groups, found).view(rows, -1)[:, :columns].reshape(-1)
        if encoded.numel() % self._per_byte:
            encoded = torch.nn.functional.pad(encoded, (0, 1))
        piece.stored.copy_(self._codes.pack(encoded))
        return largest

    def _suits_kernels(self, columns: int) -> bool:
        return columns % self._group_size == 0 and self._group_size <= PIECE_ELEMENTS

    def _grouped(self, matrix: torch.Tensor) -> torch.Tensor:
        rows, columns = matrix.shape
        missing = -columns % self._group_size
        if missing:
            matrix = torch.cat([matrix, matrix[:, -1:].expand(rows, missing)], dim=1)
        return matrix.view(rows, -1, self._group_size)
