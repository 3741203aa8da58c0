"""NF4 and FP4: 4-bit codes, one scale for each block of a tensor read as one line.

Source: Dettmers et al. 2023, arXiv:2305.14314. Bytes equal those of
bitsandbytes 0.50.2 on a CPU (its CUDA kernels differ in an all-zero block, in
three fp32 numbers of 45 million and in one nested scale of 600).
"""

from __future__ import annotations

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, Span, even_spans
from plimsoll.service.worker.quantization.schemes.double_quantization import quantize_scales, restore_scales
from plimsoll.service.worker.quantization.schemes.four_bit_codes import CodeBook
from plimsoll.service.worker.quantization.schemes.quantized import QuantizedTensor, Restore, check_finite, check_scales

# bitsandbytes' floor under a scale, so that a block of zeros divides.
LEAST_SCALE = 1e-38


class BlockScaled:
    """NF4 or FP4 with blocks of `block_size`, an even number that divides a chunk."""

    def __init__(self, book: CodeBook, *, block_size: int, double_quantization: bool) -> None:
        self._book = book
        self._block_size = block_size
        self._double_quantization = double_quantization

    def quantize(self, weight: torch.Tensor, workers: ChunkWorkers) -> QuantizedTensor:
        """Return the codes, two a byte, and the scales; raises `NonFiniteWeights`."""
        line = weight.reshape(-1)
        elements = line.numel()
        whole = elements - elements % self._block_size
        packed = torch.empty(-(-elements // 2), dtype=torch.uint8, device=line.device)
        absmax = torch.empty(-(-elements // self._block_size), dtype=torch.float32, device=line.device)

        kernels = workers.kernels_for(line)
        thresholds, codes = self._book.tensors()

        def quantize_span(start: int, stop: int) -> None:
            if kernels is not None:
                kernels.quantize_blocks(
                    line[start:stop],
                    block_size=self._block_size,
                    thresholds=thresholds,
                    codes=codes,
                    packed=packed[start // 2 : stop // 2],
                    absmax=absmax[start // self._block_size : stop // self._block_size],
                )
                return
            blocks = line[start:stop].float().view(-1, self._block_size)
            scales = torch.amax(blocks.abs(), dim=-1)
            absmax[start // self._block_size : stop // self._block_size] = scales
            reciprocals = 1.0 / scales.clamp(min=LEAST_SCALE)
            # No clamp to [-1, 1]: whatever exceeds the last threshold has the last code.
            packed[start // 2 : stop // 2] = self._book.encode_pairs((blocks * reciprocals.unsqueeze(1)).view(-1))

        workers.map(quantize_span, even_spans(whole, workers.chunk_elements))
        if whole < elements:
            packed[whole // 2 :], absmax[-1] = self._last_block(line[whole:].float())
        check_finite(absmax)
        scales = (
            quantize_scales(absmax, workers.kernels_for(absmax)) if self._double_quantization else {"absmax": absmax}
        )
        if self._double_quantization:
            check_scales(scales["nested_offset"])
        return QuantizedTensor(shape=tuple(weight.shape), parts={"packed": packed, **scales})

    def spans(self, shape: tuple[int, ...], chunk_elements: int) -> list[Span]:
        """Return spans of whole blocks."""
        return even_spans(torch.Size(shape).numel(), chunk_elements)

    def restore(self, quantized: QuantizedTensor, workers: ChunkWorkers) -> Restore:
        """Return a function from a span of whole blocks to its weights in fp32."""
        parts = quantized.parts
        scales = parts["absmax"]
        if self._double_quantization:
            scales = restore_scales(scales, parts["nested_absmax"], parts["nested_offset"])
        packed, block_size = parts["packed"], self._block_size
        kernels = workers.kernels_for(scales)
        pairs = self._book.value_pairs(packed.device)

        def restore_span(start: int, stop: int) -> torch.Tensor:
            if kernels is not None and (stop - start) % block_size == 0:
                restored = torch.empty(stop - start, dtype=torch.float32)
                kernels.restore_blocks(
                    packed[start // 2 : stop // 2],
                    block_size=block_size,
                    pairs=pairs,
                    scales=scales[start // block_size : stop // block_size],
                    restored=restored,
                )
                return restored
            values = self._book.decode_pairs(packed[start // 2 : -(-stop // 2)])[: stop - start]
            whole = (stop - start) // block_size
            values[: whole * block_size].view(-1, block_size).mul_(
                scales[start // block_size : start // block_size + whole].unsqueeze(1)
            )
            if whole * block_size < stop - start:
                values[whole * block_size :].mul_(scales[-1])
            return values

        return restore_span

    def _last_block(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes and scale of a block that is not full.

        Here bitsandbytes divides by the scale where it multiplies whole blocks by
        the reciprocal, and stores the scale after its floor.
        """
        scale = values.abs().amax().clamp(min=LEAST_SCALE)
        scaled = values / scale
        if scaled.numel() % 2:
            scaled = torch.nn.functional.pad(scaled, (0, 1))
        return self._book.encode_pairs(scaled), scale
