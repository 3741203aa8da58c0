"""What stage 3 gathers, call by call, counted by hand in elements."""

from plimsoll.planners.memory.programs.zero.gathering import Coordinator


def _coordinator(sizes, calls, *, turn=None, live=100, bucket=1, leaves=None, is_recording=False):
    turn = len(calls) if turn is None else turn
    leaves = leaves or [False] * len(calls)
    return Coordinator(sizes, calls, leaves, turn, live, bucket, is_recording=is_recording)


def test_the_first_micro_batch_gathers_each_module_by_itself():
    engine = _coordinator([4, 3], [(0,), (1,)], is_recording=True)
    assert engine.fetch((0,)) == engine.held == 4
    engine.release((0,))
    assert engine.fetch((1,)) == engine.held == 3


def test_one_that_passes_the_limit_is_gathered_whole():
    engine = _coordinator([4, 3, 2], [(0,), (1,), (2,)], live=6, bucket=3)
    assert engine.fetch((0,)) == 4 + 3
    engine.release((0,))
    assert engine.fetch((1,)) == 3 + 2


def test_several_are_there_twice_until_all_have_been_waited_for():
    engine = _coordinator([4, 3, 2], [(0,), (1,), (2,)], bucket=5)
    assert engine.fetch((0,)) == 4 + 5
    engine.release((0,))
    assert engine.fetch((1,)) == engine.held == 5 + 5
    engine.release((1,))
    assert (engine.fetch((2,)), engine.held) == (5 + 2, 2)


def test_what_is_used_again_soon_stays():
    engine = _coordinator([4], [(0,), (0,)], turn=1)
    engine.fetch((0,))
    engine.release((0,))
    assert engine.held == 4
    engine.fetch((0,))
    engine.release((0,))
    assert engine.held == 0


def test_what_is_used_again_late_goes():
    far = 10**9
    engine = _coordinator([4, far], [(0,), (1,), (1,), (0,)], turn=2, live=0)
    engine.fetch((0,))
    engine.release((0,))
    assert engine.held == 0


def test_a_module_without_hooks_within_has_nothing_of_its_own_for_others():
    far = 10**9
    engine = _coordinator([4, far], [(0,), (1,), (1,), (0,)], turn=2, live=0, leaves=[False, True, True, False])
    engine.fetch((0,))
    engine.release((0,))
    assert engine.held == 4


def test_a_saved_storage_outlives_its_parameter():
    engine = _coordinator([4], [(0,), (0,)], turn=1, is_recording=True)
    engine.fetch((0,))
    engine.release((0,), (0,))
    assert engine.held == 4
    assert engine.fetch((0,)) == 8
    engine.unpin((0,))
    assert engine.held == 4
