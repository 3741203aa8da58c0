"""torchtitan's config and mesh, without the package itself, which imports Triton's kernels."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture(scope="module", autouse=True)
def bare_package() -> Iterator[None]:
    """Let the package's modules be found without running the package's own, where it is installed."""
    spec = importlib.util.find_spec("torchtitan")
    if spec is not None:
        package = ModuleType("torchtitan")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["torchtitan"] = package
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchtitan"]:
        del sys.modules[name]
