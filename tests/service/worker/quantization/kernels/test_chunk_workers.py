"""Pieces of tensors, and the threads that work through them."""

import pytest
import torch

from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers, even_spans, row_spans


def test_spans_cover_everything_once():
    assert even_spans(10, 4) == [(0, 4), (4, 8), (8, 10)]
    assert even_spans(8, 4) == [(0, 4), (4, 8)]
    assert even_spans(0, 4) == []


@pytest.mark.parametrize(
    ("columns", "rows_per_span"), [(1, 100), (10, 10), (30, 2), (34, 2), (50, 2), (51, 2), (200, 2)]
)
def test_spans_of_rows_begin_at_even_rows(columns, rows_per_span):
    spans = row_spans(101, columns, 100)
    assert spans[0] == (0, rows_per_span)
    assert spans[-1][1] == 101
    assert all(start % 2 == 0 for start, _ in spans)


def test_answers_come_in_the_order_of_the_spans():
    with ChunkWorkers(threads=2) as workers:
        assert workers.map(lambda start, stop: stop - start, [(0, 3), (3, 4)]) == [3, 1]


def test_an_error_in_a_piece_is_raised():
    with ChunkWorkers(threads=2) as workers, pytest.raises(ZeroDivisionError):
        workers.map(lambda start, stop: 1 // start, [(0, 1), (1, 2)])


def test_workers_that_do_not_run_refuse_work():
    with pytest.raises(RuntimeError, match="not running"):
        ChunkWorkers().map(lambda start, stop: None, [(0, 1)])


def test_each_thread_computes_alone_and_torch_gets_its_threads_back():
    before = torch.get_num_threads()
    with ChunkWorkers(threads=2) as workers:
        assert workers.map(lambda start, stop: torch.get_num_threads(), [(0, 1), (1, 2)]) == [1, 1]
    assert torch.get_num_threads() == before
