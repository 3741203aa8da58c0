from dataclasses import replace

import numpy as np
import pytest

from plimsoll.planners.ground.hardware import Network
from plimsoll.planners.timing.collectives import all_gather_seconds, all_reduce_seconds, rank_group, send_seconds
from plimsoll.planners.timing.efficiency import load_efficiency
from tests.planners.factories import hardware

E = load_efficiency()


def group(ranks: int, stride: int = 1):
    return rank_group(np.array([ranks]), np.array([stride]), hardware(8), E)


def test_all_gather_sends_all_chunks_but_one():
    # 3/4 of 1 GB at 75 % of 450 GB/s is 2.222 ms; 3 hops of 3.4 us and a launch of 8.4 us.
    expected = 0.75e9 / (0.75 * 450e9) + 3 * 3.4e-6 + 8.4e-6
    assert all_gather_seconds(np.array([1e9]), group(4))[0] == pytest.approx(expected)


def test_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    message = np.array([1e9])
    assert all_reduce_seconds(message, group(4))[0] == pytest.approx(2 * all_gather_seconds(message, group(4))[0])


def test_one_rank_sends_nothing():
    assert all_reduce_seconds(np.array([1e9]), group(1))[0] == 0.0
    assert send_seconds(np.array([1e9]), group(1))[0] == 0.0


def test_a_group_within_the_node_uses_the_link():
    assert group(8).bytes_per_second[0] == pytest.approx(0.75 * 450e9)


def test_a_group_over_nodes_uses_the_network_cards_of_its_members():
    # 16 ranks side by side: 8 of them in a node with 50 GB/s each, 400 GB/s together.
    assert group(16).bytes_per_second[0] == pytest.approx(0.75 * 400e9)
    # 16 ranks eight apart: one in a node.
    assert group(16, 8).bytes_per_second[0] == pytest.approx(0.75 * 50e9)


def test_a_group_takes_the_same_beside_one_that_leaves_the_node():
    # Two and four ranks in the node: one and three hops of 3.4 us; sixteen side by side leave it.
    beside = rank_group(np.array([2, 4, 16]), np.array([1, 2, 1]), hardware(8), E)
    alone = rank_group(np.array([2, 4]), np.array([1, 2]), hardware(8), E)
    assert alone.ring_seconds == pytest.approx([3.4e-6, 3 * 3.4e-6])
    message = np.array([1e9])
    assert (all_gather_seconds(message, beside)[:2] == all_gather_seconds(message, alone)).all()
    assert (send_seconds(message, beside)[:2] == send_seconds(message, alone)).all()


def test_hops_between_nodes_take_the_network_s_latency():
    # 16 ranks on two nodes: 14 hops of 3.4 us and one of 14 us.
    assert group(16).ring_seconds[0] == pytest.approx(14 * 3.4e-6 + 14e-6)


@pytest.mark.parametrize(("ranks", "stride", "shared_by"), [(16, 8, 1), (16, 1, 1), (17, 8, 7), (2, 128, 7)])
def test_a_group_that_leaves_its_pod_shares_what_is_left_beyond(ranks: int, stride: int, shared_by: int):
    # Pods of 128 GPUs, one seventh of the rate between them. 16 ranks eight apart end at GPU 120, 17 at 128; a ring of
    # neighbours has the eight cards of each node, one with gaps of eight and more a single one.
    machine = replace(hardware(8), network=Network(gpus_per_pod=128, oversubscription=7.0))
    there = rank_group(np.array([ranks]), np.array([stride]), machine, E)
    cards = 8 if stride == 1 else 1
    assert there.bytes_per_second[0] == pytest.approx(0.75 * cards * 50e9 / shared_by)
