"""Random weights are seeded by name and place."""

import pytest
import torch

from plimsoll.service.worker.quantization.checkpoints.initialization import fill_normal
from plimsoll.service.worker.quantization.kernels.chunk_workers import ChunkWorkers


def filled(*, name="q_proj", seed=0, threads=1, deviation=0.02, shape=(600, 512)):
    weight = torch.empty(shape, dtype=torch.bfloat16)
    with ChunkWorkers(threads=threads) as workers:
        fill_normal(weight, name=name, seed=seed, standard_deviation=deviation, workers=workers)
    return weight


def test_weights_have_the_deviation_asked_for():
    weight = filled().float()
    # The standard error of a deviation over 307,200 numbers is 0.13 %, that of the mean 0.02/554.
    assert weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=2e-4)


def test_the_same_name_and_seed_give_the_same_weights_on_any_threads():
    assert torch.equal(filled(threads=1), filled(threads=2))


def test_another_name_or_seed_gives_other_weights():
    assert not torch.equal(filled(), filled(name="k_proj"))
    assert not torch.equal(filled(), filled(seed=1))


def test_no_piece_repeats_another():
    line = filled().view(-1)
    assert not torch.equal(line[: 2**17], line[2**17 : 2**18])
