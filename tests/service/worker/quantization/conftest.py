"""Compiled kernels, once for all tests that ask for them."""

import pytest

from plimsoll.service.worker.quantization.kernels.native_kernels import NoKernels, compiled_kernels


@pytest.fixture(scope="session")
def kernels():
    try:
        return compiled_kernels()
    except NoKernels as error:
        pytest.skip(f"The kernels cannot be compiled here: {error}.")
