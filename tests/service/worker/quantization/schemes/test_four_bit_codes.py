from __future__ import annotations

import pytest
import torch

from plimsoll.service.worker.quantization.schemes.four_bit_codes import E2M1, FP4, NF4, CodeBook


def pair_codes(book: CodeBook, numbers: list[float]) -> list[int]:
    pairs = book.encode_pairs(torch.tensor(numbers, dtype=torch.float32)).tolist()
    return [code for pair in pairs for code in (pair >> 4, pair & 15)]


@pytest.mark.parametrize("book", [NF4, FP4, E2M1], ids=lambda book: book.name)
def test_a_threshold_itself_has_the_lower_rank_and_the_next_number_the_higher(book):
    thresholds = torch.tensor(book.thresholds)
    above = torch.nextafter(thresholds, torch.tensor(torch.inf))
    interleaved = torch.stack([thresholds, above], dim=1).flatten().tolist()
    # Rank i lies below threshold i, rank i + 1 above it.
    assert pair_codes(book, interleaved) == [book.codes[i + above] for i in range(15) for above in (0, 1)]


@pytest.mark.parametrize("book", [NF4, FP4, E2M1], ids=lambda book: book.name)
def test_every_power_of_two_has_the_rank_that_counting_thresholds_gives(book):
    magnitudes = torch.cat([torch.tensor([0.0, 2.0**-149]), 2.0 ** torch.arange(-126, 128)])
    numbers = torch.cat([magnitudes, -magnitudes]).tolist()
    ranks = [sum(number > threshold for threshold in book.thresholds) for number in numbers]
    assert pair_codes(book, numbers) == [book.codes[rank] for rank in ranks]


def test_thresholds_nearer_than_the_table_tells_apart_are_refused():
    # 0.5 to 0.5625 share the sign, the exponent and three bits of fraction.
    near = CodeBook(
        name="near", values=tuple(range(16)), codes=tuple(range(16)), thresholds=(0.51, 0.52, *map(float, range(1, 14)))
    )
    with pytest.raises(ValueError, match="Two thresholds of near are too near"):
        near.encode_pairs(torch.zeros(2))
