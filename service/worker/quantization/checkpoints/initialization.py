"""Random weights, as an untrained model has them."""

from __future__ import annotations

import hashlib

import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, even_spans


def fill_normal(
    weight: torch.Tensor, *, name: str, seed: int, standard_deviation: float, workers: ChunkWorkers
) -> None:
    """Fill a contiguous tensor with normal numbers about zero, rounded to its dtype.

    Each piece has a generator of its own, seeded by `seed`, the tensor's name and
    the piece's place: neither the order of tensors nor the number of threads
    changes a number. Another kind of device gives other numbers.
    """
    line = weight.view(-1)

    def fill(start: int, stop: int) -> None:
        generator = torch.Generator(device=weight.device)
        generator.manual_seed(_piece_seed(seed, name, start))
        numbers = torch.empty(stop - start, dtype=torch.float32, device=weight.device)
        line[start:stop] = numbers.normal_(0.0, standard_deviation, generator=generator)

    workers.map(fill, even_spans(line.numel(), workers.chunk_elements))


def _piece_seed(seed: int, name: str, start: int) -> int:
    digest = hashlib.sha256(f"{seed}\n{name}\n{start}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
