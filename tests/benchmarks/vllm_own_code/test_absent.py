"""Empty names in place of modules that are not here."""

import sys

import pytest

from benchmarks.vllm_own_code import absent


@pytest.fixture
def _stood_in(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    absent.stand_in_for_absent_modules()
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("_stood_in")
def test_a_named_package_has_every_name_and_decorates_with_nothing():
    from lark.tree import Tree
    from numba import njit

    assert issubclass(Tree, object)
    assert njit(len) is len
    assert njit(parallel=True)(len) is len


@pytest.mark.usefixtures("_stood_in")
def test_no_other_module_is_stood_in_for():
    absent.stand_in_for_absent_modules()
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_package_of_anyone")
